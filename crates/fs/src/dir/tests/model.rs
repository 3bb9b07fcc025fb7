//! Random changes of a directory agree with a map in memory.

use std::collections::BTreeMap;

use xact_layout::dirhash::{DirHasher, HashVersion};
use xact_types::{Errno, Error, Ino};

use super::super::DirEntry;
use super::support::{DEFAULT, Kind, PARENT, Random, SMALL, Sample};
use crate::api::{Entry, FileKind};

type Model = BTreeMap<Vec<u8>, Entry>;

struct Trial {
    sample: Sample,
    kind: Kind,
    model: Model,
    random: Random,
    longest: u32,
}

impl Trial {
    fn new(kind: Kind, seed: u64, longest: u32) -> Trial {
        let sample = Sample::new(kind, 20_000);
        Trial { sample, kind, model: Model::new(), random: Random::new(seed), longest }
    }

    fn seen(&self, entry: Entry) -> DirEntry {
        DirEntry { ino: entry.ino, kind: self.kind.types.then_some(entry.kind) }
    }

    fn some_name(&mut self) -> Option<Vec<u8>> {
        let probe = self.random.name(self.longest);
        self.model.range(probe..).next().or_else(|| self.model.iter().next()).map(|(name, _)| name.clone())
    }

    fn add(&mut self, name: Vec<u8>) {
        assert_eq!(self.sample.lookup(&name).unwrap(), self.model.get(&name).map(|&e| self.seen(e)));
        if self.model.contains_key(&name) {
            return;
        }
        let entry = self.random.entry();
        self.sample.add(&name, entry).unwrap();
        assert_eq!(self.sample.lookup(&name).unwrap(), Some(self.seen(entry)));
        self.model.insert(name, entry);
    }

    /// One random change; `growth` of ten steps add a name.
    fn step(&mut self, growth: u32) {
        if self.random.below(10) < growth {
            let name = self.random.name(self.longest);
            return self.add(name);
        }
        let Some(name) = self.some_name() else { return };
        if self.random.below(3) == 0 {
            let entry = self.random.entry();
            self.sample.set(&name, entry).unwrap();
            self.model.insert(name, entry);
        } else {
            self.sample.remove(&name).unwrap();
            assert_eq!(self.sample.lookup(&name).unwrap(), None);
            self.model.remove(&name);
        }
    }

    fn check(&self) {
        let expected: BTreeMap<_, _> = self.model.iter().map(|(n, &e)| (n.clone(), self.seen(e))).collect();
        assert!(self.sample.list().unwrap() == expected, "listing");
        for (name, &entry) in &self.model {
            assert_eq!(self.sample.lookup(name).unwrap(), Some(self.seen(entry)));
        }
        assert_eq!(self.sample.dir().is_empty(&self.sample.blocks).unwrap(), self.model.is_empty());
        assert_eq!(self.sample.dir().parent(&self.sample.blocks).unwrap(), PARENT);
        if self.sample.blocks.indexed {
            self.sample.check_index();
        }
    }

    fn run(&mut self, steps: u32) {
        for (growth, steps) in [(8, steps), (5, steps / 2), (1, steps), (9, steps / 2)] {
            for _ in 0..steps {
                self.step(growth);
            }
            self.check();
        }
        while let Some(name) = self.some_name() {
            self.sample.remove(&name).unwrap();
            self.model.remove(&name);
        }
        self.check();
        for _ in 0..steps / 4 {
            self.step(8);
        }
        self.check();
    }
}

#[test]
fn random_changes_with_an_index() {
    for (seed, csum) in [(1, true), (2, false)] {
        for (hash_version, flags) in [(0, 1), (1, 1), (1, 2), (2, 2), (2, 0)] {
            let kind = Kind { csum, hash_version, flags, ..SMALL };
            let mut trial = Trial::new(kind, seed + u64::from(hash_version), 30);
            trial.run(3000);
            assert!(trial.sample.depth() >= 1);
        }
    }
}

#[test]
fn random_changes_of_long_names_two_levels_deep() {
    let mut trial = Trial::new(SMALL, 5, 255);
    trial.run(6000);
    assert_eq!(trial.sample.depth(), 2);
    // Index nodes were split, too.
    assert!(trial.sample.dir().probe(&trial.sample.blocks, |_| 0).unwrap().1.step(0).index.count() > 2);
}

#[test]
fn random_changes_without_an_index() {
    for (seed, csum, types) in [(1, true, true), (2, false, true), (3, true, false)] {
        let mut trial = Trial::new(Kind { csum, types, dir_index: false, ..SMALL }, seed, 60);
        trial.run(800);
        assert_eq!(trial.sample.depth(), 0);
    }
    Trial::new(DEFAULT, 4, 20).run(100);
}

/// Names of length 31 and 32 with the same hash: the longer one ends with the byte that pads the
/// shorter one. So splits often fall between names of one hash.
#[test]
fn pairs_of_names_with_one_hash() {
    for csum in [true, false] {
        let mut trial = Trial::new(Kind { csum, ..SMALL }, 6, 30);
        for i in 0..4000 {
            let short = format!("a name of thirty-one bytes {i:04}").into_bytes();
            let mut long = short.clone();
            long.insert(28, 31);
            let key = |name: &[u8]| trial.sample.dir().key(&trial.sample.blocks, name).unwrap();
            assert!(key(&short) >> 32 == key(&long) >> 32 && key(&short) != key(&long));
            trial.add(short);
            trial.add(long);
        }
        assert!(trial.sample.check_index() > 20);
        trial.check();
        for i in (0..4000).step_by(2) {
            let name = format!("a name of thirty-one bytes {i:04}").into_bytes();
            trial.sample.remove(&name).unwrap();
            trial.model.remove(&name);
        }
        trial.check();
    }
}

/// Names with the same legacy hash. The state before the last two bytes is known, so the last byte
/// is computed from the last but one.
fn names_of_one_legacy_hash(target: u32, count: usize) -> Vec<Vec<u8>> {
    const FACTOR: u32 = 7_152_373;
    let step = |(h0, h1): (u32, u32), byte: u8| {
        let hash = h1.wrapping_add(h0 ^ u32::from(byte).wrapping_mul(FACTOR));
        (if hash & 1 << 31 != 0 { hash.wrapping_sub(0x7FFF_FFFF) } else { hash }, h0)
    };
    // By Newton's method, modulo 2^32.
    let inverse = (0..5).fold(FACTOR, |x, _| x.wrapping_mul(2u32.wrapping_sub(FACTOR.wrapping_mul(x))));
    let begin = "x".repeat(200);
    let begun = begin.bytes().fold((0x12A3_FE2D, 0x37AB_E8F9), step);
    let mut names = Vec::new();
    for i in 0u32.. {
        let middle = i.to_string();
        let state = middle.bytes().fold(begun, step);
        for byte in (1..=255u8).filter(|&b| b != b'/') {
            let (h0, h1) = step(state, byte);
            for wanted in [target, target.wrapping_add(0x7FFF_FFFF)] {
                let last = (wanted.wrapping_sub(h1) ^ h0).wrapping_mul(inverse);
                if (1..256).contains(&last) && last != 47 && step((h0, h1), last as u8).0 == target {
                    names.push([begin.as_bytes(), middle.as_bytes(), &[byte, last as u8]].concat());
                }
            }
        }
        if names.len() >= count {
            return names;
        }
    }
    unreachable!("there are enough numbers")
}

#[test]
fn one_hash_over_many_leaves() {
    let kind = Kind { hash_version: 0, flags: 2, ..SMALL };
    let mut trial = Trial::new(kind, 7, 40);
    for _ in 0..200 {
        let name = trial.random.name(40);
        trial.add(name);
    }
    let names = names_of_one_legacy_hash(0x1234_5678, 24);
    for name in &names {
        trial.add(name.clone());
    }
    assert!(trial.sample.check_index() >= 4);
    trial.check();
    for (i, name) in names.iter().enumerate() {
        if i % 3 != 0 {
            trial.sample.remove(name).unwrap();
            trial.model.remove(name);
        }
    }
    trial.check();
    for _ in 0..500 {
        trial.step(7);
    }
    trial.check();
}

/// The largest hash is the kernel's end mark, and no name has it.
#[test]
fn no_name_has_the_hash_of_the_end() {
    let hasher = DirHasher::from_parts(HashVersion::Legacy, true, [0; 4]);
    for name in names_of_one_legacy_hash(0x7FFF_FFFF, 1) {
        assert_eq!(hasher.hash(&name).major, 0xFFFF_FFFC);
    }
}

#[test]
fn a_missing_name_gives_enoent() {
    for blocks in [3, 2000] {
        let mut trial = Trial::new(SMALL, 8, 30);
        for _ in 0..blocks {
            trial.step(10);
        }
        let entry = Entry { ino: Ino(5), kind: FileKind::Fifo };
        let is_enoent = |result| matches!(result, Err(Error::Posix(Errno::ENOENT)));
        assert!(is_enoent(trial.sample.remove(b"missing")));
        assert!(is_enoent(trial.sample.set(b"missing", entry)));
        trial.check();
    }
}

#[test]
fn the_parent_can_be_changed() {
    for names in [0, 500] {
        let mut trial = Trial::new(SMALL, 9, 30);
        for _ in 0..names {
            trial.step(10);
        }
        trial.sample.set_parent(Ino(4711)).unwrap();
        assert_eq!(trial.sample.dir().parent(&trial.sample.blocks).unwrap(), Ino(4711));
        trial.sample.set_parent(PARENT).unwrap();
        trial.check();
    }
}

/// Whichever append fails, the directory stays consistent and keeps its names.
#[test]
fn without_space_nothing_changes() {
    let mut failures = 0;
    for limit in 1..200 {
        let mut trial = Trial::new(SMALL, 10, 250);
        let surplus = trial.sample.blocks.spare.len() - limit;
        trial.sample.blocks.spare.drain(..surplus);
        loop {
            let name = trial.random.name(250);
            let entry = trial.random.entry();
            match trial.sample.add(&name, entry) {
                Ok(()) => trial.model.insert(name, entry),
                Err(Error::NoSpace) => break,
                Err(other) => panic!("{other}"),
            };
        }
        failures += 1;
        trial.check();
    }
    assert_eq!(failures, 199);
}

/// With 1 KiB blocks, an index of two levels is limited, as in the kernel.
#[test]
fn a_full_index_returns_does_not_fit() {
    let mut sample = Sample::new(SMALL, 20_000);
    let entry = Entry { ino: Ino(5), kind: FileKind::Regular };
    let tail = "x".repeat(245);
    let mut count = 0;
    let error = loop {
        let name = format!("{count:010}{tail}");
        let room = sample.dir().check_name_fits(&sample.blocks, name.as_bytes());
        match sample.add(name.as_bytes(), entry) {
            Ok(()) => count += 1,
            Err(error) => {
                assert!(matches!(room, Err(Error::DoesNotFit(_))), "the check predicts it");
                break error;
            }
        }
        assert!(room.is_ok(), "the check is not too early");
    };
    assert!(matches!(error, Error::DoesNotFit(_)), "{error}");
    assert!(!sample.blocks.spare.is_empty() && count > 15_000, "{count} names");
    sample.check_index();
    assert_eq!(sample.list().unwrap().len(), count);
}

/// With `large_dir`, the index grows beyond two levels.
#[test]
fn an_index_three_levels_deep() {
    let mut sample = Sample::new(Kind { large: true, ..SMALL }, 60_000);
    let entry = Entry { ino: Ino(5), kind: FileKind::Regular };
    let tail = "x".repeat(245);
    let name = |count: usize| format!("{count:010}{tail}").into_bytes();
    const COUNT: usize = 60_000;
    for count in 0..COUNT {
        sample.dir().check_name_fits(&sample.blocks, &name(count)).unwrap();
        sample.add(&name(count), entry).unwrap();
    }
    assert_eq!(sample.depth(), 3);
    sample.check_index();
    assert_eq!(sample.list().unwrap().len(), COUNT);
    for count in (0..COUNT).step_by(97) {
        assert!(sample.lookup(&name(count)).unwrap().is_some(), "{count}");
    }
}

/// The cost of a name does not grow with their number.
#[test]
fn a_hundred_thousand_names() {
    let mut sample = Sample::new(DEFAULT, 3000);
    let entry = Entry { ino: Ino(5), kind: FileKind::Regular };
    let mut blocks = Vec::new();
    for part in 0..10 {
        let before = sample.blocks.looked_up.get();
        for i in 0..10_000 {
            let name = format!("file-number-{}", part * 10_000 + i);
            assert_eq!(sample.lookup(name.as_bytes()).unwrap(), None);
            sample.add(name.as_bytes(), entry).unwrap();
        }
        blocks.push(sample.blocks.looked_up.get() - before);
    }
    sample.check_index();
    assert_eq!(sample.list().unwrap().len(), 100_000);
    // The index now has two levels, and had one before.
    assert!(blocks[9] <= blocks[1] * 2, "blocks read for each 10,000 names: {blocks:?}");
}
