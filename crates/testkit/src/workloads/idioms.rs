//! Idioms of programs, and cases that are known to be delicate.

use crate::driver::{Done, Driver, End, FileOps};
use crate::rng::Rng;
use crate::tree::Tree;

/// Write a new file, fsync, rename it over the old one.
pub fn replace(s: &mut Driver, rng: &mut Rng) -> Done {
    s.create("/config")?;
    s.append("/config", 3000)?;
    s.fsync("/config")?;
    for _ in 0..12 {
        s.create("/config.new")?;
        s.append("/config.new", 1 + rng.below(6000))?;
        s.fsync("/config.new")?;
        s.rename("/config.new", "/config")?;
        if rng.one_in(3) {
            s.fsync("/")?;
        }
    }
    Ok(())
}

/// The same without the fsync: the rename makes the data durable too, but may itself be missing.
pub fn replace_unsynced(s: &mut Driver, rng: &mut Rng) -> Done {
    s.create("/other")?;
    s.create("/config")?;
    s.append("/config", 3000)?;
    s.sync()?;
    for _ in 0..12 {
        s.create("/config.new")?;
        s.append("/config.new", 1 + rng.below(6000))?;
        s.rename("/config.new", "/config")?;
        s.append("/config", rng.below(300))?;
        if rng.one_in(2) {
            s.append("/other", 10)?;
            s.fsync("/other")?;
        }
    }
    Ok(())
}

/// A log: small appends, each made durable; now and then it is truncated.
pub fn append(s: &mut Driver, rng: &mut Rng) -> Done {
    s.create("/log")?;
    for _ in 0..40 {
        s.append("/log", 1 + rng.below(2500))?;
        if rng.one_in(2) {
            s.fsync("/log")?
        } else {
            s.fdatasync("/log")?
        }
        if rng.one_in(8) {
            s.truncate("/log", 0)?;
        }
    }
    Ok(())
}

/// The four kinds of write of the paper on delayed inode update (DIU-1), two files at a time, of
/// which one is synced: the other's size must be one that it had.
pub fn two_appends(s: &mut Driver, _: &mut Rng) -> Done {
    const KIB: u64 = 1024;
    for round in 0..5u64 {
        let (a, b) = (format!("/a{round}"), format!("/b{round}"));
        for path in [&a, &b] {
            s.create(path)?;
            s.append(path, 14 * KIB)?;
        }
        s.sync()?;
        for (path, kind) in [(&a, round + 1), (&b, round)] {
            match kind % 4 {
                // Unaligned and allocating; size-changing in an existing block; aligned and
                // allocating; size-preserving.
                0 => s.append(path, 6 * KIB)?,
                1 => s.append(path, KIB)?,
                2 => s.write(path, 16 * KIB, 4 * KIB)?,
                _ => s.write(path, 4 * KIB, 2 * KIB)?,
            }
        }
        s.fsync(&a)?;
    }
    Ok(())
}

/// Appends that arrive in two parts (DIU-1), each with a `sync` between the parts.
pub fn appends_in_parts(s: &mut Driver, _: &mut Rng) -> Done {
    const KIB: u64 = 1024;
    for round in 0..4 {
        let path = format!("/parts{round}");
        s.create(&path)?;
        s.append(&path, 14 * KIB)?;
        s.append_in_parts(&path, 2 * KIB, 4 * KIB)?;
    }
    Ok(())
}

/// The sizes that the files of [`two_appends`] and [`appends_in_parts`] had between two calls.
pub fn no_half_append(tree: &Tree) -> Result<(), String> {
    const SIZES_KIB: [usize; 4] = [0, 14, 15, 20];
    for (path, entry) in &tree.entries {
        if let Some(bytes) = entry.bytes()
            && !SIZES_KIB.iter().any(|kib| bytes.len() == kib * 1024)
        {
            let path = String::from_utf8_lossy(path);
            return Err(format!("{path} is {} bytes long, which it never was", bytes.len()));
        }
    }
    Ok(())
}

/// Many small commits in a small journal, until it has wrapped around more than once.
pub fn wrap(s: &mut Driver, rng: &mut Rng) -> Done {
    const FOLDERS: u64 = 12;
    for n in 0..FOLDERS {
        s.mkdir(&format!("/f{n}"))?;
    }
    for n in 0..150u64 {
        let folder = rng.below(FOLDERS);
        for part in 0..3 {
            let path = format!("/f{}/n{n}-{part}", (folder + part) % FOLDERS);
            s.create(&path)?;
            if part == 0 {
                s.append(&path, 1500)?;
                s.fsync(&path)?;
            }
        }
        if n > 20 && rng.one_in(2) {
            s.unlink(&format!("/f{}/n{}-0", rng.below(FOLDERS), n - rng.below(20)))?;
        }
    }
    s.sync()
}

/// Blocks move from folders to files and back: freed contents must not come back over later ones
/// (revoke).
pub fn reuse(s: &mut Driver, rng: &mut Rng) -> Done {
    for round in 0..5u64 {
        let folder = format!("/dir{round}");
        s.mkdir(&folder)?;
        // Several blocks of names.
        let names = 25 + rng.below(20);
        for n in 0..names {
            s.create(&format!("{folder}/{}{n}", "a-long-name-that-fills-blocks-".repeat(4)))?;
        }
        s.sync()?;
        for n in 0..names {
            s.unlink(&format!("{folder}/{}{n}", "a-long-name-that-fills-blocks-".repeat(4)))?;
        }
        s.rmdir(&folder)?;
        s.sync()?;
        for n in 0..4 {
            let path = format!("/file{round}-{n}");
            s.create(&path)?;
            s.append(&path, 8000 + rng.below(8000))?;
        }
        s.fsync(&format!("/file{round}-0"))?;
        s.sync()?;
        if round > 1 {
            for n in 0..4 {
                s.unlink(&format!("/file{}-{n}", round - 2))?;
            }
        }
    }
    Ok(())
}

/// Blocks move from folders to files within one intent log, and a snapshot exists. So reads of data
/// look up the log as reads of metadata do, and the log's contents of a block before it was freed
/// must not count (`LogSum`).
pub fn reuse_in_the_log(s: &mut Driver, rng: &mut Rng) -> Done {
    s.create("/log")?;
    s.snapshot(0)?;
    for round in 0..4u64 {
        let folder = format!("/dir{round}");
        s.mkdir(&folder)?;
        let names = 25 + rng.below(20);
        let name = |n: u64| format!("{folder}/{}{n}", "a-long-name-that-fills-blocks-".repeat(4));
        for n in 0..names {
            s.create(&name(n))?;
        }
        // The folder is part of a generation, and all later changes are in the log.
        s.sync()?;
        for n in 0..names {
            if n % 8 == 7 {
                s.append("/log", 10)?;
                s.fsync("/log")?;
            }
            s.unlink(&name(n))?;
        }
        s.rmdir(&folder)?;
        s.append("/log", 10)?;
        s.fsync("/log")?;
        for n in 0..4 {
            let path = format!("/file{round}-{n}");
            s.create(&path)?;
            s.append(&path, 8000 + rng.below(8000))?;
            s.fsync(&path)?;
        }
    }
    Ok(())
}

/// Open files that lose their last name, and long truncations.
pub fn orphans(s: &mut Driver, rng: &mut Rng) -> Done {
    for round in 0..6u64 {
        let path = format!("/held{round}");
        s.create(&path)?;
        s.append(&path, 20_000 + rng.below(20_000))?;
        s.fsync(&path)?;
        let held = s.hold(&path)?;
        s.unlink(&path)?;
        let large = format!("/large{round}");
        s.create(&large)?;
        s.append(&large, 60_000)?;
        s.sync()?;
        s.truncate(&large, rng.below(3000))?;
        if rng.one_in(2) {
            s.sync()?;
        }
        s.append(&large, 5000)?;
        if rng.one_in(2) {
            s.release(held);
        }
        s.fsync(&large)?;
    }
    Ok(())
}

/// Files of all kinds that are made and deleted in one commit, beside others that stay, with syncs
/// in between: the former leave nothing, and the commit does not write what they changed. What
/// returns to an older state, behind a sync, must be written.
pub fn short_lived(s: &mut Driver, rng: &mut Rng) -> Done {
    s.create("/stays")?;
    s.mkdir("/dir")?;
    s.append("/stays", 5000)?;
    s.sync()?;
    for round in 0..9u64 {
        let folder = *rng.pick(&["", "/dir"]);
        // Names of several blocks: the folder grows, gets an index, and shrinks again.
        let suffix = if rng.one_in(2) { "-a-long-name".repeat(8) } else { String::new() };
        let name = |kind: &str, n: u64| format!("{folder}/{kind}{round}-{n}{suffix}");
        let count = 1 + rng.below(24);
        for n in 0..count {
            s.create(&name("empty", n))?;
            if rng.one_in(2) {
                s.unlink(&name("empty", n))?;
                s.create(&name("empty", n))?;
            }
        }
        s.create(&name("data", 0))?;
        s.append(&name("data", 0), 1 + rng.below(9000))?;
        s.link(&name("data", 0), &name("link", 0))?;
        s.link("/stays", &name("link", 1))?;
        s.set_xattr(&name("data", 0), "user.long", &[round as u8; 600])?;
        s.symlink(&"a-target/".repeat(20), &name("symlink", 0))?;
        s.mkdir(&name("folder", 0))?;
        s.create(&format!("{}/in", name("folder", 0)))?;
        match rng.below(5) {
            0 => s.sync()?,
            1 => s.fsync("/stays")?,
            2 => s.fsync(&name("data", 0))?,
            _ => {}
        }
        let held = if rng.one_in(2) { Some(s.hold(&name("data", 0))?) } else { None };
        for n in 0..count {
            s.unlink(&name("empty", n))?;
        }
        for (kind, n) in [("data", 0), ("link", 0), ("link", 1), ("symlink", 0)] {
            s.unlink(&name(kind, n))?;
        }
        s.unlink(&format!("{}/in", name("folder", 0)))?;
        s.rmdir(&name("folder", 0))?;
        if rng.one_in(3) {
            s.append("/stays", 100)?;
        }
        if rng.one_in(3) {
            s.fsync("/stays")?;
        }
        if let Some(held) = held {
            s.release(held);
        }
        if rng.one_in(2) {
            s.sync()?;
        }
    }
    s.sync()
}

/// Folders of the root go to the emptiest groups. These are unused before, and often again in the
/// same commit; at other times a folder stays in one, or a sync comes between.
pub fn unused_groups(s: &mut Driver, rng: &mut Rng) -> Done {
    s.create("/stays")?;
    s.sync()?;
    for round in 0..10u64 {
        let folder = |n: u64| format!("/d{round}-{n}");
        let count = 1 + rng.below(10);
        let mut files = Vec::new();
        for n in 0..count {
            s.mkdir(&folder(n))?;
            if rng.one_in(2) {
                let file = format!("{}/f", folder(n));
                s.create(&file)?;
                s.append(&file, 1 + rng.below(5000))?;
                files.push(file);
            }
        }
        match rng.below(6) {
            0 => s.sync()?,
            1 => s.fsync("/stays")?,
            2 if !files.is_empty() => s.fsync(&files[rng.below(files.len() as u64) as usize])?,
            _ => {}
        }
        let staying = rng.below(12);
        for file in files.iter().filter(|file| **file != format!("{}/f", folder(staying))) {
            s.unlink(file)?;
        }
        for n in (0..count).filter(|n| *n != staying) {
            s.rmdir(&folder(n))?;
        }
        // A group that was left is used again in the same commit.
        if rng.one_in(2) {
            s.mkdir(&format!("/again{round}"))?;
            if rng.one_in(2) {
                s.rmdir(&format!("/again{round}"))?;
            }
        }
        s.append("/stays", 100)?;
        match rng.below(4) {
            0 => s.sync()?,
            1 => s.fsync("/stays")?,
            _ => {}
        }
    }
    s.sync()
}

/// FileOps of many extents: every other block written, then the gaps, then holes.
pub fn fragments(s: &mut Driver, rng: &mut Rng) -> Done {
    s.create("/f")?;
    for n in 0..60u64 {
        s.write("/f", n * 2048, 1024)?;
        if n % 20 == 19 {
            s.fsync("/f")?;
        }
    }
    for _ in 0..20 {
        s.write("/f", rng.below(60) * 2048 + 1024, 1024)?;
    }
    s.fdatasync("/f")?;
    for _ in 0..8 {
        s.punch("/f", rng.below(100) * 1024, 3000)?;
        if rng.one_in(3) {
            s.fsync("/f")?;
        }
    }
    s.truncate("/f", 50_000)?;
    s.fsync("/f")?;
    s.truncate("/f", 0)?;
    s.append("/f", 3000)?;
    s.fsync("/f")
}

/// Block-mapped files whose arrays of pointers, single and double, are created and freed; the freed
/// blocks become data.
pub fn arrays(s: &mut Driver, rng: &mut Rng) -> Done {
    const SINGLE: u64 = 12 << 10;
    const DOUBLE: u64 = SINGLE + (256 << 10);
    for round in 0..5u64 {
        let map = format!("/map{round}");
        s.create(&map)?;
        s.append(&map, 20_000)?;
        s.write(&map, DOUBLE - 3000 + rng.below(3000), 5000)?;
        s.sync()?;
        match rng.below(3) {
            0 => s.truncate(&map, rng.below(SINGLE))?,
            1 => s.punch(&map, 11 << 10, DOUBLE + (5 << 10))?,
            _ => s.unlink(&map)?,
        }
        s.sync()?;
        for n in 0..3 {
            let path = format!("/data{round}-{n}");
            s.create(&path)?;
            s.append(&path, 8000 + rng.below(8000))?;
        }
        s.fsync(&format!("/data{round}-0"))?;
        if rng.one_in(2) {
            s.sync()?;
        }
    }
    s.sync()
}

/// A volume that fills up, is emptied, and filled again.
pub fn full(s: &mut Driver, rng: &mut Rng) -> Done {
    const CHUNK: u64 = 400_000;
    for round in 0..2u64 {
        for n in 0..16u64 {
            let path = format!("/big{round}-{n}");
            s.create(&path)?;
            s.append(&path, CHUNK)?;
            s.fsync(&path)?;
        }
        s.sync()?;
        for n in 0..16u64 {
            if !rng.one_in(3) || round == 0 {
                s.unlink(&format!("/big{round}-{n}"))?;
            }
        }
    }
    s.sync()
}

/// A volume so full that new files need the blocks of those just deleted.
pub fn refill(s: &mut Driver, rng: &mut Rng) -> Done {
    const FILES: u64 = 16;
    const CHUNK: u64 = 400_000;
    let mut names: Vec<String> = (0..FILES).map(|n| format!("/old{n}")).collect();
    for name in &names {
        s.create(name)?;
        s.append(name, CHUNK)?;
    }
    s.sync()?;
    for round in 0..6 {
        let victim = rng.below(names.len() as u64) as usize;
        s.unlink(&names.swap_remove(victim))?;
        let name = format!("/new{round}");
        s.create(&name)?;
        s.append(&name, CHUNK - 1000)?;
        s.fsync(&name)?;
        names.push(name);
    }
    Ok(())
}

const MANY: u64 = 520;

/// As many metadata blocks as a small pool has under pressure.
pub fn many_folders(s: &mut Driver, _rng: &mut Rng) -> Done {
    for n in 0..MANY {
        s.mkdir(&format!("/m{n}"))?;
    }
    s.sync()
}

/// Small scattered commits among them, so that each meets blocks at home and blocks that are not,
/// and others are written home in between.
pub fn in_many_folders(s: &mut Driver, rng: &mut Rng) -> Done {
    for n in 0..10 {
        for part in 0..70 + rng.below(50) {
            let path = format!("/m{}/f{n}-{part}", rng.below(MANY));
            s.create(&path)?;
            if rng.one_in(6) {
                s.append(&path, 700)?;
            }
        }
        s.sync()?;
    }
    Ok(())
}

/// Snapshots are created and deleted while the files in them are overwritten, truncated, deleted
/// and created again.
pub fn snapshots(s: &mut Driver, rng: &mut Rng) -> Done {
    const FILES: u64 = 4;
    let mut kept = Vec::new();
    s.mkdir("/d")?;
    for n in 0..FILES {
        s.create(&format!("/d/f{n}"))?;
        s.append(&format!("/d/f{n}"), 5000)?;
    }
    for round in 0..5 {
        let name = s.snapshot(round)?;
        kept.push(name);
        for _ in 0..5 {
            let path = format!("/d/f{}", rng.below(FILES));
            match rng.below(7) {
                0..=2 => s.write(&path, rng.below(4000), 1 + rng.below(2500))?,
                3 => s.append(&path, 1 + rng.below(3000))?,
                4 => s.truncate(&path, rng.below(3000))?,
                5 => {
                    s.unlink(&path)?;
                    s.create(&path)?;
                    s.append(&path, 4000)?;
                }
                _ => s.transaction(|tx| {
                    tx.write(&path, 1000, 1500)?;
                    tx.chmod(&path, 0o600)?;
                    Ok(End::Commit)
                })?,
            }
            if rng.one_in(2) {
                s.fsync(&path)?;
            }
        }
        if kept.len() > 2 || rng.one_in(4) {
            let name = kept.swap_remove(rng.below(kept.len() as u64) as usize);
            s.delete_snapshot(&name)?;
        }
    }
    s.sync()
}

/// Snapshots of some files and folders are created and deleted, while these and others are
/// overwritten, deleted and created again.
pub fn snapshot_parts(s: &mut Driver, rng: &mut Rng) -> Done {
    const FILES: u64 = 3;
    let mut kept = Vec::new();
    s.mkdir("/d")?;
    s.mkdir("/d/in")?;
    s.mkdir("/other")?;
    for dir in ["/d", "/d/in", "/other"] {
        for n in 0..FILES {
            s.create(&format!("{dir}/f{n}"))?;
            s.append(&format!("{dir}/f{n}"), 3000)?;
        }
    }
    s.link("/d/in/f0", "/other/same")?;
    for round in 0..5 {
        let paths: &[&str] = match rng.below(3) {
            0 => &["/d/f1"],
            1 => &["/d/in", "/other/f2"],
            _ => &["/d/f0", "/d/in/f0"],
        };
        let name = s.snapshot_of(round, paths)?;
        kept.push(name);
        for _ in 0..5 {
            let path = format!("{}/f{}", ["/d", "/d/in", "/other"][rng.below(3) as usize], rng.below(FILES));
            match rng.below(6) {
                0..=2 => s.write(&path, rng.below(2000), 1 + rng.below(2500))?,
                3 => s.truncate(&path, rng.below(2000))?,
                4 => {
                    s.unlink(&path)?;
                    s.create(&path)?;
                    s.append(&path, 4000)?;
                }
                _ => s.append(&path, 1 + rng.below(3000))?,
            }
            if rng.one_in(2) {
                s.fsync(&path)?;
            }
        }
        if kept.len() > 2 || rng.one_in(4) {
            let name = kept.swap_remove(rng.below(kept.len() as u64) as usize);
            s.delete_snapshot(&name)?;
        }
    }
    s.sync()
}

/// Small parts of blocks, overwritten and synced, beside larger unsynced ones, with generations
/// between: contents in the log, contents that a generation is just writing, and contents written
/// in place alternate.
pub fn overwrites(s: &mut Driver, rng: &mut Rng) -> Done {
    const FILES: [&str; 3] = ["/a", "/b", "/c"];
    for path in FILES {
        s.create(path)?;
        s.append(path, 5000)?;
    }
    s.sync()?;
    for _ in 0..70 {
        let path = *rng.pick(&FILES);
        let size = s.size(path);
        match rng.below(10) {
            0 => s.append(path, 1 + rng.below(900))?,
            1 if size > 1000 => s.truncate(path, size - rng.below(900))?,
            2 => s.write(path, rng.below(size), 1500 + rng.below(9000))?,
            _ => s.write(path, rng.below(size), 1 + rng.below(300))?,
        }
        match rng.below(6) {
            0 => s.sync()?,
            1 | 2 => s.fsync(path)?,
            3 => s.fdatasync(path)?,
            _ => {}
        }
    }
    Ok(())
}

/// Small overwrites, each followed by one of the calls that make them durable, with metadata to
/// commit or without. `data=adaptive` promises that a crash leaves all or nothing of what such a
/// call writes.
pub fn small_syncs(s: &mut Driver, rng: &mut Rng) -> Done {
    const FILES: [&str; 3] = ["/a", "/b", "/c"];
    for path in FILES {
        s.create(path)?;
        s.append(path, 20_000)?;
    }
    s.sync()?;
    // From now on these files are known as synced.
    for path in FILES {
        s.write(path, 100, 5000)?;
        s.fsync(path)?;
    }
    for _ in 0..60 {
        let path = *rng.pick(&FILES);
        let size = s.size(path);
        let writes = 1 + rng.below(2);
        for _ in 0..writes {
            match rng.below(8) {
                0 => s.append(path, 1 + rng.below(3000))?,
                1 => s.write(path, rng.below(size), 1 + rng.below(300))?,
                2 => s.write(path, size - 1000, 4000)?,
                _ => s.write(path, rng.below(size / 2), 2000 + rng.below(size / 2 - 2000))?,
            }
        }
        match rng.below(8) {
            0 => s.sync()?,
            1..=3 => s.fdatasync(path)?,
            _ => s.fsync(path)?,
        }
        if s.size(path) > 40_000 {
            s.truncate(path, 18_000)?;
            s.fsync(path)?;
        }
    }
    Ok(())
}
