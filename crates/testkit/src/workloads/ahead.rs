//! Files that are synced one by one, while changes of others wait (SNAP-12).

use crate::driver::{Done, Driver, End, FileOps};
use crate::model::Op;
use crate::rng::Rng;

const OLD: [&str; 4] = ["/a", "/d/b", "/d/c", "/e/d"];
const FOLDERS: [&str; 3] = ["/", "/d/", "/e/"];

/// Old files whose data is synced again and again. In between: new files beside them, names and
/// attributes of these, writes to other old files, and now and then a change after which the sync
/// of a file is one of everything.
pub fn beside_others(s: &mut Driver, rng: &mut Rng) -> Done {
    prepare(s, rng)?;
    for round in 0..60 {
        for part in 0..rng.below(4) {
            other_change(s, rng, round, part)?;
        }
        let path = *rng.pick(&OLD);
        let size = s.size(path);
        match rng.below(20) {
            0..=8 => s.append(path, 1 + rng.below(3000))?,
            9 => s.append(path, 20_000 + rng.below(20_000))?,
            10..=16 => s.write(path, rng.below(size), 1 + rng.below(2500))?,
            17 => s.chmod(path, 0o600 + rng.below(0o100) as u16)?,
            18 => s.truncate(path, size - rng.below(size))?,
            _ => s.write(path, size + rng.below(30_000), 1 + rng.below(2000))?,
        }
        match rng.below(12) {
            0 => {}
            1..=3 => s.fdatasync(path)?,
            4 => s.fsync("/d")?,
            5 if rng.one_in(3) => s.sync()?,
            _ => s.fsync(path)?,
        }
    }
    Ok(())
}

fn other_change(s: &mut Driver, rng: &mut Rng, round: u64, part: u64) -> Done {
    let folder = *rng.pick(&FOLDERS);
    let path = format!("{folder}n{round}-{part}");
    let earlier = format!("{folder}n{}-{}", rng.below(round + 1), rng.below(3));
    match rng.below(13) {
        0..=3 => s.create(&path),
        4 => {
            s.create(&path)?;
            s.append(&path, 1 + rng.below(6000))
        }
        5 => s.mkdir(&path),
        6 => s.symlink("somewhere", &path),
        7 => s.unlink(&earlier),
        8 => s.rename(&earlier, &path),
        9 => s.chmod(&earlier, 0o600 + rng.below(0o100) as u16),
        10 => {
            let old = *rng.pick(&OLD);
            s.append(old, 1 + rng.below(2000))
        }
        11 => {
            let old = *rng.pick(&OLD);
            s.punch(old, rng.below(s.size(old)), 1 + rng.below(3000))
        }
        _ => s.append(&earlier, 1 + rng.below(4000)),
    }
}

/// New files and changed attributes of old ones, each synced at once, and what may follow before
/// the commit with the rest: the same file again, its deletion, renames and links of it or over it,
/// a second file beside it, a folder that grows, gets an index, is new or moves.
pub fn new_files(s: &mut Driver, rng: &mut Rng) -> Done {
    prepare(s, rng)?;
    for round in 0..40 {
        for part in 0..rng.below(3) {
            other_change(s, rng, round, part)?;
        }
        let folder = *rng.pick(&FOLDERS);
        let path = format!("{folder}m{round}");
        s.create(&path)?;
        match rng.below(8) {
            0 => s.chmod(&path, 0o600 + rng.below(0o100) as u16)?,
            1 => s.set_xattr(&path, "user.a", &[7; 20])?,
            2 => {}
            // Blocks that the file has before it is synced.
            3 | 4 => {
                let len = 1 + rng.below(6000);
                s.run(Op::Reserve { path: path.clone(), offset: 0, len, keep_size: rng.one_in(2) })?;
                s.append(&path, 1 + rng.below(2000))?;
            }
            _ => s.append(&path, 1 + rng.below(4000))?,
        }
        sync_one(s, rng, &path)?;
        after_a_new_file(s, rng, (round, folder), &path)?;
        if rng.one_in(3) {
            changed_attributes(s, rng)?;
        }
        match rng.below(16) {
            0 => s.sync()?,
            1 => s.fsync(folder)?,
            _ => {}
        }
    }
    Ok(())
}

/// The same with little else, so that the log gets full of records ahead, beside a snapshot that
/// has the old contents, and with contents that go to their place with the commit.
pub fn new_files_in_a_full_log(s: &mut Driver, rng: &mut Rng) -> Done {
    prepare(s, rng)?;
    let mut snapshot = None;
    for round in 0..90 {
        let folder = *rng.pick(&FOLDERS);
        let path = format!("{folder}m{round}");
        s.create(&format!("{folder}n{round}-0"))?;
        s.create(&path)?;
        s.append(&path, 1 + rng.below(3000))?;
        sync_one(s, rng, &path)?;
        let old = *rng.pick(&OLD);
        match rng.below(12) {
            0 | 1 => s.unlink(&path)?,
            2 => {
                s.write(old, 0, 1 + rng.below(2000))?;
                s.fsync(old)?;
            }
            3 => s.transaction(|tx| {
                tx.write(old, 100, 1500)?;
                Ok(End::CommitOrdered)
            })?,
            4 if round % 3 == 0 => {
                let new = s.snapshot(round)?;
                if let Some(before) = snapshot.replace(new) {
                    s.delete_snapshot(&before)?;
                }
            }
            _ => changed_attributes(s, rng)?,
        }
    }
    Ok(())
}

fn prepare(s: &mut Driver, rng: &mut Rng) -> Done {
    s.mkdir("/d")?;
    s.mkdir("/e")?;
    for path in OLD {
        s.create(path)?;
        s.append(path, 500 + rng.below(4000))?;
    }
    s.sync()
}

fn sync_one(s: &mut Driver, rng: &mut Rng, path: &str) -> Done {
    match rng.below(6) {
        0 => Ok(()),
        1 => s.fdatasync(path),
        _ => s.fsync(path),
    }
}

/// An old file gets other attributes, and perhaps data, before it is synced.
fn changed_attributes(s: &mut Driver, rng: &mut Rng) -> Done {
    let old = *rng.pick(&OLD);
    match rng.below(3) {
        0 => s.chmod(old, 0o600 + rng.below(0o100) as u16)?,
        1 => s.set_xattr(old, "user.b", &[rng.below(200) as u8; 16])?,
        _ => {
            let (uid, gid) = (rng.below(3) as u32, rng.below(3) as u32);
            s.run(Op::Chown { path: old.into(), uid, gid })?;
        }
    }
    match rng.below(4) {
        0 => s.append(old, 1 + rng.below(3000))?,
        1 => s.truncate(old, s.size(old) / 2)?,
        _ => {}
    }
    sync_one(s, rng, old)
}

fn after_a_new_file(s: &mut Driver, rng: &mut Rng, (round, folder): (u64, &str), path: &str) -> Done {
    let other = format!("{folder}o{round}");
    match rng.below(16) {
        0 => {
            s.append(path, 1 + rng.below(3000))?;
            sync_one(s, rng, path)
        }
        1 => s.unlink(path),
        2 => {
            s.unlink(path)?;
            s.create(path)?;
            s.append(path, 1 + rng.below(2000))?;
            sync_one(s, rng, path)
        }
        3 => {
            s.rename(path, &format!("/e/p{round}"))?;
            sync_one(s, rng, &format!("/e/p{round}"))
        }
        4 => {
            // An editor's: the file takes the place of an old one.
            let target = format!("{folder}editor");
            s.rename(path, &target)?;
            if rng.one_in(2) { s.fsync(&target) } else { Ok(()) }
        }
        5 => {
            s.create(&other)?;
            s.append(&other, 1 + rng.below(2000))?;
            sync_one(s, rng, &other)?;
            s.rename(&other, path)?;
            sync_one(s, rng, path)
        }
        6 => {
            s.link(path, &other)?;
            sync_one(s, rng, path)
        }
        7 | 8 => {
            s.create(&other)?;
            s.append(&other, 1 + rng.below(2000))?;
            sync_one(s, rng, &other)
        }
        9 | 10 => {
            for n in 0..12 {
                s.create(&format!("{folder}{}{round}-{n}", "long".repeat(30)))?;
            }
            s.create(&other)?;
            sync_one(s, rng, &other)?;
            if rng.one_in(2) {
                (0..12).try_for_each(|n| s.unlink(&format!("{folder}{}{round}-{n}", "long".repeat(30))))?;
            }
            s.append(path, 700)?;
            sync_one(s, rng, path)
        }
        11 => {
            s.mkdir(&other)?;
            s.create(&format!("{other}/f"))?;
            s.append(&format!("{other}/f"), 900)?;
            sync_one(s, rng, &format!("{other}/f"))
        }
        12 => {
            s.truncate(path, s.size(path) / 3)?;
            sync_one(s, rng, path)
        }
        13 => {
            s.chmod(path, 0o640)?;
            s.write(path, 0, 1 + rng.below(1500))?;
            sync_one(s, rng, path)
        }
        14 => {
            s.mkdir(&other)?;
            s.rename(&other, &format!("{folder}q{round}"))
        }
        _ => {
            s.punch(path, 0, 2048)?;
            sync_one(s, rng, path)
        }
    }
}
