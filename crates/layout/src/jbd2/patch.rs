//! Blocks of patches: bytes of several blocks in one block of the log (sub-block journal records,
//! xact's own).
//!
//! ```text
//!  0   header, of type "patches"
//!  12  bytes used, header and this count included
//!  16  records, one behind the other:
//!        0   block that it is for (64 bits)
//!        8   first byte within that block (16 bits)
//!        10  number of bytes (16 bits)
//!        12  flags (32 bits): 1: the block is zeros before this record
//!        16  the bytes
//! ```
//! A record replaces some bytes of a block. The other bytes come from earlier records, an earlier
//! copy, or the block in its place. Logs with such blocks carry
//! [`Features::XACT_PATCHES`](super::Features::XACT_PATCHES), so that only xact replays them.

use std::ops::Range;

use super::{BlockType, HEADER_BYTES, Header, LogFormat, be16, be32, be64, put32};

const USED: usize = HEADER_BYTES;
const RECORDS: usize = HEADER_BYTES + 4;
/// Bytes of a record before its contents.
pub const PATCH_HEAD_BYTES: usize = 16;
const ZEROED: u32 = 1;

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    pub block: u64,
    /// The block is zeros before this record.
    pub zeroed: bool,
    /// The offset of its bytes in the block.
    pub at: usize,
    /// The range of its bytes in the block of patches.
    pub bytes: Range<usize>,
}

/// Packs records into blocks, as many as fit.
pub struct PatchWriter<'a> {
    format: &'a LogFormat,
    sequence: u32,
    full: Vec<Vec<u8>>,
    current: Vec<u8>,
    used: usize,
}

impl<'a> PatchWriter<'a> {
    pub fn new(format: &'a LogFormat, sequence: u32) -> PatchWriter<'a> {
        PatchWriter { format, sequence, full: Vec::new(), current: Vec::new(), used: 0 }
    }

    /// The most bytes of one record, without its head.
    fn bytes_max(&self) -> usize {
        self.format.block_size - RECORDS - PATCH_HEAD_BYTES - self.format.tail_bytes()
    }

    /// Adds the bytes of `contents` in `range`, which is at most half of a block.
    pub fn push(&mut self, block: u64, zeroed: bool, contents: &[u8], range: Range<usize>) {
        assert!(range.len() <= self.bytes_max(), "a record fits a block");
        let end = self.format.block_size - self.format.tail_bytes();
        if self.current.is_empty() || self.used + PATCH_HEAD_BYTES + range.len() > end {
            self.finish_block();
            self.current = vec![0; self.format.block_size];
            let header = Header { block_type: BlockType::Patches, sequence: self.sequence };
            header.encode(&mut self.current);
            self.used = RECORDS;
        }
        let head = &mut self.current[self.used..];
        put32(head, 0, (block >> 32) as u32);
        put32(head, 4, block as u32);
        put32(head, 8, (range.start as u32) << 16 | range.len() as u32);
        put32(head, 12, if zeroed { ZEROED } else { 0 });
        head[PATCH_HEAD_BYTES..PATCH_HEAD_BYTES + range.len()].copy_from_slice(&contents[range.clone()]);
        self.used += PATCH_HEAD_BYTES + range.len();
    }

    fn finish_block(&mut self) {
        if self.current.is_empty() {
            return;
        }
        let mut block = std::mem::take(&mut self.current);
        put32(&mut block, USED, self.used as u32);
        self.format.seal_tail(&mut block);
        self.full.push(block);
    }

    /// The blocks of patches.
    pub fn finish(mut self) -> Vec<Vec<u8>> {
        self.finish_block();
        self.full
    }
}

/// The records of a block of patches; `None` if they are invalid.
pub fn decode_patches(format: &LogFormat, block: &[u8]) -> Option<Vec<Patch>> {
    let used = be32(block, USED) as usize;
    if used < RECORDS || used > block.len() - format.tail_bytes() {
        return None;
    }
    let mut patches = Vec::new();
    let mut from = RECORDS;
    while from < used {
        let head = block.get(from..from + PATCH_HEAD_BYTES)?;
        let (at, len) = (usize::from(be16(head, 8)), usize::from(be16(head, 10)));
        let bytes = from + PATCH_HEAD_BYTES..from + PATCH_HEAD_BYTES + len;
        if bytes.end > used || at + len > format.block_size || be32(head, 12) & !ZEROED != 0 {
            return None;
        }
        patches.push(Patch {
            block: be64(head, 0),
            zeroed: be32(head, 12) == ZEROED,
            at,
            bytes: bytes.clone(),
        });
        from = bytes.end;
    }
    Some(patches)
}

/// The longest run of unchanged bytes that is copied rather than splitting a record, which costs a
/// head.
const GAP_BYTES: usize = 16;

/// The ranges in which `new` differs from `old`; `None` if records of them would take more than
/// half of a block, so that a copy is as good. Both have the same length, a multiple of 8.
pub fn differences(old: &[u8], new: &[u8]) -> Option<Vec<Range<usize>>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let (mut bytes, half) = (0, new.len() / 2 - RECORDS - PATCH_HEAD_BYTES);
    for (index, (old, new)) in old.chunks_exact(8).zip(new.chunks_exact(8)).enumerate() {
        if old == new {
            continue;
        }
        let at = index * 8;
        let first = at + old.iter().zip(new).position(|(a, b)| a != b).unwrap_or(0);
        let last = at + old.iter().zip(new).rposition(|(a, b)| a != b).unwrap_or(7);
        match ranges.last_mut() {
            Some(range) if first - range.end <= GAP_BYTES => {
                bytes += last + 1 - range.end;
                range.end = last + 1;
            }
            _ => {
                bytes += PATCH_HEAD_BYTES + last + 1 - first;
                ranges.push(first..last + 1);
            }
        }
        if bytes > half {
            return None;
        }
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::super::tests::formats;
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        (0..len).map(|i| ((i * 7919) >> 3) as u8).collect()
    }

    #[test]
    fn records_come_back() {
        for format in formats() {
            let contents = noise(format.block_size);
            let mut writer = PatchWriter::new(&format, 9);
            let mut pushed = Vec::new();
            for n in 0..60u64 {
                let at = n as usize * 8;
                let range = at..at + n as usize * (format.block_size / 2 - 64) / 60;
                writer.push(n << 33 | n, n % 3 == 0, &contents, range.clone());
                pushed.push((n << 33 | n, n % 3 == 0, range));
            }
            let blocks = writer.finish();
            let mut read = Vec::new();
            for block in &blocks {
                assert!(format.tail_is_valid(block));
                assert_eq!(Header::decode(block).unwrap().block_type, BlockType::Patches);
                for patch in decode_patches(&format, block).unwrap() {
                    assert_eq!(block[patch.bytes.clone()], contents[patch.at..patch.at + patch.bytes.len()]);
                    read.push((patch.block, patch.zeroed, patch.at..patch.at + patch.bytes.len()));
                }
            }
            assert_eq!(read, pushed);
        }
    }

    #[test]
    fn any_bytes_decode_within_the_block() {
        for format in formats() {
            let mut block = noise(format.block_size);
            for used in [0u32, 15, 16, 17, 40, 500, 1000, 1023, 4095, u32::MAX] {
                put32(&mut block, USED, used);
                for patch in decode_patches(&format, &block).unwrap_or_default() {
                    assert!(patch.bytes.end <= format.block_size);
                    assert!(patch.at + patch.bytes.len() <= format.block_size);
                }
            }
        }
    }

    #[test]
    fn differences_make_the_new_of_the_old() {
        let old = noise(1024);
        let cases: [&[(usize, usize)]; 6] = [
            &[],
            &[(0, 1)],
            &[(1023, 1024)],
            &[(0, 1), (10, 12), (500, 503)],
            &[(3, 200), (210, 300)],
            &[(100, 116), (140, 141)],
        ];
        for changed in cases {
            let mut new = old.clone();
            for (from, to) in changed {
                new[*from..*to].iter_mut().for_each(|byte| *byte ^= 0x55);
            }
            let ranges = differences(&old, &new).unwrap();
            assert!(ranges.len() <= changed.len());
            let mut made = old.clone();
            for range in ranges {
                made[range.clone()].copy_from_slice(&new[range]);
            }
            assert!(made == new, "{changed:?}");
        }
        let mut new = old.clone();
        new[..600].iter_mut().for_each(|byte| *byte ^= 1);
        assert_eq!(differences(&old, &new), None);
        let mut new = old.clone();
        new.iter_mut().step_by(24).for_each(|byte| *byte ^= 1);
        assert_eq!(differences(&old, &new), None);
    }
}
