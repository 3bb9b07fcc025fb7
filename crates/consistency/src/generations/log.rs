//! The intent log: an fsync without a generation (`docs/adr/generations-intent-log.md`).
//!
//! ```text
//!  root of generation n             the log's area, a fixed run of pool blocks
//!  .----------------------.         .---------.---------.---------.-------------------------.
//!  | ..., checksum, area -+-------> | record 0| record 1| record 2|  what older logs left   |
//!  '----------------------'         '---------'---------'---------'-------------------------'
//!                                        ^---------'^--------' each names the checksum of what it follows
//! ```
//! A commit that somebody waits for goes there as one record, in one write: of each block that it
//! changes the bytes that differ, where those are few, and which blocks it freed. The map, the pool
//! and the root stay as they are. In memory the contents are kept by `published_map`, from which
//! all readers take them, until the next generation writes them along with its own changes. Its
//! root has another checksum, so that from the moment it counts the log is an empty one.
//!
//! Invariants:
//! 1. A record is written behind one that is durable, and only by the engine that made the
//!    generation which it continues: the first commit after each opening is a generation. So what a
//!    crash left in the area is never followed by anything.
//! 2. A record is written when the data is durable that was written before the operations in it
//!    ended.
//! 3. No caller is answered before the flush behind the record, and no block that it freed is used
//!    again before. From then on it may be: a record before the one that frees a block is not asked what
//!    the block held (`LogSum`), and one behind it does not build on that.
//! 4. All blocks of the log, with their nodes of the map, find room in the generation that writes
//!    them, besides the largest commit (`most_blocks`, `admission`).
//! 5. The records of a log are overwritten only when the root behind them is durable.
//!
//! What a crash leaves: of a record that was not acknowledged, all or nothing. It is dropped if a
//! byte of it is missing. Reading it at mount takes no write, and a time that the area's size
//! bounds.

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

/// Largest area, in bytes: what a mount reads at the most, besides the blocks that it speaks of.
const MAX_AREA_BYTES: u64 = 4 << 20;
/// Most blocks that a log speaks of. They are in memory.
const MAX_BLOCKS: u64 = 2048;
/// A smaller area is not worth having.
const MIN_AREA_BLOCKS: u64 = 4;

/// Where the next record goes, of a log that this engine may write.
pub(super) struct Log {
    first: BlockNr,
    blocks: u64,
    /// Blocks in use.
    used: u64,
    position: LogPosition,
}

impl Log {
    /// That of a generation which is durable since just now.
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

/// Blocks that a log may speak of: those that fit a generation besides the largest commit.
pub(super) fn most_blocks(reader: &MapReader, max_credits: u32) -> usize {
    let room = admission::of_the_log(reader.shape.pool_blocks());
    let credits = u64::from(max_credits);
    // Twice, for what is written along.
    let nodes = |logged: u64| reader.most_nodes(2 * (credits + logged)) - reader.most_nodes(2 * credits);
    let (mut least, mut most) = (0, room.min(MAX_BLOCKS));
    while least < most {
        let middle = (least + most).div_ceil(2);
        if middle + nodes(middle) <= room {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    least as usize
}

/// Takes the pool blocks of a log's area; `None` where there is no space for it now.
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

/// What the log behind a root makes of its blocks. Nothing is written.
pub(super) fn read(reader: &MapReader, root: &Root, map: &Map, faults: Faults) -> Result<Logged> {
    let checks = LogChecks {
        sums: !faults.has(Fault::AcceptTornRecord),
        positions: !faults.has(Fault::AcceptStaleRecord),
    };
    let log = read_log(root, checks, &mut |block, buf| reader.volume.read(block, buf))?;
    let contents = log.contents(reader.volume.block_size, |block| {
        let contents = match map.get(reader, block)? {
            Some(pointer) => reader.read(block, pointer)?,
            None => reader.volume.read_block(block)?,
        };
        Ok(contents.to_vec())
    })?;
    let logged = |found: LogContents| LoggedBlock { contents: found.bytes.into(), data: found.data };
    Ok(contents.into_iter().map(|(block, contents)| (block.0, contents.map(logged))).collect())
}

impl Generations {
    /// Makes a commit durable by a record in the log. False where there is none, or no room in it:
    /// then nothing was written.
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
        // there alone, and lead to what the blocks held before, as `data=writeback` allows. What a
        // snapshot has moved is in the record itself.
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
        // would be told that something is safe which a crash undoes, and what it freed would be
        // another's while a crash brings its owner back.
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
        // Without it what the log has of a block would count on, though it may be data by now.
        if !self.core.faults.has(Fault::NoFreedEntry) {
            frozen.forgotten.iter().for_each(|block| writer.freed(*block));
        }
        (writer.size_bytes() <= room).then_some(writer)
    }

    /// What a record has to say of a block: whether on zeros, and the ranges that have changed;
    /// `None` for all of it.
    fn changes_of(&self, block: &FrozenBlock) -> (bool, Option<Vec<Range<usize>>>) {
        let (number, contents) = (block.slot.block, &block.contents[..]);
        // What a freed block held is nothing to build on.
        if self.published.is_logged_as_freed(number) {
            return (true, None);
        }
        if !block.data {
            return (matches!(block.record, Record::OnZeros), block.record.changes(contents));
        }
        // File data is written home while the log still counts: a crash can leave any of its
        // sectors there. So the first record of it leaves nothing to what is there.
        match self.published.logged_data(number) {
            Some(before) => (false, differences(&before, contents)),
            None if self.core.faults.has(Fault::DataOnItsPlace) => (false, block.record.changes(contents)),
            None => (true, Record::OnZeros.changes(contents)),
        }
    }
}
