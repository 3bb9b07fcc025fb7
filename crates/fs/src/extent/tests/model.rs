//! Random changes of an extent tree agree with a model with one entry for each block.

use std::collections::BTreeMap;
use std::ops::Range;

use xact_types::{BlockNr, Error, FileBlock, Run};

use super::super::{Mapping, Progress};
use super::support::{DATA_FROM, Volume};

/// A small random generator: a failure is repeated from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32 % limit
    }
}

/// For each file block, its block, and whether it is unwritten.
type Model = BTreeMap<u32, (u64, bool)>;

struct Trial {
    volume: Volume,
    model: Model,
    random: Random,
    /// Number of file blocks used in the test.
    space: u32,
    next_data: u64,
}

impl Trial {
    fn new(seed: u64, space: u32) -> Trial {
        let random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        Trial { volume: Volume::new(), model: Model::new(), random, space, next_data: 10 * DATA_FROM }
    }

    fn range(&mut self, longest: u32) -> Range<u32> {
        let start = self.random.below(self.space);
        start..(start + 1 + self.random.below(longest)).min(self.space)
    }

    fn insert(&mut self, longest: u32) {
        let mut range = self.range(longest);
        // Limited to the hole at its start.
        if let Some((&used, _)) = self.model.range(range.clone()).next() {
            range.end = used;
        }
        if range.is_empty() {
            return;
        }
        let len = range.len() as u32;
        // Sometimes directly after the previous block, so that extents join.
        let before = range.start.checked_sub(1).and_then(|b| self.model.get(&b)).copied();
        let (start, unwritten) = match before {
            Some((block, unwritten)) if self.random.below(2) == 0 && self.is_free(block + 1, len) => {
                (block + 1, unwritten)
            }
            _ => {
                self.next_data += u64::from(self.random.below(3));
                (self.next_data, self.random.below(2) == 0)
            }
        };
        self.next_data = self.next_data.max(start + u64::from(len));
        let credits = self.volume.extents().credits_insert(&self.volume.inode, 1, 1);
        let run = Run { start: BlockNr(start), len };
        self.volume
            .change(credits, |extents, handle, inode| {
                extents.insert(handle, inode, FileBlock(range.start), run, unwritten)
            })
            .unwrap();
        for (i, at) in range.enumerate() {
            self.model.insert(at, (start + i as u64, unwritten));
        }
    }

    fn is_free(&self, start: u64, len: u32) -> bool {
        !self.model.values().any(|(block, _)| (start..start + u64::from(len)).contains(block))
    }

    fn remove(&mut self, range: Range<u32>) {
        let mut freed = Vec::new();
        let mut end = FileBlock(range.end);
        let start = FileBlock(range.start);
        let tight = self.random.below(2) == 0;
        loop {
            let credits = self.volume.extents().credits_remove(&self.volume.inode);
            self.volume.test_engine.set_max_credits(if tight { credits } else { u32::MAX });
            let progress = self
                .volume
                .change(credits, |extents, handle, inode| {
                    extents.remove(handle, inode, start..end, &mut |_, run| {
                        freed.push(run);
                        Ok(())
                    })
                })
                .unwrap();
            match progress {
                Progress::Done => break,
                Progress::Stopped(at) => {
                    assert!(at < end, "no progress");
                    end = at;
                }
            }
        }
        self.volume.test_engine.set_max_credits(u32::MAX);
        let mut blocks: Vec<u64> =
            freed.iter().flat_map(|run| run.start.0..run.start.0 + u64::from(run.len)).collect();
        blocks.sort_unstable();
        let gone: Vec<u32> = self.model.range(range).map(|(&at, _)| at).collect();
        let mut expected: Vec<u64> = gone.iter().map(|at| self.model.remove(at).unwrap().0).collect();
        expected.sort_unstable();
        assert_eq!(blocks, expected, "freed blocks");
    }

    fn set_written(&mut self, range: Range<u32>) {
        let tight = self.random.below(2) == 0;
        let mut start = FileBlock(range.start);
        loop {
            let credits = self.volume.extents().credits_set_written(&self.volume.inode);
            self.volume.test_engine.set_max_credits(if tight { credits } else { u32::MAX });
            let progress = self
                .volume
                .change(credits, |extents, handle, inode| {
                    extents.set_written(handle, inode, start..FileBlock(range.end))
                })
                .unwrap();
            match progress {
                Progress::Done => break,
                Progress::Stopped(at) => {
                    assert!(at > start, "no progress");
                    start = at;
                }
            }
        }
        self.volume.test_engine.set_max_credits(u32::MAX);
        for (_, (_, unwritten)) in self.model.range_mut(range) {
            *unwritten = false;
        }
    }

    /// Compares everything; returns the depth.
    fn check(&mut self) -> u16 {
        let (extents, depth) = self.volume.check();
        let mut found = Model::new();
        for e in &extents {
            for i in 0..e.run.len {
                found.insert(e.at.0 + i, (e.run.start.0 + u64::from(i), e.unwritten));
            }
        }
        assert!(found == self.model, "the tree's extents are those of the model");
        for _ in 0..20 {
            let at = self.random.below(self.space);
            let mapping = self.volume.extents().map(&self.volume.inode, FileBlock(at)).unwrap();
            let expected = extents.iter().find(|e| e.end().0 > at);
            let expected = match expected {
                Some(e) if e.at.0 <= at => {
                    let part = e.part(FileBlock(at), e.end()).run;
                    match e.unwritten {
                        true => Mapping::Unwritten { start: part.start, len: part.len },
                        false => Mapping::Written { start: part.start, len: part.len },
                    }
                }
                next => Mapping::Hole { len: next.map_or(u32::MAX, |e| e.at.0) - at },
            };
            assert_eq!(mapping, expected, "at {at}");
        }
        let range = self.range(self.space);
        let mut seen = Vec::new();
        self.volume
            .extents()
            .iterate(&self.volume.inode, FileBlock(range.start)..FileBlock(range.end), &mut |e| {
                seen.push(e);
                Ok(true)
            })
            .unwrap();
        let overlapping: Vec<_> =
            extents.into_iter().filter(|e| e.at.0 < range.end && e.end().0 > range.start).collect();
        assert_eq!(seen, overlapping, "extents in {range:?}");
        depth
    }
}

#[test]
fn random_changes_agree_with_the_model() {
    for seed in 1..=6 {
        println!("seed {seed}");
        let mut run = Trial::new(seed, 6000);
        let mut deepest = 0;
        for step in 0..6000 {
            match run.random.below(100) {
                0..50 => run.insert(3),
                50..60 => run.insert(40),
                60..80 => {
                    let range = run.range(4);
                    run.set_written(range);
                }
                80..85 => {
                    let range = run.range(100);
                    run.set_written(range);
                }
                85..98 => {
                    let range = run.range(4);
                    run.remove(range);
                }
                98 => {
                    let range = run.range(300);
                    run.remove(range);
                }
                _ => (),
            }
            if step % 50 == 0 {
                deepest = deepest.max(run.check());
            }
        }
        assert!(deepest >= 2, "the tree got only {deepest} deep");
        run.remove(0..u32::MAX);
        assert_eq!(run.check(), 0);
        assert_eq!(run.volume.inode.sectors(&run.volume.sb), 0);
    }
}

#[test]
fn trees_grow_deep_and_become_flat_again() {
    let mut run = Trial::new(1, 80_000);
    let mut deepest = 0;
    // Every second block, in three orders: at the end, at the start, and scattered.
    let orders: [&dyn Fn(u32) -> u32; 3] = [&|i| i, &|i| 39_999 - i, &|i| i * 7919 % 40_000];
    for order in orders {
        for i in 0..40_000 {
            let at = 2 * order(i);
            let credits = run.volume.extents().credits_insert(&run.volume.inode, 1, 1);
            let block = 10 * DATA_FROM + 3 * u64::from(at);
            run.volume
                .change(credits, |extents, handle, inode| {
                    let one = Run { start: BlockNr(block), len: 1 };
                    extents.insert(handle, inode, FileBlock(at), one, false)
                })
                .unwrap();
            run.model.insert(at, (block, false));
        }
        deepest = deepest.max(run.check());
        while run.model.len() > 100 {
            let range = run.range(3000);
            run.remove(range);
        }
        run.check();
        run.remove(0..80_000);
        assert_eq!(run.check(), 0);
    }
    assert!(deepest >= 3, "the tree got only {deepest} deep");
}

#[test]
fn long_runs_become_several_extents() {
    let mut run = Trial::new(1, 1);
    for (unwritten, at) in [(false, 0), (true, 200_000)] {
        let credits = run.volume.extents().credits_insert(&run.volume.inode, 4, 4);
        run.volume
            .change(credits, |extents, handle, inode| {
                let long = Run { start: BlockNr(1_000_000 + u64::from(at)), len: 100_000 };
                extents.insert(handle, inode, FileBlock(at), long, unwritten)
            })
            .unwrap();
        let (extents, _) = run.volume.check();
        let lens: Vec<u32> = extents.iter().filter(|e| e.at.0 >= at).map(|e| e.run.len).collect();
        let most = if unwritten { 32767 } else { 32768 };
        assert_eq!(lens, [most, most, most, 100_000 - 3 * most]);
    }
}

#[test]
fn without_space_for_a_node_nothing_changes() {
    let mut run = Trial::new(3, 400);
    *run.volume.blocks.limit.borrow_mut() = Some(1);
    let mut failed = 0;
    for at in 0..200 {
        let before = (run.volume.inode.clone(), run.volume.check().0);
        let result = run.volume.change(20, |extents, handle, inode| {
            let one = Run { start: BlockNr(10 * DATA_FROM + 3 * u64::from(at)), len: 1 };
            extents.insert(handle, inode, FileBlock(2 * at), one, false)
        });
        match result {
            Ok(()) => assert!(at < 84),
            Err(Error::NoSpace) => {
                failed += 1;
                assert!((run.volume.inode.clone(), run.volume.check().0) == before);
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(failed, 200 - 84);
}
