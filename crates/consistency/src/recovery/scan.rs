//! First pass: finds the end of the log, and the journal's own blocks in it.

use xact_layout::jbd2::{
    BlockType, Checksums, CommitBlock, Features, Header, JournalSuperblock, LogFormat, crc32_be, decode_tags,
};
use xact_types::{Error, Result, Site};

use super::reader::LogReader;

/// A complete transaction, by the positions of its own blocks in the log.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub sequence: u32,
    /// Descriptor blocks; the copies follow each of them.
    pub descriptors: Vec<u32>,
    pub revokes: Vec<u32>,
    /// Blocks of patches.
    pub patches: Vec<u32>,
}

pub(super) struct Scan {
    /// Complete transactions, oldest first.
    pub transactions: Vec<Transaction>,
    /// Sequence number behind the last of them.
    pub end: u32,
    /// The block behind the last commit block.
    pub head: u32,
    pub torn_commit: bool,
}

fn corrupt<T>(what: &'static str) -> Result<T> {
    Err(Error::corrupt(Site::JournalSuperblock, what))
}

/// A commit block's verdict on its transaction.
enum Verdict {
    Complete,
    /// The log ended before it: the block is left from an earlier round through the ring.
    Stale,
    /// Its checksum is wrong.
    Broken,
}

struct Scanner<'a, 'b> {
    reader: &'a mut LogReader<'b>,
    format: LogFormat,
    async_commit: bool,
    /// The log may have blocks of patches.
    patches: bool,
    /// Next block to be looked at.
    at: u32,
    /// Blocks passed; a log cannot be longer than its ring.
    passed: u64,
    current: Transaction,
    /// v1: sum over the current transaction so far.
    crc: u32,
    /// A descriptor or revoke block of the current transaction has a wrong checksum. It is either
    /// damaged or a stale block behind the end of the log; the commit block decides.
    suspicious: bool,
    last_commit_secs: u64,
}

impl Scan {
    /// The rules are the kernel's; the head of `recovery` lists the differences.
    pub fn run(reader: &mut LogReader<'_>, fields: &JournalSuperblock) -> Result<Scan> {
        let mut scanner = Scanner {
            format: fields.format(),
            async_commit: fields.features.has_incompat(Features::ASYNC_COMMIT),
            patches: fields.features.has_incompat(Features::XACT_PATCHES),
            at: fields.start,
            passed: 0,
            current: Transaction { sequence: fields.sequence, ..Transaction::default() },
            crc: !0,
            suspicious: false,
            last_commit_secs: 0,
            reader,
        };
        scanner.run()
    }
}

impl Scanner<'_, '_> {
    fn run(&mut self) -> Result<Scan> {
        let mut scan = Scan { transactions: Vec::new(), end: 0, head: self.at, torn_commit: false };
        loop {
            let at = self.at;
            let block = self.reader.block(at)?;
            let Some(header) = Header::decode(block) else { break };
            if header.sequence != self.current.sequence {
                break;
            }
            match header.block_type {
                BlockType::Descriptor => self.descriptor(at)?,
                BlockType::Revoke => {
                    self.suspicious |= !self.format.tail_is_valid(block);
                    self.current.revokes.push(at);
                    self.pass(1)?;
                }
                BlockType::Patches if self.patches => {
                    self.suspicious |= !self.format.tail_is_valid(block);
                    self.crc = crc32_be(self.crc, block);
                    self.current.patches.push(at);
                    self.pass(1)?;
                }
                BlockType::Commit => match self.judge(at)? {
                    Verdict::Complete => {
                        self.pass(1)?;
                        let next = self.current.sequence.wrapping_add(1);
                        let next = Transaction { sequence: next, ..Transaction::default() };
                        scan.transactions.push(std::mem::replace(&mut self.current, next));
                        scan.head = self.at;
                        self.crc = !0;
                    }
                    Verdict::Stale => break,
                    Verdict::Broken => {
                        self.pass(1)?;
                        self.refuse_if_the_log_goes_on()?;
                        scan.torn_commit = true;
                        break;
                    }
                },
                _ => break,
            }
        }
        scan.end = self.current.sequence;
        Ok(scan)
    }

    fn pass(&mut self, blocks: u32) -> Result<()> {
        self.passed += u64::from(blocks);
        if self.passed > u64::from(self.reader.ring.blocks()) {
            return corrupt("describes a log that is longer than its ring");
        }
        self.at = self.reader.ring.advance(self.at, blocks);
        Ok(())
    }

    fn descriptor(&mut self, at: u32) -> Result<()> {
        let v1 = self.format.checksums == Checksums::V1;
        let block = self.reader.block(at)?;
        self.suspicious |= !self.format.tail_is_valid(block);
        let copies = decode_tags(&self.format, block).len() as u32;
        if v1 && !self.suspicious {
            self.crc = crc32_be(self.crc, block);
            for index in 0..copies {
                let copy = self.reader.ring.advance(at, 1 + index);
                self.crc = crc32_be(self.crc, self.reader.block(copy)?);
            }
        }
        self.current.descriptors.push(at);
        self.pass(1 + copies)
    }

    fn judge(&mut self, at: u32) -> Result<Verdict> {
        let block = self.reader.block(at)?;
        let commit = CommitBlock::decode(block);
        // Time running backwards means an earlier round through the ring.
        let stale = commit.secs < self.last_commit_secs;
        if self.suspicious {
            return if stale {
                Ok(Verdict::Stale)
            } else {
                corrupt("describes a log in which a complete transaction is damaged")
            };
        }
        let sound = CommitBlock::is_valid(&self.format, block)
            && (self.format.checksums != Checksums::V1 || commit.matches_transaction(self.crc));
        if sound {
            self.last_commit_secs = commit.secs;
            return Ok(Verdict::Complete);
        }
        Ok(if stale { Verdict::Stale } else { Verdict::Broken })
    }

    /// Behind a commit with a wrong checksum: if a crash interrupted that commit, no block of a
    /// later transaction can be there, since none is begun before it is durable. (With ASYNC_COMMIT
    /// the kernel allows a later one to have been begun, but not to be complete.)
    fn refuse_if_the_log_goes_on(&mut self) -> Result<()> {
        let next = self.current.sequence.wrapping_add(1);
        let begun = |header: Header| header.sequence == next;
        if !self.async_commit {
            return match Header::decode(self.reader.block(self.at)?) {
                Some(header) if begun(header) => {
                    corrupt("describes a log with a damaged commit in its middle")
                }
                _ => Ok(()),
            };
        }
        while let Some(header) = Header::decode(self.reader.block(self.at)?).filter(|h| begun(*h)) {
            match header.block_type {
                BlockType::Commit => return corrupt("describes a log with a damaged commit in its middle"),
                BlockType::Descriptor => {
                    let copies = decode_tags(&self.format, self.reader.block(self.at)?).len() as u32;
                    self.pass(1 + copies)?;
                }
                BlockType::Revoke | BlockType::Patches => self.pass(1)?,
                _ => break,
            }
        }
        Ok(())
    }
}
