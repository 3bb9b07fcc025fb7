//! The intent log: an fsync without a generation (`docs/adr/generations-intent-log.md`).
//!
//! ```text
//!  root of generation n             the log's area, a fixed run of pool blocks
//!  .----------------------.         .---------.---------.---------.-------------------------.
//!  | ..., checksum, area -+-------> | record 0| record 1| record 2|  left from older logs   |
//!  '----------------------'         '---------'---------'---------'-------------------------'
//!                                        ^---------'^--------' each has its predecessor's checksum
//! ```
//! A commit with waiting callers goes to the area as one record, in one write. So do the changes of
//! an fsync that goes `ahead` of its commit. For each block that it changes the record has the
//! bytes that differ, if they are few, or else the block; it also lists the freed blocks. The map,
//! the pool and the root stay unchanged. In memory `published_map` keeps the contents, and all
//! readers take them from there, until the next generation writes them along with its own changes.
//! The first record names the checksum of the root that it continues. The next generation's root
//! has another checksum, so the log is empty from the moment that this root counts.
//!
//! Invariants:
//! 1. A record is written only when the record before it is durable. An engine writes records only
//!    after a generation that it has made itself: the first commit after each opening is a
//!    generation. So nothing ever follows a record that a crash left in the area.
//! 2. A record is written only when file data is durable: all data that was written before the
//!    record's operations ended. (Not with `data=writeback`, see `generations` 2.)
//! 3. Callers are answered, and freed blocks are reused, only after the flush behind the record.
//!    Reuse is safe, because reading the log needs no old contents of a freed block. For such a
//!    block, all records before the one that frees it are dropped (`LogSum`), and no later record
//!    holds a difference to its old contents.
//! 4. The generation that writes the blocks of the log to the pool has space for all of them, with
//!    their nodes of the map, on top of the largest commit (`most_blocks`, `admission`).
//! 5. The records of a log are overwritten only when the next root is durable.
//!
//! A crash leaves all of an unacknowledged record or nothing: the record is dropped if one of its
//! bytes is missing. Reading the log at mount writes nothing, and the size of the area bounds the
//! time that it takes.

use std::io::IoSlice;
use std::ops::Range;

use xact_device::WriteHint;
use xact_layout::generations::{LogBytes, LogChecks, LogContents, LogPosition, LogWriter, Root, read_log};
use xact_layout::jbd2::differences;
use xact_types::{BlockNr, CommitId, Result};

use super::map::{Map, MapReader};
use super::pool::Pool;
use super::published_map::{Logged, LoggedBlock};
use super::{Generations, admission};
use crate::core::block::Record;
use crate::core::dirty_blocks::{Frozen, FrozenBlock};
use crate::fault::{Fault, Faults};

/// Largest area, in bytes: the most that a mount reads in addition to the logged blocks.
const MAX_AREA_BYTES: u64 = 4 << 20;
/// The most blocks in one log. They are in memory.
const MAX_BLOCKS: u64 = 2048;
/// Smaller areas are not useful.
const MIN_AREA_BLOCKS: u64 = 4;

/// The position of the next record, in a log that this engine may write.
pub(super) struct Log {
    first: BlockNr,
    blocks: u64,
    /// Blocks in use.
    used: u64,
    position: LogPosition,
}

impl Log {
    /// The log of a generation that has just become durable.
    pub fn begin(root: &Root) -> Option<Log> {
        let (first, blocks) = root.log?;
        Some(Log { first, blocks: blocks.into(), used: 0, position: LogPosition::first(root) })
    }
}

/// Blocks of the area, for the size of the pool.
fn area_blocks(reader: &MapReader) -> u64 {
    let most = MAX_AREA_BYTES / reader.volume.block_size as u64;
    admission::of_the_log(reader.shape.pool_blocks()).min(most)
}

/// The most blocks in a log: those that fit a generation on top of the largest commit.
pub(super) fn most_blocks(reader: &MapReader, max_credits: u32) -> usize {
    let room = admission::of_the_log(reader.shape.pool_blocks());
    let credits = u64::from(max_credits);
    // Twice, for the blocks that are written home.
    let nodes = |logged: u64| reader.most_nodes(2 * (credits + logged)) - reader.most_nodes(2 * credits);
    admission::most_within(room, room.min(MAX_BLOCKS), nodes) as usize
}

/// Takes the pool blocks of a log's area; `None` if there is no space for it now.
pub(super) fn take_area(reader: &MapReader, pool: &mut Pool) -> Option<(BlockNr, u32)> {
    let blocks = area_blocks(reader);
    let spare = pool.free().checked_sub(blocks);
    if blocks < MIN_AREA_BLOCKS
        || spare.is_none_or(|free| free < admission::for_all(reader.shape.pool_blocks()))
    {
        return None;
    }
    pool.take_run(blocks).ok().map(|first| (first, blocks as u32))
}

/// The logged blocks behind a root. Nothing is written.
pub(super) fn read(reader: &MapReader, root: &Root, map: &Map, faults: Faults) -> Result<Logged> {
    read_over(reader, root, faults, |block| {
        let contents = match map.get(reader, block)? {
            Some(pointer) => reader.read(block, pointer)?,
            None => reader.volume.read_block(block)?,
        };
        Ok(contents.to_vec())
    })
}

/// As [`read`]; `before` reads the contents of a block in the root's generation.
pub(super) fn read_over(
    reader: &MapReader,
    root: &Root,
    faults: Faults,
    before: impl FnMut(BlockNr) -> Result<Vec<u8>>,
) -> Result<Logged> {
    let checks = LogChecks {
        sums: !faults.has(Fault::AcceptTornRecord),
        positions: !faults.has(Fault::AcceptStaleRecord),
    };
    let log = read_log(root, checks, &mut |block, buf| reader.volume.read(block, buf))?;
    let contents = log.contents(reader.volume.block_size, before)?;
    let logged = |found: LogContents| LoggedBlock { contents: found.bytes.into(), data: found.data };
    Ok(contents.into_iter().map(|(block, contents)| (block.0, contents.map(logged))).collect())
}

impl Generations {
    /// Makes a commit durable by a record in the log. False if there is no log, or the record does
    /// not fit; then nothing was written.
    pub(super) fn write_record(
        &self,
        commit: CommitId,
        log: &mut Option<Log>,
        frozen: &Frozen,
    ) -> Result<bool> {
        let Some(log) = log.as_mut() else { return Ok(false) };
        if self.published.logged_blocks() + frozen.blocks.len() + frozen.forgotten.len() > self.most_logged {
            return Ok(false);
        }
        let block_size = self.core.volume.block_size;
        let room = (log.blocks - log.used) as usize * block_size;
        let Some(writer) = self.compose(log.position, frozen, room) else { return Ok(false) };
        let (bytes, sum) = writer.finish(block_size);
        // Durable by this flush: data that the record refers to. Without it the record could be
        // durable alone, and lead to the previous contents of the blocks, as `data=writeback`
        // allows. Data that moved for a snapshot is in the record itself.
        let asked = self.core.pipeline.is_ordered(commit);
        if (asked || self.orders_data()) && !self.core.faults.has(Fault::NoFlushOfData) {
            self.core.volume.flush_data()?;
        }
        self.core.volume.write_for(
            log.first.offset(log.used),
            &[IoSlice::new(&bytes)],
            WriteHint::FlushFollows,
        )?;
        // Durable by this flush: the record, and all data written before it. Without it a caller
        // would take changes for safe that a crash undoes, and blocks that the record frees would
        // have a new owner when a crash brings the old one back.
        if !self.core.faults.has(Fault::NoFlushAfterRecord) {
            self.core.volume.flush()?;
        }
        log.used += (bytes.len() / block_size) as u64;
        log.position = LogPosition { number: log.position.number + 1, after: sum, ..log.position };
        let contents = frozen.blocks.iter().map(|block| {
            let logged = LoggedBlock { contents: block.contents.clone(), data: block.data };
            (block.slot.block.0, Some(logged))
        });
        let freed = frozen.forgotten.iter().map(|block| (block.0, None));
        self.published.add_logged(contents.chain(freed));
        Ok(true)
    }

    /// The record of a commit, unless it takes more than `room` bytes.
    fn compose(&self, position: LogPosition, frozen: &Frozen, room: usize) -> Option<LogWriter> {
        let mut writer = LogWriter::new(position);
        for block in &frozen.blocks {
            let (number, contents) = (block.slot.block, &block.contents[..]);
            let (on_zeros, changes) = self.changes_of(block);
            let how = LogBytes { on_zeros, data: block.data };
            match changes {
                Some(ranges) => writer.bytes(number, how, contents, &ranges),
                None => {
                    let all = 0..contents.len();
                    writer.bytes(
                        number,
                        LogBytes { on_zeros: true, ..how },
                        contents,
                        std::slice::from_ref(&all),
                    );
                }
            }
            if writer.size_bytes() > room {
                return None;
            }
        }
        // Without it the log's contents of a block would still count, though the block may be data
        // by now.
        if !self.core.faults.has(Fault::NoFreedEntry) {
            frozen.forgotten.iter().for_each(|block| writer.freed(*block));
        }
        (writer.size_bytes() <= room).then_some(writer)
    }

    /// How a record describes a block: whether on zeros, and the ranges that have changed; `None`
    /// for the whole block.
    fn changes_of(&self, block: &FrozenBlock) -> (bool, Option<Vec<Range<usize>>>) {
        let (number, contents) = (block.slot.block, &block.contents[..]);
        // No record builds on the contents of a freed block.
        if self.published.is_logged_as_freed(number) {
            return (true, None);
        }
        if !block.data {
            return (matches!(block.record, Record::OnZeros), block.record.changes(contents));
        }
        // File data is written home while the log still counts, so a crash can leave any of its
        // sectors there. So the first record of it depends on nothing at home.
        match self.published.logged_data(number) {
            Some(before) => (false, differences(&before, contents)),
            None if self.core.faults.has(Fault::DataOnItsPlace) => (false, block.record.changes(contents)),
            None => (true, Record::OnZeros.changes(contents)),
        }
    }
}
