//! Workloads on the journal engine alone: numbered blocks instead of files.
//!
//! A workload changes blocks of a pool (blocks that are free on the volume, so that e2fsck accepts
//! any contents): as metadata in handles, as data with `write_data`, freed and reused. The oracle
//! consists of the rules that the layers above the engine rely on:
//!
//! 1. A handle's changes are present together or not at all, and handles form a prefix.
//! 2. Changes that `commit` or `sync` acknowledged are present.
//! 3. Data whose `write_data` returned before a handle ended is present if the handle is.
//! 4. A block that was freed and reused belongs to its new owner if the handle that reused it is
//!    present, and to the old one if the handle that freed it is not.

mod contents;
mod history;
mod log_place;
mod run;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use xact_consistency::{CommitWrites, EngineOptions, Fault, open_journal};

use crate::device::SimDevice;
use crate::explorer::{Recovered, Subject};
use crate::image::Image;
use crate::recording::{Recording, Time};
use crate::rng::Rng;
use crate::tools::{KernelMount, e2fsck, formatted, with_file};
use contents::{BlockUse, contents};
pub use history::BlockHistory;
pub(crate) use log_place::log_copies;
pub use log_place::log_range;
use run::Run;

const BLOCK_BYTES: usize = 1024;
/// The first block of the pool. mke2fs leaves it and the following blocks free on a volume of 8
/// MiB.
const POOL_START: u64 = 6000;
/// Part of every handle, so that no two states are equal.
const ROOT: u64 = POOL_START;
/// The first word of a journal block; a copy that begins with it must be escaped in the log.
const JBD2_MAGIC: u32 = 0xc03b_3998;

/// The weight of each kind of step.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    pub update: u64,
    pub make_meta: u64,
    pub free_meta: u64,
    pub make_data: u64,
    pub free_data: u64,
    pub commit: u64,
    pub checkpoint: u64,
    /// Updates whose contents forge transactions for the log's next lap.
    pub forge: u64,
}

/// A random workload on the engine.
#[derive(Debug, Clone)]
pub struct BlockWorkload {
    pub name: &'static str,
    pub operations: usize,
    /// Blocks in the pool.
    pub pool: u64,
    /// The most blocks that one update changes.
    pub width: u64,
    pub mix: Mix,
    /// Whether the volume, and with it the log, has checksums.
    pub checksums: bool,
    /// A rule to break, to see whether the explorer notices.
    pub commit_writes: CommitWrites,
    pub fault: Option<Fault>,
}

impl BlockWorkload {
    /// Every workload without a fault.
    pub fn all() -> Vec<BlockWorkload> {
        let mix = Mix {
            update: 8,
            make_meta: 3,
            free_meta: 2,
            make_data: 3,
            free_data: 2,
            commit: 4,
            checkpoint: 1,
            forge: 0,
        };
        let base = BlockWorkload {
            name: "engine-mix",
            operations: 120,
            pool: 30,
            width: 4,
            mix,
            checksums: true,
            commit_writes: CommitWrites::TwoStep,
            fault: None,
        };
        vec![
            base.clone(),
            BlockWorkload {
                name: "engine-reuse",
                operations: 150,
                pool: 10,
                mix: Mix {
                    update: 3,
                    make_meta: 4,
                    free_meta: 4,
                    make_data: 4,
                    free_data: 4,
                    checkpoint: 0,
                    ..mix
                },
                ..base.clone()
            },
            BlockWorkload {
                name: "engine-wrap",
                operations: 260,
                pool: 400,
                width: 60,
                mix: Mix {
                    update: 8,
                    make_meta: 12,
                    free_meta: 1,
                    make_data: 1,
                    free_data: 1,
                    commit: 6,
                    checkpoint: 0,
                    forge: 0,
                },
                ..base.clone()
            },
            BlockWorkload { name: "engine-single", commit_writes: CommitWrites::Single, ..base.clone() },
            BlockWorkload {
                name: "engine-forged",
                // Checkpoints of the workload, so frequent that the engine never makes one: runs
                // repeat.
                operations: 300,
                pool: 40,
                mix: Mix {
                    forge: 6,
                    update: 0,
                    make_meta: 0,
                    free_meta: 0,
                    make_data: 0,
                    free_data: 0,
                    commit: 0,
                    checkpoint: 1,
                },
                checksums: false,
                ..base.clone()
            },
            BlockWorkload {
                name: "engine-checkpoint",
                mix: Mix { update: 10, commit: 4, checkpoint: 4, ..mix },
                ..base
            },
        ]
    }

    fn volume(&self) -> Image {
        let features = if self.checksums { "metadata_csum" } else { "^metadata_csum" };
        formatted(&["-b", "1024", "-J", "size=1", "-O", features], "8M")
    }

    fn options(&self) -> EngineOptions {
        EngineOptions {
            // Commits of the workload only, so that runs repeat.
            commit_interval: Duration::from_secs(86_400),
            commit_writes: self.commit_writes,
            fault: self.fault,
            ..EngineOptions::default()
        }
    }
}

fn text(e: xact_types::Error) -> String {
    e.to_string()
}

impl Subject for BlockWorkload {
    type Run = BlockHistory;
    /// The bytes of the pool.
    type Tree = Vec<u8>;

    fn name(&self) -> &str {
        self.name
    }

    fn record(&self, seed: u64) -> Result<(Recording, BlockHistory), String> {
        let device = SimDevice::new(self.volume());
        let journal = open_journal(device.clone(), self.options()).map_err(text)?;
        let pool = POOL_START..POOL_START + self.pool;
        let mut run = Run {
            workload: self,
            device: device.clone(),
            engine: journal,
            seed,
            rng: Rng::of(&[seed, self.operations as u64]),
            uses: pool.clone().map(|b| (b, BlockUse::Free)).collect(),
            free: Arc::new(Mutex::new(pool.skip(1).collect())),
            history: BlockHistory::default(),
            generation: 0,
            forged: None,
        };
        // The pool must exist before the oracle can check it.
        run.step(Vec::new())?;
        run.commit()?;
        device.restart_recording();
        for _ in 0..self.operations {
            run.operation()?;
        }
        run.commit()?;
        Ok((device.recording(), run.history))
    }

    fn moment(&self, run: &BlockHistory, time: Time) -> u64 {
        (run.begun(time) as u64) << 32 | run.promised(time) as u64
    }

    fn recover(&self, image: &Image) -> Result<Recovered<Vec<u8>>, String> {
        let device = SimDevice::new(image.clone());
        let engine = open_journal(device.clone(), self.options()).map_err(text)?;
        let recording = device.recording();
        let tree = pool_bytes(&device.image(), self.pool);
        engine.close().map_err(text)?;
        if pool_bytes(&device.image(), self.pool) != tree {
            return Err("closing the volume changed blocks outside of any handle".to_owned());
        }
        Ok(Recovered { tree, recording, closed: device.image() })
    }

    fn judge(&self, run: &BlockHistory, time: Time, tree: &Vec<u8>) -> Result<(), String> {
        let (floor, begun) = (run.promised(time), run.begun(time));
        let block = |b: u64| &tree[(b - POOL_START) as usize * BLOCK_BYTES..][..BLOCK_BYTES];
        let Some(k) = (floor..=begun).rev().find(|&k| match run.after(k).get(&ROOT) {
            Some(root) => block(ROOT) == contents(ROOT, *root),
            None => true,
        }) else {
            return Err(format!(
                "the root is not as after any of {floor} (promised) to {begun} (begun) steps"
            ));
        };
        for (b, used) in run.after(k) {
            if used != BlockUse::Free && block(b) != contents(b, used) {
                return Err(format!(
                    "after {k} steps ({floor} promised, {begun} begun) block {b} should be {used:?}, but holds {}",
                    crate::model::stamp::describe(block(b))
                ));
            }
        }
        Ok(())
    }

    fn inspect(&self, image: &Image) -> Result<(), String> {
        with_file(image, |file| e2fsck(file.path()))
    }

    fn second_opinion(&self, image: &Image, _: &Vec<u8>) -> Option<Result<Vec<u8>, String>> {
        Some(with_file(image, |file| {
            KernelMount::new(file.path(), "")?.unmount();
            file.spoilt();
            let opened = std::fs::File::open(file.path()).map_err(|e| e.to_string())?;
            let after = Image::from_file(&opened).map_err(|e| e.to_string())?;
            e2fsck(file.path())?;
            Ok(pool_bytes(&after, self.pool))
        }))
    }

    fn story(&self, run: &BlockHistory, time: Time) -> String {
        let done = &run.steps[..run.begun(time)];
        let lines = done.iter().enumerate().map(|(n, step)| format!("{:4} {:?}", n + 1, step.changes));
        let mut lines: Vec<String> = lines.collect();
        lines.push(format!("{} of these are promised", run.promised(time)));
        lines.join("\n")
    }

    fn guarded(&self, image: &Image) -> Vec<u64> {
        let is_reported = self.checksums && self.commit_writes == CommitWrites::TwoStep;
        if is_reported { log_copies(image) } else { Vec::new() }
    }

    fn difference(&self, ours: &Vec<u8>, theirs: &Vec<u8>) -> String {
        let differ = ours.chunks(BLOCK_BYTES).zip(theirs.chunks(BLOCK_BYTES)).enumerate();
        let Some((n, (a, b))) = differ.into_iter().find(|(_, (a, b))| a != b) else { return String::new() };
        let describe = crate::model::stamp::describe;
        format!("block {} holds {} and {}", POOL_START + n as u64, describe(a), describe(b))
    }
}

fn pool_bytes(image: &Image, blocks: u64) -> Vec<u8> {
    let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
    image.read(&mut bytes, POOL_START * BLOCK_BYTES as u64);
    bytes
}
