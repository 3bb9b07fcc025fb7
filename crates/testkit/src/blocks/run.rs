//! A run of a workload: random operations on the engine.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

use parking_lot::Mutex;
use xact_consistency::{Engine, Handle};
use xact_types::BlockNr;

use super::contents::{BlockUse, ForgedPart, contents};
use super::history::{BlockHistory, Step};
use super::log_place::LogPlace;
use super::{BLOCK_BYTES, BlockWorkload, JBD2_MAGIC, POOL_START, ROOT, text};
use crate::device::SimDevice;
use crate::rng::Rng;

pub(super) struct Run<'a> {
    pub workload: &'a BlockWorkload,
    pub device: Arc<SimDevice>,
    pub engine: Arc<Engine>,
    pub seed: u64,
    pub rng: Rng,
    pub uses: BTreeMap<u64, BlockUse>,
    /// Blocks whose freeing is durable.
    pub free: Arc<Mutex<Vec<u64>>>,
    pub history: BlockHistory,
    pub generation: u32,
    /// Sequence number of the last commit of forged transactions.
    pub forged: Option<u32>,
}

impl Run<'_> {
    fn pick(&mut self, wanted: impl Fn(BlockUse) -> bool) -> Option<u64> {
        let list: Vec<u64> =
            self.uses.iter().filter(|(b, c)| **b != ROOT && wanted(**c)).map(|(b, _)| *b).collect();
        (!list.is_empty()).then(|| *self.rng.pick(&list))
    }

    fn take_free(&mut self) -> Option<u64> {
        let mut free = self.free.lock();
        let index = (!free.is_empty()).then(|| self.rng.below(free.len() as u64) as usize)?;
        Some(free.swap_remove(index))
    }

    fn generation(&mut self) -> u32 {
        self.generation += 1;
        self.generation
    }

    fn meta(&mut self) -> BlockUse {
        BlockUse::Meta { generation: self.generation(), disguised: self.rng.one_in(4) }
    }

    /// One handle that changes the root and the given blocks.
    pub fn step(&mut self, changes: Vec<(u64, BlockUse)>) -> Result<(), String> {
        let root = BlockUse::Meta { generation: self.generation(), disguised: false };
        let began = self.device.tick();
        // Data is written first, and referred to only then.
        for &(block, used) in &changes {
            if let BlockUse::Data { .. } = used {
                let bytes = contents(block, used);
                self.engine.write_data(BlockNr(block), &[IoSlice::new(&bytes)]).map_err(text)?;
            }
        }
        let mut all = vec![(ROOT, root)];
        all.extend(changes);
        let mut handle = Handle::begin(&self.engine, all.len() as u32).map_err(text)?;
        for &(block, used) in &all {
            let before = self.uses[&block];
            match (before, used) {
                (old, new) if old.is_meta() && new.is_meta() => {
                    let expected = contents(block, before);
                    let same = handle
                        .update(BlockNr(block), |bytes| {
                            let same = bytes == expected;
                            bytes.copy_from_slice(&contents(block, used));
                            same
                        })
                        .map_err(text)?;
                    if !same {
                        return Err(format!("block {block} does not read as it was written"));
                    }
                }
                (_, new) if new.is_meta() => {
                    handle.create(BlockNr(block), contents(block, used)).map_err(text)?
                }
                (old, BlockUse::Free) if old.is_meta() => handle.forget(BlockNr(block)).map_err(text)?,
                _ => {}
            }
            if used == BlockUse::Free {
                let free = self.free.clone();
                handle.on_durable(move || free.lock().push(block));
            }
            self.uses.insert(block, used);
        }
        drop(handle);
        self.history.steps.push(Step { began, changes: all });
        Ok(())
    }

    pub fn commit(&mut self) -> Result<(), String> {
        let covered = self.history.steps.len();
        if self.rng.one_in(3) {
            self.engine.sync().map_err(text)?;
        } else {
            self.engine.commit(self.engine.running()).map_err(text)?;
        }
        let now = self.device.tick();
        self.history.acknowledged.push((now, covered));
        Ok(())
    }

    pub fn operation(&mut self) -> Result<(), String> {
        let mix = self.workload.mix;
        let weights = [
            mix.update,
            mix.make_meta,
            mix.free_meta,
            mix.make_data,
            mix.free_data,
            mix.commit,
            mix.checkpoint,
            mix.forge,
        ];
        let mut lot = self.rng.below(weights.iter().sum());
        let chosen = weights
            .iter()
            .position(|&w| {
                let here = lot < w;
                lot = lot.wrapping_sub(w);
                here
            })
            .expect("a lot below the sum");
        let is_meta = BlockUse::is_meta;
        match chosen {
            0 => {
                let mut changes = BTreeMap::new();
                for _ in 0..1 + self.rng.below(self.workload.width) {
                    if let Some(block) = self.pick(is_meta) {
                        let used = self.meta();
                        changes.insert(block, used);
                    }
                }
                self.step(changes.into_iter().collect())
            }
            1 | 3 => match self.take_free() {
                Some(block) if chosen == 1 => {
                    let used = self.meta();
                    self.step(vec![(block, used)])
                }
                Some(block) => {
                    let used = BlockUse::Data { generation: self.generation() };
                    self.step(vec![(block, used)])
                }
                None => Ok(()),
            },
            2 | 4 => {
                let wanted =
                    move |c| if chosen == 2 { is_meta(c) } else { matches!(c, BlockUse::Data { .. }) };
                match self.pick(wanted) {
                    Some(block) => self.step(vec![(block, BlockUse::Free)]),
                    None => Ok(()),
                }
            }
            5 => self.commit(),
            6 => self.engine.journal().expect("has one").checkpoint().map_err(text),
            _ => self.forge(),
        }
    }

    /// One durable commit full of forged transactions. The log returns to them after as many
    /// commits as fit into it. That gives the sequence number that a recovery will look for there.
    fn forge(&mut self) -> Result<(), String> {
        const TRIPLES: u64 = 8;
        let place = LogPlace::find(&self.device.image()).ok_or("no journal")?;
        let commit_blocks = 1 + 1 + 3 * TRIPLES as u32 + 1;
        let lap = (place.blocks - place.first) / commit_blocks;
        // Read once: a forged commit that repeats blocks of the one before would not write them.
        let sequence = self.forged.unwrap_or_else(|| self.last_sequence(&place)) + 1;
        self.forged = Some(sequence);
        let parts = [ForgedPart::Descriptor, ForgedPart::Copy, ForgedPart::Commit];
        // The log does not hold a whole number of commits, so it returns into the midst of one: to
        // which part, and with which number, depends on its length. Seeds differ in both.
        let number = sequence + lap + (self.seed / 3 % 3) as u32;
        let changes = (0..3 * TRIPLES)
            .map(|n| {
                let part = parts[((n + self.seed) % 3) as usize];
                (POOL_START + 1 + n, BlockUse::Forged { part, sequence: number })
            })
            .collect();
        self.free.lock().clear();
        self.step(changes)?;
        self.commit()
    }

    /// Sequence number of the newest commit block in the log.
    fn last_sequence(&self, place: &LogPlace) -> u32 {
        const COMMIT: u32 = 2;
        let image = self.device.image();
        let mut newest = 0;
        for block in place.first..place.blocks {
            let mut bytes = [0; BLOCK_BYTES];
            image.read(&mut bytes, place.start + u64::from(block) * BLOCK_BYTES as u64);
            let word = |n: usize| u32::from_be_bytes(bytes[4 * n..4 * n + 4].try_into().expect("four bytes"));
            // A real commit block has a time; a forged one is empty.
            if word(0) == JBD2_MAGIC && word(1) == COMMIT && bytes[12..].iter().any(|&b| b != 0) {
                newest = newest.max(word(2));
            }
        }
        newest
    }
}
