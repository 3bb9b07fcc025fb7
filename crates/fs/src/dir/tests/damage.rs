//! A damaged directory gives a clear error or the right result, never a panic or a hang.

use xact_consistency::{BlockRef, Handle};
use xact_layout::feature::compat;
use xact_layout::inode::flag;
use xact_layout::put_u32;
use xact_types::{BlockNr, Error, Ino, Result};

use super::super::{Dir, DirBlocks};
use super::support::{DEFAULT, GENERATION, Kind, OWN, Random, SMALL, Sample};
use crate::api::{Entry, FileKind};

const ENTRY: Entry = Entry { ino: Ino(5), kind: FileKind::Regular };
/// A volume without checksums, which would detect the damage first.
const OPEN: Kind = Kind { csum: false, ..SMALL };

fn name(i: usize) -> Vec<u8> {
    format!("{i}-{}", "x".repeat(i % 100)).into_bytes()
}

fn filled(kind: Kind, names: usize) -> Sample {
    let mut sample = Sample::new(kind, 1000);
    for i in 0..names {
        sample.add(&name(i), ENTRY).unwrap();
    }
    sample
}

/// Contents to restore later.
fn save(sample: &Sample) -> Vec<(BlockNr, BlockRef)> {
    sample.blocks.map.iter().map(|&block| (block, sample.engine.read(block).unwrap())).collect()
}

fn damage(sample: &Sample, at: u32, change: impl FnOnce(&mut [u8])) {
    let mut h = Handle::begin(&sample.engine, 1).unwrap();
    h.update(sample.blocks.map[at as usize], change).unwrap();
}

fn restore(sample: &mut Sample, saved: &[(BlockNr, BlockRef)], indexed: bool) {
    let appended = sample.blocks.map.split_off(saved.len());
    sample.blocks.spare.extend(appended.into_iter().rev());
    sample.blocks.indexed = indexed;
    let mut h = Handle::begin(&sample.engine, saved.len() as u32).unwrap();
    for (block, contents) in saved {
        h.create(*block, contents.clone()).unwrap();
    }
}

fn what<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
    match result {
        Err(Error::Corrupt(corruption)) => corruption.what,
        other => panic!("damage was not seen: {other:?}"),
    }
}

/// With checksums, every changed bit of a block in use is detected or has no effect.
#[test]
fn every_flipped_bit_is_seen_or_without_effect() {
    for names in [10, 800] {
        let mut sample = filled(SMALL, names);
        let (saved, indexed) = (save(&sample), sample.blocks.indexed);
        let good = sample.list().unwrap();
        let mut random = Random::new(1);
        let mut seen = 0;
        for _ in 0..2000 {
            let at = random.below(saved.len() as u32);
            let (byte, bit) = (random.below(1024) as usize, random.below(8));
            damage(&sample, at, |bytes| bytes[byte] ^= 1 << bit);
            match sample.list() {
                Ok(list) => assert!(list == good, "bit {bit} of byte {byte} of block {at}"),
                Err(Error::Corrupt(_)) => seen += 1,
                Err(other) => panic!("{other}"),
            }
            restore(&mut sample, &saved, indexed);
        }
        assert!(seen > 1900, "{seen} seen");
    }
}

/// Without checksums, damage may have any result except a panic, a hang or another kind of error.
#[test]
fn random_damage_causes_no_panic_or_hang() {
    for (names, seed) in [(20, 1), (400, 2), (6000, 3)] {
        let mut sample = filled(OPEN, names);
        let (saved, indexed) = (save(&sample), sample.blocks.indexed);
        let mut random = Random::new(seed);
        for round in 0..600 {
            for _ in 0..1 + random.below(6) {
                // Most damage hits the index and the first entries of a block.
                let at = if random.below(2) == 0 { 0 } else { random.below(saved.len() as u32) };
                let limit = if random.below(2) == 0 { 48 } else { 1024 };
                let byte = random.below(limit) as usize;
                let value = random.below(256) as u8;
                damage(&sample, at, |bytes| bytes[byte] = if round % 2 == 0 { value } else { value % 4 });
            }
            let tolerate = |result: Result<()>| match result {
                Ok(()) | Err(Error::Corrupt(_) | Error::NoSpace | Error::DoesNotFit(_) | Error::Posix(_)) => {
                }
                Err(other) => panic!("{other}"),
            };
            tolerate(sample.list_some(0, 10_000).map(drop));
            tolerate(sample.dir().is_empty(&sample.blocks).map(drop));
            tolerate(sample.set_parent(Ino(9)));
            for i in 0..40 {
                tolerate(sample.lookup(&name(i)).map(drop));
                tolerate(sample.remove(&name(i * 3)));
                tolerate(sample.add(&random.name(200), ENTRY));
            }
            tolerate(sample.list_some(0, 10_000).map(drop));
            restore(&mut sample, &saved, indexed);
        }
    }
}

/// Entry `i` of the index root: hash, then block.
const fn branch(i: usize) -> usize {
    32 + 8 * i
}

#[test]
fn a_bad_root_is_refused() {
    let cases: [(usize, u8, &str); 9] = [
        (0, 13, "directory does not start with an entry for itself"),
        (4, 16, "directory entry is too short for its name"),
        (16, 0xF0, "root of the hash index does not look like an empty directory"),
        (24, 1, "header of the hash index is invalid"),
        (28, 6, "unknown hash of a directory"),
        (29, 12, "header of the hash index is invalid"),
        (30, 2, "hash index is too deep"),
        (32, 100, "size of the hash index does not fit the block"),
        (34, 0, "number of entries of the hash index is out of range"),
    ];
    let mut sample = filled(OPEN, 300);
    let saved = save(&sample);
    assert_eq!(sample.depth(), 1);
    for (byte, value, expected) in cases {
        damage(&sample, 0, |bytes| {
            bytes[byte] = value;
            if byte == 4 {
                bytes[6] = 16;
            }
            if byte == 16 {
                // `..` no longer covers the index, which then has entries of its own.
                bytes[17] = 2;
            }
        });
        let expected_is = |found: &'static str| assert_eq!(found, expected, "byte {byte}");
        expected_is(what(sample.lookup(b"any")));
        expected_is(what(sample.list()));
        expected_is(what(sample.add(b"any", ENTRY)));
        expected_is(what(sample.remove(b"any")));
        expected_is(what(sample.set_parent(Ino(9))));
        expected_is(what(sample.dir().is_empty(&sample.blocks)));
        restore(&mut sample, &saved, true);
    }
}

#[test]
fn branches_to_wrong_blocks_are_refused() {
    let leads = |sample: &Sample, i: usize, block: u32| {
        damage(sample, 0, |bytes| put_u32(bytes, branch(i) + 4, block));
    };
    // An index of one level.
    let mut sample = filled(OPEN, 300);
    let saved = save(&sample);
    leads(&sample, 0, 5000);
    assert_eq!(what(sample.list()), "hash index leads out of the directory");
    leads(&sample, 0, 0);
    assert_eq!(what(sample.list()), "hash index leads to itself");
    restore(&mut sample, &saved, true);
    let other = {
        let dir = sample.dir();
        let (_, path) = dir.probe(&sample.blocks, |_| u32::MAX).unwrap();
        path.leaf().0
    };
    leads(&sample, 1, other);
    assert_eq!(what(sample.list()), "directory entry is in the wrong leaf of the hash index");
    restore(&mut sample, &saved, true);
    damage(&sample, 0, |bytes| bytes.copy_within(branch(3)..branch(4), branch(1)));
    assert!(matches!(
        what(sample.list()),
        "hash index is out of order" | "directory entry is in the wrong leaf of the hash index"
    ));
    restore(&mut sample, &saved, true);

    // An index of two levels.
    let mut sample = filled(OPEN, 6000);
    assert_eq!(sample.depth(), 2);
    let saved = save(&sample);
    let (node, leaf) = {
        let dir = sample.dir();
        let (_, path) = dir.probe(&sample.blocks, |_| 0).unwrap();
        (path.last().file_block, path.leaf())
    };
    let is_no_node = "node of the hash index does not look like an empty block";
    leads(&sample, 0, 0);
    assert_eq!(what(sample.list()), is_no_node);
    leads(&sample, 0, leaf.0);
    assert_eq!(what(sample.list()), is_no_node);
    restore(&mut sample, &saved, true);
    // A node as its own leaf, and the next node as a leaf: without checksums it looks like one.
    let next_node = {
        let dir = sample.dir();
        let (_, path) = dir.probe(&sample.blocks, |_| 0).unwrap();
        path.step(0).index.block(&path.step(0).bytes, 1)
    };
    let low_hash = (0..)
        .map(name)
        .find(|name| sample.dir().key(&sample.blocks, name).unwrap() >> 32 < 0x10_0000)
        .expect("one of many names");
    for target in [node, next_node] {
        damage(&sample, node.0, |bytes| {
            (0..126).for_each(|i| put_u32(bytes, 8 + 8 * i + 4, target.0));
        });
        assert_eq!(what(sample.add(&low_hash, ENTRY)), "hash index has one of its own blocks as a leaf");
        restore(&mut sample, &saved, true);
    }
}

/// An empty leaf is valid anywhere, so an index can point at it many times; a walk must still end.
#[test]
fn endless_walks_end() {
    let mut sample = filled(Kind { hash_version: 0, flags: 2, ..OPEN }, 6000);
    let list: Vec<_> = sample.list().unwrap().into_keys().collect();
    for name in &list {
        sample.remove(name).unwrap();
    }
    let dir = sample.dir();
    let (_, path) = dir.probe(&sample.blocks, |_| 0).unwrap();
    let (node, leaf) = (path.last().file_block, path.leaf());
    let count = path.step(0).index.count();
    let blocks = sample.blocks.count() as usize;
    assert!(path.depth() == 2 && count * 126 > blocks);
    drop(path);
    damage(&sample, 0, |bytes| {
        (0..123).for_each(|i| put_u32(bytes, branch(i) + 4, node.0));
        (1..123).for_each(|i| put_u32(bytes, branch(i), 1));
        bytes[34] = 123;
    });
    damage(&sample, node.0, |bytes| {
        (0..126).for_each(|i| put_u32(bytes, 8 + 8 * i + 4, leaf.0));
        (1..126).for_each(|i| put_u32(bytes, 8 + 8 * i, 1));
        bytes[10] = 126;
    });
    assert_eq!(what(sample.list()), "hash index leads to a block more than once");
}

#[test]
fn entries_with_invalid_names_are_not_listed() {
    for bad in [&b".."[..], b"a/b", b"a\0b"] {
        let mut sample = Sample::new(OPEN, 10);
        sample.add(&vec![b'n'; bad.len()], ENTRY).unwrap();
        damage(&sample, 0, |bytes| bytes[32..32 + bad.len()].copy_from_slice(bad));
        assert_eq!(what(sample.list()), "directory entry with an invalid name");
    }
}

#[test]
fn directories_without_blocks_or_entries_are_refused() {
    let mut sample = Sample::new(DEFAULT, 10);
    sample.blocks.map.clear();
    for result in [sample.lookup(b"a").map(drop), sample.list().map(drop), sample.add(b"a", ENTRY)] {
        assert_eq!(what(result), "directory has no blocks");
    }
}

#[test]
fn kinds_of_directories_that_are_refused() {
    let sample = Sample::new(DEFAULT, 10);
    let open = |flags| Dir::new(&sample.sb, &sample.engine, OWN, GENERATION, flags).map(drop);
    for (flags, feature) in [(flag::ENCRYPT, "encrypt"), (flag::CASEFOLD, "casefold")] {
        let error = open(flags).unwrap_err();
        assert!(matches!(&error, Error::Unsupported(what) if what.contains(feature)), "{error}");
    }
    assert!(open(flag::INDEX).is_ok());
    let mut sb = sample.sb.clone();
    sb.set_feature_compat(sb.feature_compat() & !compat::DIR_INDEX);
    let result = Dir::new(&sb, &sample.engine, OWN, GENERATION, flag::INDEX).map(drop);
    assert_eq!(what(result), "directory has a hash index on a volume without dir_index");
}
