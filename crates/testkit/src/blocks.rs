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

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use xact_consistency::{CommitWrites, Engine, EngineOptions, Fault, Handle, open_journal};
use xact_device::SECTOR_BYTES;
use xact_types::BlockNr;

use crate::device::SimDevice;
use crate::explorer::{Recovered, Subject};
use crate::image::Image;
use crate::recording::{Recording, Time};
use crate::rng::Rng;
use crate::tools::{ImageFile, KernelMount, e2fsck, formatted};

const BLOCK_BYTES: usize = 1024;
/// The first block of the pool. mke2fs leaves it and the following blocks free on a volume of 8
/// MiB.
const POOL_START: u64 = 6000;
/// Part of every handle, so that no two states are equal.
const ROOT: u64 = POOL_START;
/// The first word of a journal block; a copy that begins with it must be escaped in the log.
const JBD2_MAGIC: u32 = 0xc03b_3998;

/// The owner and contents of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockUse {
    /// No owner: its bytes do not matter.
    Free,
    Meta {
        generation: u32,
        /// Looks like a block of the journal.
        disguised: bool,
    },
    Data {
        generation: u32,
    },
    /// Metadata that looks like a part of a transaction with this sequence number: its descriptor,
    /// a copy of the root, its commit block.
    Forged {
        part: ForgedPart,
        sequence: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForgedPart {
    Descriptor,
    Copy,
    Commit,
}

impl BlockUse {
    fn is_meta(self) -> bool {
        matches!(self, BlockUse::Meta { .. } | BlockUse::Forged { .. })
    }
}

fn contents(block: u64, used: BlockUse) -> Vec<u8> {
    let (kind, generation) = match used {
        BlockUse::Free => (0, 0),
        BlockUse::Meta { generation, disguised: false } => (1, generation),
        BlockUse::Meta { generation, disguised: true } => (2, generation),
        BlockUse::Data { generation } => (3, generation),
        BlockUse::Forged { part, sequence } => return forged(part, sequence),
    };
    let mut bytes = crate::model::stamp::bytes(kind << 24 | block as u32, generation, 0, BLOCK_BYTES as u64);
    if kind == 2 {
        bytes[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
    }
    bytes
}

/// Blocks of a journal without checksums, which a reader of the log would accept.
fn forged(part: ForgedPart, sequence: u32) -> Vec<u8> {
    const DESCRIPTOR: u32 = 1;
    const COMMIT: u32 = 2;
    const SAME_UUID_AND_LAST: u16 = 2 | 8;
    let header = |kind: u32| {
        let mut bytes = vec![0; BLOCK_BYTES];
        for (n, word) in [JBD2_MAGIC, kind, sequence].iter().enumerate() {
            bytes[4 * n..4 * n + 4].copy_from_slice(&word.to_be_bytes());
        }
        bytes
    };
    match part {
        ForgedPart::Descriptor => {
            let mut bytes = header(DESCRIPTOR);
            bytes[12..16].copy_from_slice(&(ROOT as u32).to_be_bytes());
            bytes[18..20].copy_from_slice(&SAME_UUID_AND_LAST.to_be_bytes());
            bytes
        }
        ForgedPart::Copy => vec![0xee; BLOCK_BYTES],
        ForgedPart::Commit => header(COMMIT),
    }
}

struct Step {
    began: Time,
    changes: Vec<(u64, BlockUse)>,
}

/// The steps, and their acknowledgements.
#[derive(Default)]
pub struct BlockHistory {
    steps: Vec<Step>,
    /// The times at which numbers of steps were acknowledged as durable.
    acknowledged: Vec<(Time, usize)>,
}

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

struct Run<'a> {
    workload: &'a BlockWorkload,
    device: Arc<SimDevice>,
    engine: Arc<Engine>,
    seed: u64,
    rng: Rng,
    uses: BTreeMap<u64, BlockUse>,
    /// Blocks whose freeing is durable.
    free: Arc<Mutex<Vec<u64>>>,
    history: BlockHistory,
    generation: u32,
}

fn text(e: xact_types::Error) -> String {
    e.to_string()
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
    fn step(&mut self, changes: Vec<(u64, BlockUse)>) -> Result<(), String> {
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

    fn commit(&mut self) -> Result<(), String> {
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

    fn operation(&mut self) -> Result<(), String> {
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
        let sequence = self.last_sequence(&place) + 1;
        let parts = [ForgedPart::Descriptor, ForgedPart::Copy, ForgedPart::Commit];
        let changes = (0..3 * TRIPLES)
            .map(|n| {
                // The part that the log returns to depends on its length, so seeds differ in it.
                let part = parts[((n + self.seed) % 3) as usize];
                (
                    POOL_START + 1 + n,
                    BlockUse::Forged { part, sequence: sequence + lap + ((n / 3 + 1) % 3) as u32 },
                )
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

impl BlockHistory {
    fn begun(&self, time: Time) -> usize {
        self.steps.partition_point(|s| s.began < time)
    }

    fn promised(&self, time: Time) -> usize {
        self.acknowledged.iter().take_while(|(t, _)| *t < time).map(|(_, n)| *n).max().unwrap_or(0)
    }

    fn after(&self, k: usize) -> BTreeMap<u64, BlockUse> {
        self.steps[..k].iter().flat_map(|s| s.changes.iter().copied()).collect()
    }
}

/// The journal: its first byte, and the fields of its superblock that forging needs.
struct LogPlace {
    start: u64,
    block_bytes: u64,
    blocks: u32,
    first: u32,
}

impl LogPlace {
    /// Finds the journal's superblock; mke2fs lays a small journal out in one piece.
    fn find(image: &Image) -> Option<LogPlace> {
        const SUPERBLOCK_V2: u32 = 4;
        let mut bytes = [0; 24];
        for block in 0..image.size_bytes() / BLOCK_BYTES as u64 {
            image.read(&mut bytes, block * BLOCK_BYTES as u64);
            let word = |n: usize| u32::from_be_bytes(bytes[4 * n..4 * n + 4].try_into().expect("four bytes"));
            if word(0) == JBD2_MAGIC && word(1) == SUPERBLOCK_V2 {
                let start = block * BLOCK_BYTES as u64;
                return Some(LogPlace {
                    start,
                    block_bytes: word(3).into(),
                    blocks: word(4),
                    first: word(5),
                });
            }
        }
        None
    }
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

/// The position of the journal, in bytes of the device.
pub fn log_range(image: &Image) -> Option<std::ops::Range<u64>> {
    let place = LogPlace::find(image)?;
    Some(place.start..place.start + u64::from(place.blocks) * place.block_bytes)
}

/// Sectors of the copies in the log. (A transaction without its descriptor or commit block cannot
/// be distinguished from one that a crash interrupted.)
pub(crate) fn log_copies(image: &Image) -> Vec<u64> {
    let Some(place) = LogPlace::find(image) else { return Vec::new() };
    let sectors = place.block_bytes / SECTOR_BYTES as u64;
    (place.first..place.blocks)
        .map(|n| place.start + u64::from(n) * place.block_bytes)
        .filter(|&offset| {
            let mut magic = [0; 4];
            image.read(&mut magic, offset);
            magic != [0; 4] && magic != JBD2_MAGIC.to_be_bytes()
        })
        .flat_map(|offset| (0..sectors).map(move |s| offset / SECTOR_BYTES as u64 + s))
        .collect()
}

/// Lends out one of the files that this thread keeps for images.
pub fn with_file<T>(
    image: &Image,
    work: impl FnOnce(&mut ImageFile) -> Result<T, String>,
) -> Result<T, String> {
    thread_local! {
        static FILE: std::cell::RefCell<ImageFile> = std::cell::RefCell::default();
    }
    FILE.with_borrow_mut(|file| {
        file.put(image).map_err(|e| format!("writing the image: {e}"))?;
        work(file)
    })
}

fn pool_bytes(image: &Image, blocks: u64) -> Vec<u8> {
    let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
    image.read(&mut bytes, POOL_START * BLOCK_BYTES as u64);
    bytes
}
