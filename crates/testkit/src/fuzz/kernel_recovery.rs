//! Linux's recovery of a log: the rules of `fs/jbd2/recovery.c` (6.7 and later), written again for
//! byte arrays, to compare our recovery with. Slow, and of no use elsewhere.

use std::collections::BTreeMap;

use xact_layout::jbd2::{Checksums, LogFormat, crc32_be};

use xact_layout::checksum::crc32c;

const MAGIC: u32 = 0xC03B_3998;

/// The result of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The contents that each block gets.
    pub blocks: BTreeMap<u64, Vec<u8>>,
    /// Sequence number behind the last transaction that counts.
    pub end: u32,
}

/// The end of the kernel's recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Replayed(Outcome),
    /// A commit block is broken, and the log counts up to there. The kernel continues with
    /// `ASYNC_COMMIT`, and without it refuses the mount after the replay.
    Broken(Outcome),
    /// The mount fails, whatever has been written by then.
    Refused,
}

/// Transactions of a log.
struct Scanned {
    complete: Vec<Transaction>,
    /// Sequence number behind the last of them.
    end: u32,
    /// Whether the end is a broken commit block.
    is_broken: bool,
}

/// The ring from its first block to its last.
pub struct Log<'a> {
    pub format: LogFormat,
    pub async_commit: bool,
    pub first: u32,
    pub end: u32,
    pub start: u32,
    pub sequence: u32,
    pub read: &'a dyn Fn(u32) -> Vec<u8>,
}

struct Transaction {
    sequence: u32,
    /// Block, flags, checksum, and the copy's position.
    copies: Vec<(u64, u16, u32, u32)>,
    revokes: Vec<Vec<u8>>,
}

impl Transaction {
    fn new(sequence: u32) -> Transaction {
        Transaction { sequence, copies: Vec::new(), revokes: Vec::new() }
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

impl Log<'_> {
    pub fn replay(&self) -> Verdict {
        let Some(scanned) = self.scan() else { return Verdict::Refused };
        let Some(revoked) = self.revoked(&scanned.complete) else { return Verdict::Refused };
        let mut blocks = BTreeMap::new();
        for transaction in &scanned.complete {
            for &(block, flags, checksum, at) in &transaction.copies {
                let is_revoked =
                    revoked.get(&block).is_some_and(|&by| transaction.sequence.wrapping_sub(by) as i32 <= 0);
                if is_revoked {
                    continue;
                }
                let mut copy = (self.read)(at);
                if !self.copy_is_sound(checksum, transaction.sequence, &copy) {
                    return Verdict::Refused;
                }
                if flags & 1 != 0 {
                    copy[..4].copy_from_slice(&MAGIC.to_be_bytes());
                }
                blocks.insert(block, copy);
            }
        }
        let outcome = Outcome { blocks, end: scanned.end };
        if scanned.is_broken { Verdict::Broken(outcome) } else { Verdict::Replayed(outcome) }
    }

    fn is_v2or3(&self) -> bool {
        matches!(self.format.checksums, Checksums::V2 | Checksums::V3)
    }

    fn copy_is_sound(&self, checksum: u32, sequence: u32, copy: &[u8]) -> bool {
        let sum = crc32c(crc32c(self.format.seed, &sequence.to_be_bytes()), copy);
        match self.format.checksums {
            Checksums::V3 => checksum == sum,
            Checksums::V2 => checksum == sum & 0xFFFF,
            _ => true,
        }
    }

    fn tail_is_sound(&self, block: &[u8]) -> bool {
        let at = block.len() - 4;
        let sum = crc32c(crc32c(self.format.seed, &block[..at]), &[0; 4]);
        !self.is_v2or3() || be32(block, at) == sum
    }

    fn commit_is_sound(&self, block: &[u8], crc: u32) -> bool {
        let sum = be32(block, 16);
        match self.format.checksums {
            Checksums::None => true,
            Checksums::V1 => [(1, 4, crc), (0, 0, 0)].contains(&(block[12], block[13], sum)),
            Checksums::V2 | Checksums::V3 => {
                let mut zeroed = block.to_vec();
                zeroed[16..20].fill(0);
                sum == crc32c(self.format.seed, &zeroed)
            }
        }
    }

    fn next(&self, at: u32) -> u32 {
        if at + 1 >= self.end { self.first } else { at + 1 }
    }

    /// Tags of a descriptor: block, flags, checksum.
    fn tags(&self, block: &[u8]) -> Vec<(u64, u16, u32)> {
        let is_v3 = self.format.checksums == Checksums::V3;
        let size = match self.format.checksums {
            Checksums::V3 => 16,
            Checksums::V2 => 10 + if self.format.wide { 4 } else { 0 },
            _ => 8 + if self.format.wide { 4 } else { 0 },
        };
        let end = block.len() - if self.is_v2or3() { 4 } else { 0 };
        let (mut at, mut tags) = (12, Vec::new());
        while at + size <= end {
            let low = be32(block, at);
            let flags = be32(block, at + 4) as u16;
            let high = if self.format.wide { be32(block, at + 8) } else { 0 };
            let checksum = if is_v3 { be32(block, at + 12) } else { be32(block, at + 4) >> 16 };
            tags.push((u64::from(high) << 32 | u64::from(low), flags, checksum));
            at += size + if flags & 2 == 0 { 16 } else { 0 };
            if flags & 8 != 0 {
                break;
            }
        }
        tags
    }

    /// `None` if the kernel calls the log corrupt while it looks for its end.
    fn scan(&self) -> Option<Scanned> {
        let mut complete: Vec<Transaction> = Vec::new();
        let mut current = Transaction::new(self.sequence);
        let (mut at, mut last_time, mut crc, mut suspicious) = (self.start, 0u64, !0u32, false);
        // The number of the first transaction with a broken commit block.
        let mut broken = None;
        for _ in 0..2 * (self.end - self.first) {
            let block = (self.read)(at);
            if be32(&block, 0) != MAGIC || be32(&block, 8) != current.sequence {
                break;
            }
            at = self.next(at);
            match be32(&block, 4) {
                1 => {
                    suspicious |= !self.tail_is_sound(&block);
                    let sums = self.format.checksums == Checksums::V1 && !suspicious && broken.is_none();
                    if sums {
                        crc = crc32_be(crc, &block);
                    }
                    for (home, flags, checksum) in self.tags(&block) {
                        if sums {
                            crc = crc32_be(crc, &(self.read)(at));
                        }
                        current.copies.push((home, flags, checksum, at));
                        at = self.next(at);
                    }
                }
                2 => {
                    let time = u64::from(be32(&block, 48)) << 32 | u64::from(be32(&block, 52));
                    let is_stale = time < last_time;
                    if suspicious && !is_stale {
                        return None;
                    }
                    if suspicious {
                        break;
                    }
                    let is_sound = self.commit_is_sound(&block, crc);
                    if !is_sound && is_stale {
                        break;
                    }
                    if !is_sound || broken.is_some() {
                        broken = broken.or(Some(current.sequence));
                        if !self.async_commit || self.format.checksums == Checksums::V1 {
                            break;
                        }
                    }
                    crc = !0;
                    last_time = time;
                    let next = Transaction::new(current.sequence.wrapping_add(1));
                    let done = std::mem::replace(&mut current, next);
                    if broken.is_none() {
                        complete.push(done);
                    }
                }
                5 => {
                    suspicious |= !self.tail_is_sound(&block);
                    current.revokes.push(block);
                }
                _ => break,
            }
        }
        let end = broken.unwrap_or(current.sequence);
        Some(Scanned { complete, end, is_broken: broken.is_some() })
    }

    /// The last transaction that revoked each block; `None` if a revoke block is invalid.
    fn revoked(&self, transactions: &[Transaction]) -> Option<BTreeMap<u64, u32>> {
        let mut revoked = BTreeMap::new();
        let record = if self.format.wide { 8 } else { 4 };
        for transaction in transactions {
            for block in &transaction.revokes {
                let used = be32(block, 12) as usize;
                if used > block.len() - if self.is_v2or3() { 4 } else { 0 } {
                    return None;
                }
                let mut at = 16;
                while at + record <= used {
                    let low = u64::from(be32(block, at + record - 4));
                    let high = if self.format.wide { u64::from(be32(block, at)) } else { 0 };
                    revoked.insert(high << 32 | low, transaction.sequence);
                    at += record;
                }
            }
        }
        Some(revoked)
    }
}
