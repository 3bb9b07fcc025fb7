//! An interrupted listing lists each name once, while the directory changes in between.

use std::collections::{BTreeMap, BTreeSet};

use xact_types::Ino;

use super::support::{DEFAULT, Kind, Random, SMALL, Sample};
use crate::api::{Entry, FileKind};

const ENTRY: Entry = Entry { ino: Ino(5), kind: FileKind::Regular };

/// Lists in portions; between them, names that are not in `kept` are added and removed.
fn interrupted(kind: Kind, names: u32, seed: u64) {
    let mut random = Random::new(seed);
    let mut sample = Sample::new(kind, 4000);
    let mut kept = BTreeSet::new();
    let mut others = BTreeSet::new();
    while kept.len() < names as usize {
        let name = random.name(60);
        if sample.lookup(&name).unwrap().is_none() {
            sample.add(&name, ENTRY).unwrap();
            if random.below(2) == 0 {
                kept.insert(name)
            } else {
                others.insert(name)
            };
        }
    }
    let mut listed: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let portion = sample.list_some(cookie, 1 + random.below(40) as usize).unwrap();
        let Some((_, _, next)) = portion.last() else { break };
        assert!(*next > cookie, "a listing advances");
        cookie = *next;
        for (name, ..) in portion {
            *listed.entry(name).or_default() += 1;
        }
        for _ in 0..random.below(30) {
            if random.below(3) == 0 {
                let probe = random.name(60);
                if let Some(name) = others.range(probe..).next().cloned() {
                    sample.remove(&name).unwrap();
                    others.remove(&name);
                }
            } else {
                let name = random.name(60);
                if sample.lookup(&name).unwrap().is_none() {
                    sample.add(&name, ENTRY).unwrap();
                    others.insert(name);
                }
            }
        }
    }
    for name in &kept {
        assert_eq!(listed.get(name), Some(&1), "a name that existed throughout");
    }
    assert!(listed.values().all(|&count| count == 1), "no name is listed twice");
}

#[test]
fn interrupted_listings_while_the_directory_changes() {
    for seed in 1..6 {
        interrupted(SMALL, 1500, seed);
        interrupted(Kind { hash_version: 0, ..SMALL }, 1500, seed);
        interrupted(Kind { hash_version: 2, csum: false, flags: 2, ..SMALL }, 1500, seed);
        interrupted(Kind { dir_index: false, ..SMALL }, 300, seed);
        // The directory gets an index during the listing.
        interrupted(DEFAULT, 40, seed);
    }
}

/// As `rm -r` does: list some names, remove them, continue.
#[test]
fn removing_while_listing_leaves_nothing() {
    for kind in [SMALL, Kind { dir_index: false, ..SMALL }] {
        let mut sample = Sample::new(kind, 1000);
        for i in 0..2000 {
            sample.add(format!("some name {i}").as_bytes(), ENTRY).unwrap();
        }
        let mut cookie = 0;
        loop {
            let portion = sample.list_some(cookie, 50).unwrap();
            let Some((_, _, next)) = portion.last() else { break };
            cookie = *next;
            for (name, ..) in &portion {
                sample.remove(name).unwrap();
            }
        }
        assert!(sample.dir().is_empty(&sample.blocks).unwrap());
    }
}

/// A refused entry is not consumed, names come in the order of their keys, and a cookie leads to
/// its key.
#[test]
fn cookies_are_keys() {
    for kind in [SMALL, Kind { dir_index: false, ..SMALL }] {
        let mut sample = Sample::new(kind, 1000);
        for i in 0..1000 {
            sample.add(format!("{i}").as_bytes(), ENTRY).unwrap();
        }
        let all = sample.list_some(0, usize::MAX).unwrap();
        assert_eq!(all.len(), 1000);
        assert_eq!(sample.list_some(2, usize::MAX).unwrap(), all);
        let dir = sample.dir();
        for (i, (name, _, next)) in all.iter().enumerate() {
            let key = dir.key(&sample.blocks, name).unwrap();
            assert!((3..*next).contains(&key));
            assert_eq!(sample.list_some(key, 2).unwrap(), all[i..(i + 2).min(1000)]);
            assert_eq!(sample.list_some(*next, 2).unwrap(), all[i + 1..(i + 3).min(1000)]);
        }
        assert!(sample.list_some(u64::MAX, 1).unwrap().is_empty());
        assert!(sample.list_some(i64::MAX as u64, 1).unwrap().is_empty());
    }
}
