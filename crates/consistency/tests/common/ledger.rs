//! A workload on bare blocks that can judge whether a recovered volume is legal.
//!
//! Two ledger blocks hold the number of the last operation and, for each block of a pool, its kind
//! (free, metadata or data) and its version. Every operation changes both ledger blocks and some
//! blocks of the pool. So a recovered volume must have: both ledgers of the same operation
//! (atomicity), each block with the contents of its version (order of data and metadata, revokes,
//! reuse after free), and an operation between the last acknowledged and the last begun
//! (durability, prefix).
#![allow(dead_code)]

use std::io::IoSlice;
use std::sync::Arc;

use parking_lot::Mutex;
use xact_consistency::{Engine, Handle};
use xact_device::BlockDevice;
use xact_testkit::rng::Rng;
use xact_types::{BlockNr, CommitId};

/// Blocks of the pool; the ledger blocks are before it.
pub const POOL: u64 = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Free,
    Metadata,
    Data,
}

/// The blocks of a volume that the workload uses.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub block_size: usize,
    pub first: u64,
}

impl Place {
    fn pool(&self, index: u64) -> BlockNr {
        BlockNr(self.first + 2 + index)
    }

    /// Contents of a block of the pool. Every third begins like a block of the journal itself, with
    /// a sequence number that the log may be at.
    fn contents(&self, index: u64, kind: Kind, version: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.block_size];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = (at as u32 / 64 + version.wrapping_mul(31) + index as u32 * 8) as u8;
        }
        bytes[16..20].copy_from_slice(&version.to_le_bytes());
        bytes[20] = kind as u8;
        bytes[21] = index as u8;
        if kind == Kind::Metadata && index.is_multiple_of(3) {
            bytes[..4].copy_from_slice(&0xc03b_3998u32.to_be_bytes());
            bytes[4..8].copy_from_slice(&[0, 0, 0, 1 + (version % 2) as u8]);
            bytes[8..12].copy_from_slice(&(version % 64).to_be_bytes());
        }
        bytes
    }
}

/// The contents of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub operation: u32,
    /// Both ledger blocks and all blocks of the pool that are in use.
    pub blocks: Vec<(u64, Vec<u8>)>,
}

/// Reads a recovered volume; an error names a state that no crash may leave.
pub fn read(place: &Place, device: &dyn BlockDevice) -> Result<Found, String> {
    let block = |nr: BlockNr| {
        let mut bytes = vec![0; place.block_size];
        device.read_at(&mut bytes, nr.0 * place.block_size as u64).expect("reading the device");
        bytes
    };
    let ledgers = [block(BlockNr(place.first)), block(BlockNr(place.first + 1))];
    let number = |l: &[u8]| u32::from_le_bytes(l[..4].try_into().expect("4 bytes"));
    let operation = number(&ledgers[0]);
    if operation != number(&ledgers[1]) {
        return Err(format!("half an operation: ledgers of {operation} and {}", number(&ledgers[1])));
    }
    let mut blocks = vec![(0, ledgers[0].clone()), (1, ledgers[1].clone())];
    for index in 0..POOL {
        let (kind, version) = entry(&ledgers, index);
        if kind == Kind::Free {
            continue;
        }
        let found = block(place.pool(index));
        if found != place.contents(index, kind, version) {
            let version_found = u32::from_le_bytes(found[16..20].try_into().expect("4 bytes"));
            return Err(format!(
                "operation {operation}: block {index} should be {kind:?} of version {version}, but looks like \
                 kind {} of version {version_found}",
                found[20]
            ));
        }
        blocks.push((2 + index, found));
    }
    Ok(Found { operation, blocks })
}

fn entry(ledgers: &[Vec<u8>; 2], index: u64) -> (Kind, u32) {
    let at = 16 + (index / 2) as usize * 8;
    let entry = &ledgers[(index % 2) as usize][at..at + 8];
    let kind = match entry[4] {
        1 => Kind::Metadata,
        2 => Kind::Data,
        _ => Kind::Free,
    };
    (kind, u32::from_le_bytes(entry[..4].try_into().expect("4 bytes")))
}

/// The times of events, by the device's clock.
#[derive(Debug, Default, Clone)]
pub struct History {
    /// When operation `i + 1` began.
    pub begun: Vec<u64>,
    /// (time, operation) of each acknowledgement that this operation is durable.
    pub acked: Vec<(u64, u32)>,
}

impl History {
    /// The operations that a crash at `time` may leave as the last.
    pub fn legal(&self, time: u64) -> std::ops::RangeInclusive<u32> {
        let acked = self.acked.iter().filter(|(at, _)| *at <= time).map(|(_, op)| *op).max().unwrap_or(0);
        let begun = self.begun.iter().filter(|at| **at <= time).count() as u32;
        acked..=begun
    }
}

/// One thread's run of the workload.
pub struct Workload<'a> {
    place: Place,
    engine: &'a Arc<Engine>,
    clock: &'a dyn Fn() -> u64,
    rng: Rng,
    state: Vec<(Kind, u32)>,
    /// Freed, and the free is durable.
    reusable: Arc<Mutex<Vec<u64>>>,
    operation: u32,
    pub history: History,
}

impl<'a> Workload<'a> {
    pub fn new(place: Place, engine: &'a Arc<Engine>, clock: &'a dyn Fn() -> u64, seed: u64) -> Workload<'a> {
        Workload {
            place,
            engine,
            clock,
            rng: Rng::new(seed),
            state: vec![(Kind::Free, 0); POOL as usize],
            reusable: Arc::new(Mutex::new((0..POOL).collect())),
            operation: 0,
            history: History::default(),
        }
    }

    pub fn operation(&mut self) -> CommitId {
        self.history.begun.push((self.clock)());
        self.operation += 1;
        let mut changes = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let change = self.prepare();
            changes.extend(change);
        }
        let mut handle = Handle::begin(self.engine, 8).expect("a handle");
        for change in changes {
            self.apply(&mut handle, change);
        }
        for (which, ledger) in [self.place.first, self.place.first + 1].into_iter().enumerate() {
            let (operation, state) = (self.operation, &self.state);
            handle
                .update(BlockNr(ledger), |bytes| {
                    bytes[..4].copy_from_slice(&operation.to_le_bytes());
                    for (index, (kind, version)) in state.iter().enumerate().skip(which).step_by(2) {
                        let at = 16 + index / 2 * 8;
                        bytes[at..at + 4].copy_from_slice(&version.to_le_bytes());
                        bytes[at + 4] = *kind as u8;
                    }
                })
                .expect("changing a ledger");
        }
        handle.commit_id()
    }

    /// Chooses a block, and writes new data before the handle begins.
    fn prepare(&mut self) -> Option<(u64, Kind)> {
        let roll = self.rng.below(10);
        if roll < 5 {
            let index = {
                let mut reusable = self.reusable.lock();
                let len = reusable.len() as u64;
                if len == 0 {
                    return None;
                }
                reusable.swap_remove(self.rng.below(len) as usize)
            };
            let kind = if roll < 2 { Kind::Data } else { Kind::Metadata };
            if kind == Kind::Data {
                let contents = self.place.contents(index, kind, self.operation);
                self.engine
                    .write_data(self.place.pool(index), &[IoSlice::new(&contents)])
                    .expect("writing data");
            }
            return Some((index, kind));
        }
        let index = self.rng.below(POOL);
        match self.state[index as usize].0 {
            Kind::Free => None,
            Kind::Metadata if roll < 8 => Some((index, Kind::Metadata)),
            _ => Some((index, Kind::Free)),
        }
    }

    fn apply(&mut self, handle: &mut Handle, (index, kind): (u64, Kind)) {
        let (before, _) = self.state[index as usize];
        let block = self.place.pool(index);
        let version = self.operation;
        match (before, kind) {
            (Kind::Free, Kind::Metadata) => {
                handle.create(block, self.place.contents(index, kind, version)).expect("a new block");
            }
            (Kind::Metadata, Kind::Metadata) => {
                let contents = self.place.contents(index, kind, version);
                handle.update(block, |bytes| bytes.copy_from_slice(&contents)).expect("a change");
            }
            (Kind::Metadata | Kind::Data, Kind::Free) => {
                if before == Kind::Metadata {
                    handle.forget(block).expect("a free");
                }
                let reusable = self.reusable.clone();
                handle.on_durable(move || reusable.lock().push(index));
            }
            // The block was chosen twice in one operation, or is new data, which is written
            // already.
            _ => {}
        }
        if before != Kind::Free || kind != Kind::Free {
            self.state[index as usize] = (kind, version);
        }
    }

    pub fn commit(&mut self, commit: CommitId) {
        self.engine.commit(commit).expect("a commit");
        self.acked();
    }

    fn acked(&mut self) {
        self.history.acked.push(((self.clock)(), self.operation));
    }

    /// A seeded mixture of operations and commits.
    pub fn run(&mut self, operations: u32, checkpoint: &dyn Fn()) {
        for _ in 0..operations {
            let commit = self.operation();
            match self.rng.below(12) {
                0..=3 => self.commit(commit),
                4 => {
                    self.engine.sync().expect("a sync");
                    self.acked();
                }
                5 => checkpoint(),
                _ => {}
            }
        }
    }
}
