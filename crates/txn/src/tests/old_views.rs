//! The views of transactions beside changes by others: each reads what it read at its begin,
//! although most of the versions that the changes end are not kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use xact_fs::{LiveFs, View, WriteHow};
use xact_types::{Error, Ino};

use super::ops::{Op, Rng, USER, dump, run};
use super::real_volumes::{Volume, begin};
use crate::Transaction;

/// A transaction that has only read.
struct Reader {
    tx: Transaction<LiveFs>,
    /// The tree at its begin, with times and without.
    then: [BTreeMap<String, String>; 2],
}

impl Reader {
    fn begin(base: &Arc<LiveFs>) -> Reader {
        let tx = begin(base);
        Reader { then: [dump(&**base, true), dump(&**base, false)], tx }
    }

    fn check(&self, what: &str) {
        assert_eq!(dump(&self.tx, true), self.then[0], "{what}");
    }

    /// Ends the transaction. It has read everything, so its commit must be refused if anything is
    /// different now.
    fn end(self, base: &LiveFs, what: &str) -> bool {
        self.check(what);
        let is_same = dump(base, false) == self.then[1];
        self.tx.make_node(&USER, Ino::ROOT, b"reader", 0o100644, 0).unwrap();
        let result = self.tx.commit();
        let refused = matches!(result, Err(Error::Conflict { .. }));
        assert!(refused || is_same && result.is_ok(), "{what}: {result:?}");
        if result.is_ok() {
            base.unlink(&USER, Ino::ROOT, b"reader").unwrap();
        }
        refused
    }
}

/// Blocks of a file that is overwritten block by block.
const BULK_BLOCKS: u64 = 40;

/// Random changes beside transactions that begin and end at random; with `bulk`, of a file of many
/// blocks, too.
/// Returns the number of conflicts, and of old versions that were on the volume at once.
fn changes_beside_readers(volume: &Volume, seed: u64, bulk: bool) -> (u64, u64) {
    let base = volume.open_with(1 << 20);
    let block = u64::from(base.space().unwrap().block_size);
    let file = bulk.then(|| base.make_node(&USER, Ino::ROOT, b"bulk", 0o100644, 0).unwrap().ino);
    let mut rng = Rng(seed);
    let mut readers: Vec<Reader> = Vec::new();
    let (mut refused, mut spilled) = (0, 0);
    for step in 0..600 {
        spilled = base.spilled_versions().max(spilled);
        let what = format!("seed {seed}, step {step}");
        match rng.below(20) {
            0 if readers.len() < 6 => readers.push(Reader::begin(&base)),
            1 if !readers.is_empty() => {
                let reader = readers.swap_remove(rng.below(readers.len() as u64) as usize);
                refused += u64::from(reader.end(&base, &what));
            }
            2 => {
                if let Some(reader) = readers.get(rng.below(6) as usize) {
                    reader.check(&what);
                }
            }
            3 => base.sync_all().unwrap(),
            4 => {
                // The commit of a transaction changes several items at once.
                let tx = begin(&base);
                (0..5).for_each(|_| drop(run(&tx, &Op::random(&mut rng))));
                tx.commit().unwrap();
            }
            5..=12 if let Some(file) = file => {
                let data = vec![rng.below(256) as u8; block as usize];
                base.write(file, rng.below(BULK_BLOCKS) * block, &data, WriteHow::default()).unwrap();
            }
            _ => drop(run(&*base, &Op::random(&mut rng))),
        }
    }
    for reader in readers {
        reader.check(&format!("seed {seed}, at the end"));
    }
    assert_eq!(base.version_bytes(), 0, "seed {seed}");
    base.close().unwrap();
    drop(base);
    volume.check(&format!("seed {seed}"));
    (refused, spilled)
}

#[test]
fn views_read_what_they_read_at_their_begin() {
    let kinds: [&[&str]; 3] = [&["-b", "1024"], &["-b", "4096"], &["-b", "1024", "-O", "^has_journal"]];
    let mut refused = 0;
    for seed in 0..12 {
        let volume = Volume::new(16, kinds[seed as usize % kinds.len()]);
        refused += changes_beside_readers(&volume, seed, false).0;
    }
    assert!(refused > 50, "{refused} conflicts");
}

/// The same with more old versions than memory has space for: some are on the volume.
#[test]
fn views_read_versions_on_the_volume() {
    let kinds: [&[&str]; 3] = [&["-b", "1024"], &["-b", "4096"], &["-b", "1024", "-O", "^has_journal"]];
    let (mut refused, mut spilled) = (0, 0);
    for seed in 100..112 {
        let volume = Volume::new(16, kinds[seed as usize % kinds.len()]);
        let (conflicts, blocks) = changes_beside_readers(&volume, seed, true);
        (refused, spilled) = (refused + conflicts, spilled + blocks);
    }
    assert!(refused > 50 && spilled > 100, "{refused} conflicts, {spilled} blocks");
}
