//! Transactions among other operations.

use xact::PERSISTED_FOLDER;

use super::random::{data_operation, name_operation};
use crate::driver::{Decision, Done, Driver, End, FileOps, InTransaction};
use crate::rng::Rng;
use crate::tree::Tree;

fn end(rng: &mut Rng) -> End {
    *rng.pick(&[End::Commit, End::Commit, End::CommitOrdered, End::Abort])
}

/// Random operations, some inside transactions and some outside.
pub fn mix(s: &mut Driver, rng: &mut Rng) -> Done {
    s.mkdir("/d")?;
    for path in ["/a", "/b", "/d/a"] {
        s.create(path)?;
        s.append(path, 3000)?;
    }
    for _ in 0..30 {
        let end = end(rng);
        s.transaction(|tx| {
            for _ in 0..1 + rng.below(6) {
                if rng.one_in(2) {
                    name_operation(tx, rng)?;
                } else {
                    data_operation(tx, rng)?;
                }
                if rng.one_in(6) {
                    tx.sync()?;
                }
            }
            Ok(end)
        })?;
        for _ in 0..rng.below(3) {
            data_operation(s, rng)?;
        }
        if rng.one_in(6) {
            s.sync()?;
        }
    }
    Ok(())
}

/// A table of records, of which each transaction changes some; two files must always agree.
pub fn overwrite(s: &mut Driver, rng: &mut Rng) -> Done {
    const RECORDS: u64 = 60;
    const RECORD_BYTES: u64 = 700;
    for path in ["/table", "/copy"] {
        s.create(path)?;
        s.append(path, RECORDS * RECORD_BYTES)?;
    }
    s.sync()?;
    for _ in 0..15 {
        let end = end(rng);
        s.transaction(|tx| {
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(RECORDS) * RECORD_BYTES;
                tx.write("/table", at, RECORD_BYTES)?;
                tx.write("/copy", at, RECORD_BYTES)?;
            }
            Ok(end)
        })?;
        if rng.one_in(4) {
            s.write("/table", rng.below(RECORDS) * RECORD_BYTES, 100)?;
        }
    }
    Ok(())
}

/// Transactions with parts within parts, some of which are rolled back.
pub fn savepoints(s: &mut Driver, rng: &mut Rng) -> Done {
    const DEPTH: u64 = 3;
    fn part(tx: &mut InTransaction<'_>, rng: &mut Rng, depth: u64) -> Done {
        for _ in 0..1 + rng.below(4) {
            match rng.below(4) {
                0 if depth < DEPTH => tx.savepoint(|tx| {
                    part(tx, rng, depth + 1)?;
                    Ok(rng.one_in(2))
                })?,
                1 => name_operation(tx, rng)?,
                _ => data_operation(tx, rng)?,
            }
        }
        Ok(())
    }
    s.mkdir("/d")?;
    for path in ["/a", "/b", "/d/a"] {
        s.create(path)?;
        s.append(path, 5000)?;
    }
    for _ in 0..16 {
        let end = end(rng);
        s.transaction(|tx| {
            part(tx, rng, 0)?;
            tx.savepoint(|tx| {
                part(tx, rng, 1)?;
                Ok(rng.one_in(2))
            })?;
            part(tx, rng, 1)?;
            Ok(end)
        })?;
        data_operation(s, rng)?;
    }
    Ok(())
}

/// Transactions of which a part is committed before the rest, which may be dropped.
pub fn parts(s: &mut Driver, rng: &mut Rng) -> Done {
    for folder in ["/one", "/two"] {
        s.mkdir(folder)?;
        s.create(&format!("{folder}/table"))?;
        s.append(&format!("{folder}/table"), 9000)?;
    }
    s.sync()?;
    for round in 0..12u64 {
        let change = |tx: &mut InTransaction<'_>, rng: &mut Rng, folder: &str| -> Done {
            let new = format!("{folder}/new{round}");
            tx.create(&new)?;
            tx.append(&new, 1 + rng.below(4000))?;
            tx.write(&format!("{folder}/table"), rng.below(8000), 700)?;
            if round > 2 && rng.one_in(2) {
                tx.rename(&new, &format!("{folder}/kept"))?;
            }
            Ok(())
        };
        let end = end(rng);
        let mut other = Rng::of(&[rng.next()]);
        s.transaction_in_parts(
            &["/one"],
            |tx| change(tx, rng, "/one"),
            |tx| change(tx, &mut other, "/two"),
            end,
        )?;
        if rng.one_in(3) {
            s.write("/two/table", rng.below(8000), 300)?;
        }
    }
    Ok(())
}

/// Transactions that are persisted on the volume, and then committed, in parts or dropped.
pub fn kept(s: &mut Driver, rng: &mut Rng) -> Done {
    for folder in ["/one", "/two"] {
        s.mkdir(folder)?;
        s.create(&format!("{folder}/table"))?;
        s.append(&format!("{folder}/table"), 9000)?;
    }
    s.create("/free")?;
    s.sync()?;
    let decisions = [Decision::Commit, Decision::InParts, Decision::Drop, Decision::CommitOrdered];
    for round in 0..8u64 {
        let change = |tx: &mut InTransaction<'_>, rng: &mut Rng, folder: &str| -> Done {
            let new = format!("{folder}/new{round}");
            tx.create(&new)?;
            tx.append(&new, 1 + rng.below(4000))?;
            tx.write(&format!("{folder}/table"), rng.below(8000), 700)?;
            if rng.one_in(2) {
                tx.rename(&new, &format!("{folder}/kept"))?;
            }
            Ok(())
        };
        let mut other = Rng::of(&[rng.next()]);
        let free = rng.below(5000);
        s.kept_transaction(
            |tx| change(tx, rng, "/one"),
            |tx| change(tx, &mut other, "/two"),
            |s| s.append("/free", free),
            decisions[round as usize % decisions.len()],
        )?;
        s.append("/free", 100)?;
    }
    Ok(())
}

/// Each persisted transaction is still persisted, or is decided, once.
pub fn decided_once(tree: &Tree) -> Result<(), String> {
    let there = |path: String| tree.entries.contains_key(path.as_bytes());
    for path in tree.entries.keys() {
        let text = String::from_utf8_lossy(path);
        let Some((stands, id)) = text.strip_prefix('/').and_then(|name| name.split_once('-')) else {
            continue;
        };
        let kept = there(format!("/{PERSISTED_FOLDER}/{id}"));
        let (done, part) = (there(format!("/two/done-{id}")), there(format!("/one/part-{id}")));
        let wrong = match stands {
            _ if kept && done => "was committed and is still kept",
            _ if done && !part => "was committed without its part",
            "kept" if !kept && !done => "is neither kept nor committed",
            "dropped" if kept => "was dropped and is still kept",
            "keeping" | "dropping" | "dropped" if done || part => "was never committed and is there",
            _ => continue,
        };
        return Err(format!("transaction {id} {wrong}"));
    }
    Ok(())
}

/// Transactions beside many changes of others. The old versions do not fit in memory, so they are
/// written to free blocks, while other commits free and take blocks.
pub fn old_versions(s: &mut Driver, rng: &mut Rng) -> Done {
    // More than an eighth of the workloads' cache.
    const PARTS: u64 = 8;
    const PART: u64 = 330_000;
    s.create("/table")?;
    s.append("/table", 9000)?;
    s.create("/bulk")?;
    for _ in 0..PARTS {
        s.append("/bulk", PART)?;
    }
    s.sync()?;
    for round in 0..2 {
        s.transaction_overtaken(
            |tx| {
                tx.write("/table", 1000, 2000)?;
                tx.create(&format!("/never{round}"))?;
                tx.append(&format!("/never{round}"), 3000)
            },
            |s| {
                for part in 0..PARTS {
                    s.write("/bulk", part * PART, PART)?;
                    s.fdatasync("/bulk")?;
                    s.write("/table", rng.below(8000), 500)?;
                }
                Ok(())
            },
        )?;
        s.transaction(|tx| {
            tx.write("/table", 3000, 2000)?;
            Ok(End::Commit)
        })?;
    }
    Ok(())
}

/// Transactions that need a longer journal; the second one needs more than its former length.
pub fn longer_journal(s: &mut Driver, rng: &mut Rng) -> Done {
    const FOLDERS: u64 = 420;
    for round in 0..2u64 {
        s.transaction(|tx| {
            tx.mkdir(&format!("/tree{round}"))?;
            (0..FOLDERS).try_for_each(|n| tx.mkdir(&format!("/tree{round}/{n}")))?;
            Ok(End::Commit)
        })?;
        s.create(&format!("/file{round}"))?;
        s.append(&format!("/file{round}"), 1 + rng.below(5000))?;
        s.fsync(&format!("/file{round}"))?;
    }
    s.transaction(|tx| {
        (0..FOLDERS).try_for_each(|n| tx.rmdir(&format!("/tree0/{n}")))?;
        tx.rename("/tree0", "/tree1/inside")?;
        Ok(End::Commit)
    })?;
    s.create("/last")
}

/// Transactions with more data than they may have in memory; one of them is dropped.
pub fn spilled(s: &mut Driver, rng: &mut Rng) -> Done {
    // A transaction has 2 MiB of a cache of 16 MiB.
    const PARTS: u64 = 8;
    const PART: u64 = 330_000;
    s.create("/table")?;
    s.append("/table", PART)?;
    s.sync()?;
    for (round, end) in [End::Commit, End::Abort, End::Commit].into_iter().enumerate() {
        s.transaction(|tx| {
            let new = format!("/new{round}");
            tx.create(&new)?;
            tx.write("/table", rng.below(PART / 2), PART / 3)?;
            for _ in 0..PARTS {
                tx.append(&new, PART)?;
            }
            // Parts that are spilled by now are changed once more.
            tx.write("/table", rng.below(PART / 2), 3000)?;
            tx.write(&new, rng.below(PART), 3000)?;
            Ok(end)
        })?;
        if round == 1 {
            s.unlink("/new0")?;
            s.sync()?;
        }
    }
    Ok(())
}

/// Transactions with more data than the journal holds, and more names than one block of them.
pub fn large(s: &mut Driver, rng: &mut Rng) -> Done {
    for round in 0..3u64 {
        let end = if round == 1 { End::Abort } else { End::Commit };
        s.transaction(|tx| {
            let folder = format!("/tree{round}");
            tx.mkdir(&folder)?;
            for n in 0..30 {
                let path = format!("{folder}/a-file-with-a-name-of-some-length-{n}");
                tx.create(&path)?;
                tx.append(&path, rng.below(60_000))?;
            }
            // A file that is created and deleted in a transaction has no effect.
            let gone = format!("{folder}/gone");
            tx.create(&gone)?;
            tx.append(&gone, 200_000)?;
            tx.unlink(&gone)?;
            Ok(end)
        })?;
    }
    s.transaction(|tx| {
        for n in 0..20 {
            tx.unlink(&format!("/tree0/a-file-with-a-name-of-some-length-{n}"))?;
        }
        tx.rename("/tree0", "/tree2/inside")?;
        Ok(End::Commit)
    })
}
