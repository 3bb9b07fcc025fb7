//! The intent log: changes that are durable since the generation on disk, without a new generation.
//!
//! A record is a run of whole blocks in the log's area, directly behind the previous record; the
//! first one begins the area. It continues one generation and one previous record:
//!
//! ```text
//!  0 magic     4 checksum of the bytes in use, with this field as 0
//!  8 generation that the log continues
//! 16 number of the record, from 0      20 checksum of its predecessor: the previous record; for
//!                                         the first one, all bytes of the generation's root
//! 24 bytes in use, these 32 included   28 number of entries
//! 32 entries, then zeros up to the end of the block
//!
//!  entry:  block (8)  kind (2): 0 freed, 1 changed, 2 filled; plus 0x100 for file data
//!          number of ranges (2)
//!          then for each range: offset (2)  length (2)  bytes
//! ```
//! *Changed*: the ranges replace bytes of the block. *Filled*: the rest of the block is zero.
//! *Freed*: the block is no longer metadata, and the log has no data of it; earlier entries for it
//! do not count. File data goes home with the next generation, not to the pool, unless a snapshot
//! has the block.
//!
//! Because of the fields at 8, 16 and 20, a record counts only while its generation is the newest,
//! and only behind the exact records that it was written behind. Records that an older log or an
//! older volume left in the area never count.

use std::collections::BTreeMap;
use std::ops::Range;

use xact_types::{BlockNr, Error, Result, Site};

use super::Root;
use crate::checksum::crc32c;
use crate::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};

const MAGIC: u32 = u32::from_le_bytes(*b"XGLG");
const HEAD_BYTES: usize = 32;
const ENTRY_BYTES: usize = 12;
const RANGE_BYTES: usize = 4;
const SUM_AT: usize = 4;

const FREED: u16 = 0;
const CHANGED: u16 = 1;
const FILLED: u16 = 2;
/// Added to the kind of a block of file data.
const DATA: u16 = 0x100;

/// The position that a record continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition {
    pub generation: u64,
    pub number: u32,
    /// Checksum of the root, or of the previous record.
    pub after: u32,
}

impl LogPosition {
    /// The position before the first record behind a root.
    pub fn first(root: &Root) -> LogPosition {
        LogPosition { generation: root.generation, number: 0, after: crc32c(!0, &root.encode()) }
    }
}

/// A record's entry for one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    pub block: BlockNr,
    pub change: LogChange,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogChange {
    Freed,
    /// Bytes by their offset, over the block's previous contents, or over zeros.
    Bytes {
        on_zeros: bool,
        data: bool,
        ranges: Vec<(usize, Vec<u8>)>,
    },
}

/// How the bytes of an entry apply to the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBytes {
    /// The rest of the block is zero; else it stays as before.
    pub on_zeros: bool,
    /// It is a block of file data.
    pub data: bool,
}

/// Builds one record.
pub struct LogWriter {
    bytes: Vec<u8>,
    entries: u32,
}

impl LogWriter {
    pub fn new(position: LogPosition) -> LogWriter {
        let mut bytes = vec![0; HEAD_BYTES];
        put_u32(&mut bytes, 0, MAGIC);
        put_u64(&mut bytes, 8, position.generation);
        put_u32(&mut bytes, 16, position.number);
        put_u32(&mut bytes, 20, position.after);
        LogWriter { bytes, entries: 0 }
    }

    fn entry(&mut self, block: BlockNr, kind: u16, ranges: usize) {
        let at = self.bytes.len();
        self.bytes.resize(at + ENTRY_BYTES, 0);
        put_u64(&mut self.bytes, at, block.0);
        put_u16(&mut self.bytes, at + 8, kind);
        put_u16(&mut self.bytes, at + 10, ranges as u16);
        self.entries += 1;
    }

    pub fn freed(&mut self, block: BlockNr) {
        self.entry(block, FREED, 0);
    }

    /// The ranges of `contents` are new.
    pub fn bytes(&mut self, block: BlockNr, how: LogBytes, contents: &[u8], ranges: &[Range<usize>]) {
        let kind = if how.on_zeros { FILLED } else { CHANGED };
        self.entry(block, kind | if how.data { DATA } else { 0 }, ranges.len());
        for range in ranges {
            let at = self.bytes.len();
            self.bytes.resize(at + RANGE_BYTES, 0);
            put_u16(&mut self.bytes, at, range.start as u16);
            put_u16(&mut self.bytes, at + 2, range.len() as u16);
            self.bytes.extend_from_slice(&contents[range.clone()]);
        }
    }

    /// Bytes so far.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The record as whole blocks, and its checksum, which the next one follows.
    pub fn finish(mut self, block_size: usize) -> (Vec<u8>, u32) {
        let len = self.bytes.len();
        put_u32(&mut self.bytes, 24, len as u32);
        put_u32(&mut self.bytes, 28, self.entries);
        let sum = crc32c(!0, &self.bytes);
        put_u32(&mut self.bytes, SUM_AT, sum);
        self.bytes.resize(len.next_multiple_of(block_size), 0);
        (self.bytes, sum)
    }
}

/// The checks that a record must pass. All are on, except in a canary that shows why a check is
/// needed.
#[derive(Debug, Clone, Copy)]
pub struct LogChecks {
    pub sums: bool,
    pub positions: bool,
}

impl Default for LogChecks {
    fn default() -> LogChecks {
        LogChecks { sums: true, positions: true }
    }
}

/// A record of the log, as its entries.
#[derive(Debug, PartialEq, Eq)]
pub struct LogRecord {
    pub entries: Vec<LogEntry>,
    /// Bytes in use.
    pub len: usize,
    pub sum: u32,
}

/// Length of the record that `bytes` may begin with, by its head alone; `None` if no record of this
/// position begins there.
pub fn log_record_len(head: &[u8], position: LogPosition, checks: LogChecks) -> Option<usize> {
    let belongs = get_u64(head, 8) == position.generation
        && get_u32(head, 16) == position.number
        && get_u32(head, 20) == position.after;
    let len = get_u32(head, 24) as usize;
    let is_one = get_u32(head, 0) == MAGIC && (belongs || !checks.positions);
    (is_one && len >= HEAD_BYTES).then_some(len)
}

/// Reads the record in these bytes, which are those in use. `None` for one that a crash has torn.
///
/// Errors: `Corrupt` for a record that is whole and makes no sense.
pub fn decode_log_record(
    bytes: &[u8],
    block_size: usize,
    volume_blocks: u64,
    checks: LogChecks,
) -> Result<Option<LogRecord>> {
    let mut head = bytes[..HEAD_BYTES].to_vec();
    let sum = get_u32(&head, SUM_AT);
    put_u32(&mut head, SUM_AT, 0);
    let is_whole = crc32c(crc32c(!0, &head), &bytes[HEAD_BYTES..]) == sum;
    if checks.sums && !is_whole {
        return Ok(None);
    }
    let entries = decode_entries(bytes, block_size, volume_blocks);
    match entries {
        Some(entries) => Ok(Some(LogRecord { entries, len: bytes.len(), sum })),
        None if !is_whole => Ok(None),
        None => Err(Error::corrupt(Site::Root, "a record of the intent log says what cannot be")),
    }
}

fn decode_entries(bytes: &[u8], block_size: usize, volume_blocks: u64) -> Option<Vec<LogEntry>> {
    let mut rest = &bytes[HEAD_BYTES..];
    let mut take = |len: usize| {
        let (part, after) = rest.split_at_checked(len)?;
        rest = after;
        Some(part)
    };
    let mut entries = Vec::new();
    for _ in 0..get_u32(bytes, 28) {
        let head = take(ENTRY_BYTES)?;
        let (block, kind) = (BlockNr(get_u64(head, 0)), get_u16(head, 8));
        let mut ranges = Vec::new();
        for _ in 0..get_u16(head, 10) {
            let range = take(RANGE_BYTES)?;
            let (at, len) = (usize::from(get_u16(range, 0)), usize::from(get_u16(range, 2)));
            if at + len > block_size {
                return None;
            }
            ranges.push((at, take(len)?.to_vec()));
        }
        let data = kind & DATA != 0;
        let change = match kind & !DATA {
            FREED if ranges.is_empty() && !data => LogChange::Freed,
            CHANGED => LogChange::Bytes { on_zeros: false, data, ranges },
            FILLED => LogChange::Bytes { on_zeros: true, data, ranges },
            _ => return None,
        };
        if block.0 >= volume_blocks {
            return None;
        }
        entries.push(LogEntry { block, change });
    }
    Some(entries)
}

/// The sum of a log's records: for each logged block its contents, or `None` for a freed one.
/// Records are added in order.
#[derive(Debug, Default)]
pub struct LogSum {
    blocks: BTreeMap<BlockNr, Last>,
}

/// The part of a block's records that counts.
#[derive(Debug)]
enum Last {
    Freed,
    Bytes { on_zeros: bool, data: bool, ranges: Vec<(usize, Vec<u8>)> },
}

/// A block's contents in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogContents {
    pub bytes: Vec<u8>,
    /// It is a block of file data.
    pub data: bool,
}

impl LogSum {
    /// `Corrupt` for a change on the contents of a freed block.
    pub fn add(&mut self, record: LogRecord) -> Result<()> {
        for LogEntry { block, change } in record.entries {
            match change {
                LogChange::Freed => {
                    self.blocks.insert(block, Last::Freed);
                }
                LogChange::Bytes { on_zeros: true, data, ranges } => {
                    self.blocks.insert(block, Last::Bytes { on_zeros: true, data, ranges });
                }
                LogChange::Bytes { on_zeros: false, data: now, ranges: new } => {
                    let none = Last::Bytes { on_zeros: false, data: now, ranges: Vec::new() };
                    match self.blocks.entry(block).or_insert(none) {
                        Last::Bytes { ranges, data, .. } => {
                            ranges.extend(new);
                            *data = now;
                        }
                        Last::Freed => {
                            return Err(Error::corrupt(Site::Block(block), "the log changes a freed block"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The logged blocks with their contents. `before` returns the generation's contents of a
    /// block. It is not called for blocks that were freed since, which may have a new owner by now.
    pub fn contents(
        self,
        block_size: usize,
        mut before: impl FnMut(BlockNr) -> Result<Vec<u8>>,
    ) -> Result<BTreeMap<BlockNr, Option<LogContents>>> {
        let mut found = BTreeMap::new();
        for (block, last) in self.blocks {
            let contents = match last {
                Last::Freed => None,
                Last::Bytes { on_zeros, data, ranges } => {
                    let mut contents = if on_zeros { vec![0; block_size] } else { before(block)? };
                    for (at, bytes) in ranges {
                        contents[at..at + bytes.len()].copy_from_slice(&bytes);
                    }
                    Some(LogContents { bytes: contents, data })
                }
            };
            found.insert(block, contents);
        }
        Ok(found)
    }
}

/// Reads the log behind a root, as far as it is whole, and returns the sum of its records. `read`
/// reads from the device: first block, buffer. Reads no more than the records and one block behind
/// them.
pub fn read_log(
    root: &Root,
    checks: LogChecks,
    read: &mut dyn FnMut(BlockNr, &mut [u8]) -> Result<()>,
) -> Result<LogSum> {
    let mut sum = LogSum::default();
    let Some((first, blocks)) = root.log else { return Ok(sum) };
    let block_size = root.shape.block_size as usize;
    let mut position = LogPosition::first(root);
    let mut at = 0;
    while at < u64::from(blocks) {
        let mut bytes = vec![0; block_size];
        read(first.offset(at), &mut bytes)?;
        let Some(len) = log_record_len(&bytes, position, checks) else { break };
        let taken = len.div_ceil(block_size) as u64;
        if taken > u64::from(blocks) - at {
            break;
        }
        bytes.resize(taken as usize * block_size, 0);
        if taken > 1 {
            read(first.offset(at + 1), &mut bytes[block_size..])?;
        }
        let volume_blocks = root.shape.volume_blocks;
        let Some(record) = decode_log_record(&bytes[..len], block_size, volume_blocks, checks)? else {
            break;
        };
        position = LogPosition { number: position.number + 1, after: record.sum, ..position };
        sum.add(record)?;
        at += taken;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::super::{Pointer, PoolShape};
    use super::*;

    const SHAPE: PoolShape = PoolShape { block_size: 1024, volume_blocks: 1000, device_blocks: 2000 };
    const AREA: (BlockNr, u32) = (BlockNr(1500), 8);

    fn root(generation: u64) -> Root {
        Root {
            generation,
            uuid: [7; 16],
            shape: SHAPE,
            map_levels: 2,
            map: Some(Pointer { pool_block: BlockNr(1400), birth: 1, sum: 1 }),
            used: 9,
            snapshots: None,
            has_moved_data: false,
            log: Some(AREA),
            bitmaps: vec![(1, 0)],
        }
    }

    #[test]
    fn a_record_begins_with_its_magic_and_position() {
        let position = LogPosition { generation: 7, number: 2, after: 99 };
        let (record, _) = LogWriter::new(position).finish(1024);
        let len = |record: &[u8], position| log_record_len(record, position, LogChecks::default());
        assert_eq!(len(&record, position), Some(HEAD_BYTES));
        assert_eq!(len(&record, LogPosition { generation: 8, ..position }), None);
        assert_eq!(len(&record, LogPosition { number: 1, ..position }), None);
        assert_eq!(len(&record, LogPosition { after: 98, ..position }), None);
        let unchecked = LogChecks { positions: false, ..LogChecks::default() };
        let other = LogPosition { number: 1, ..position };
        assert_eq!(log_record_len(&record, other, unchecked), Some(HEAD_BYTES));
        let mut short = record.clone();
        put_u32(&mut short, 24, HEAD_BYTES as u32 - 1);
        assert_eq!(len(&short, position), None);
        let mut foreign = record;
        foreign[0] ^= 1;
        assert_eq!(len(&foreign, position), None);
        assert_eq!(log_record_len(&foreign, position, unchecked), None);
    }

    const CHANGES: LogBytes = LogBytes { on_zeros: false, data: false };
    const FILLS: LogBytes = LogBytes { on_zeros: true, data: false };

    /// An area with three records behind a root: with one block, three, and one.
    fn area(root: &Root) -> Vec<u8> {
        let mut area = Vec::new();
        let mut position = LogPosition::first(root);
        let block = |byte: u8| vec![byte; 1024];
        let whole = 0..1024;
        for number in 0..3u32 {
            let mut writer = LogWriter::new(LogPosition { number, ..position });
            match number {
                0 => {
                    writer.bytes(BlockNr(5), CHANGES, &block(1), &[3..6, 100..101]);
                    writer.bytes(BlockNr(6), CHANGES, &block(1), from_ref(&(0..2)));
                }
                1 => {
                    writer.freed(BlockNr(6));
                    writer.bytes(BlockNr(5), CHANGES, &block(2), from_ref(&(4..5)));
                    writer.bytes(BlockNr(7), LogBytes { data: true, ..FILLS }, &block(2), from_ref(&whole));
                    writer.bytes(BlockNr(8), FILLS, &block(3), from_ref(&whole));
                }
                _ => {
                    writer.freed(BlockNr(8));
                    writer.bytes(BlockNr(6), FILLS, &block(9), from_ref(&(1..2)));
                }
            }
            let (bytes, sum) = writer.finish(1024);
            position.after = sum;
            area.extend(bytes);
        }
        area
    }

    fn found(root: &Root, area: &[u8]) -> BTreeMap<BlockNr, Option<LogContents>> {
        let mut read = |block: BlockNr, buf: &mut [u8]| {
            let at = (block.0 - AREA.0.0) as usize * 1024;
            let area = [area, &[0; 8 * 1024][..]].concat();
            buf.copy_from_slice(&area[at..at + buf.len()]);
            Ok(())
        };
        let log = read_log(root, LogChecks::default(), &mut read).unwrap();
        log.contents(1024, |block| Ok(vec![0x40 + block.0 as u8; 1024])).unwrap()
    }

    #[test]
    fn a_log_comes_back() {
        let found = found(&root(3), &area(&root(3)));
        assert_eq!(found.keys().map(|block| block.0).collect::<Vec<_>>(), [5, 6, 7, 8]);
        let five = &found[&BlockNr(5)].as_ref().unwrap().bytes;
        assert_eq!(five[..7], [0x45, 0x45, 0x45, 1, 2, 1, 0x45]);
        assert_eq!(five[100], 1);
        let six = &found[&BlockNr(6)].as_ref().unwrap().bytes;
        assert_eq!(six[..3], [0, 9, 0], "what was there before it was freed does not count");
        let of_a_file = |block| found[&BlockNr(block)].as_ref().unwrap().data;
        assert_eq!([5, 6, 7].map(of_a_file), [false, false, true]);
        assert_eq!(found[&BlockNr(7)].as_ref().unwrap().bytes, [2; 1024]);
        assert_eq!(found[&BlockNr(8)], None);
    }

    #[test]
    fn it_ends_before_torn_and_foreign_records() {
        let whole = area(&root(3));
        for flipped in (0..1024).step_by(7) {
            let mut torn = whole.clone();
            torn[1024 + flipped] ^= 4;
            assert_eq!(found(&root(3), &torn).len(), 2, "the first record alone, byte {flipped}");
        }
        for torn in [1024 + 512, 2048, 3072] {
            let mut half = whole.clone();
            half[torn..torn + 512].fill(0);
            assert_eq!(found(&root(3), &half).len(), 2);
        }
        assert!(found(&root(4), &whole).is_empty(), "another generation's");
        let other = Root { used: 10, ..root(3) };
        assert!(found(&other, &whole).is_empty(), "that of another volume's generation of this number");
        assert!(found(&Root { log: None, ..root(3) }, &whole).is_empty());
        let swapped = [&whole[4 * 1024..], &whole[..4 * 1024]].concat();
        assert!(found(&root(3), &swapped).is_empty());
    }
}
