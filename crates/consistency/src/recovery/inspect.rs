//! Shows a log transaction by transaction, without replaying it.
//!
//! The walk follows the rules of `scan`, but does not stop at damage: it reports the problems of a
//! damaged transaction and continues behind it to the end of the log. It never writes, and takes no
//! more steps than the ring has blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xact_device::BlockDevice;
use xact_layout::feature::incompat;
use xact_layout::jbd2::{
    BlockType, Checksums, CommitBlock, Features, Header, JournalSuperblock, LogFormat, TagFlags, crc32_be,
    decode_patches, decode_revokes, decode_tags,
};
use xact_types::{BlockNr, Error, Result};

use super::reader::LogReader;
use crate::core::superblock_io;
use crate::core::volume::Volume;
use crate::journal::location::JournalLayout;
use crate::journal::log::Ring;
use crate::journal::superblock::JournalHead;

/// The contents of a log on the volume.
#[derive(Debug, Clone)]
pub struct LogContents {
    pub superblock: JournalSuperblock,
    /// The volume's superblock says that the log must be replayed.
    pub needs_recovery: bool,
    /// The ring of the log, in blocks of the journal.
    pub first: u32,
    pub end: u32,
    layout: JournalLayout,
    /// From the tail on, oldest first.
    pub transactions: Vec<LoggedTransaction>,
    /// Blocks from the tail to the end of the last transaction.
    pub used: u32,
}

impl LogContents {
    /// The position of a journal block on the volume.
    pub fn place(&self, log_block: u32) -> Result<BlockNr> {
        Ok(self.layout.place(log_block)?.0)
    }
}

/// How a replay treats a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoggedState {
    /// Whole, and replayed.
    Complete,
    /// The last one; a crash interrupted it, or damage looks like that. It is dropped.
    Torn,
    /// The last one, without a commit block. It is dropped.
    Unfinished,
    /// Damaged, and followed by others or explained by damage alone: the replay refuses the log.
    Damaged,
}

#[derive(Debug, Clone)]
pub struct LoggedTransaction {
    pub sequence: u32,
    pub state: LoggedState,
    /// First block, in the journal, and the number of blocks.
    pub start: u32,
    pub len: u32,
    /// Seconds and nanoseconds since 1970 in the commit block; `None` without a commit block.
    pub time: Option<(u64, u32)>,
    /// Numbers of the journal's own blocks, by kind.
    pub descriptors: u32,
    pub revoke_blocks: u32,
    pub patch_blocks: u32,
    pub copies: Vec<LoggedCopy>,
    /// Blocks of which the transaction has some bytes, each once, and the number of bytes.
    pub patched: BTreeMap<BlockNr, usize>,
    /// Blocks whose older copies must not be replayed.
    pub revoked: Vec<BlockNr>,
    /// The problems found in it.
    pub problems: Vec<String>,
}

/// A copy of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedCopy {
    /// The block that it is a copy of.
    pub home: BlockNr,
    /// Its block in the journal.
    pub at: u32,
    /// It begins with the journal's magic, which the log leaves out.
    pub is_escaped: bool,
    /// Whether its checksum is right; `None` if the log has no checksum for each copy.
    pub checksum_ok: Option<bool>,
    /// It is not replayed: a later transaction has a newer copy, or revokes it.
    pub is_superseded: bool,
}

/// Reads the log of a volume. Errors: `Usage` if the volume has no journal; `Corrupt` if the
/// journal's superblock or position is damaged, so that no log can be found; `Unsupported`, `Io`.
pub fn inspect(device: &Arc<dyn BlockDevice>) -> Result<LogContents> {
    let home = superblock_io::read(&**device)?;
    if !superblock_io::has_journal(&home.superblock)? {
        return Err(Error::Usage("the volume has no journal".into()));
    }
    let superblock = home.superblock;
    let volume = Volume::new(device.clone(), superblock.block_size() as usize, superblock.blocks_count())?;
    let layout = JournalLayout::locate(&volume, &superblock)?;
    let head = JournalHead::read(&volume, &layout)?.fields;
    let ring = Ring::new(layout, &head)?;
    let mut contents = LogContents {
        needs_recovery: superblock.has_incompat(incompat::RECOVER),
        first: ring.first,
        end: ring.end,
        layout: ring.layout.clone(),
        transactions: Vec::new(),
        used: 0,
        superblock: head,
    };
    if contents.superblock.start != 0 {
        let mut reader = LogReader::new(&volume, &ring);
        let mut walk = Walk::new(&mut reader, &contents.superblock);
        walk.run()?;
        contents.used = walk.passed;
        contents.transactions = walk.transactions;
        mark_superseded(&mut contents.transactions);
    }
    Ok(contents)
}

struct Walk<'a, 'b> {
    reader: &'a mut LogReader<'b>,
    format: LogFormat,
    at: u32,
    passed: u32,
    transactions: Vec<LoggedTransaction>,
    /// v1: sum over the current transaction.
    crc: u32,
    last_secs: u64,
    async_commit: bool,
}

impl LoggedTransaction {
    fn begun(sequence: u32, start: u32) -> LoggedTransaction {
        LoggedTransaction {
            sequence,
            state: LoggedState::Unfinished,
            start,
            len: 0,
            time: None,
            descriptors: 0,
            revoke_blocks: 0,
            patch_blocks: 0,
            copies: Vec::new(),
            patched: BTreeMap::new(),
            revoked: Vec::new(),
            problems: Vec::new(),
        }
    }
}

impl<'a, 'b> Walk<'a, 'b> {
    fn new(reader: &'a mut LogReader<'b>, head: &JournalSuperblock) -> Walk<'a, 'b> {
        let current = LoggedTransaction::begun(head.sequence, head.start);
        Walk {
            reader,
            format: head.format(),
            at: head.start,
            passed: 0,
            transactions: vec![current],
            crc: !0,
            last_secs: 0,
            async_commit: head.features.has_incompat(Features::ASYNC_COMMIT),
        }
    }

    fn current(&mut self) -> &mut LoggedTransaction {
        self.transactions.last_mut().expect("there is always one at hand")
    }

    fn run(&mut self) -> Result<()> {
        while self.passed < self.reader.ring.blocks() {
            let block = self.reader.block(self.at)?.to_vec();
            let header = Header::decode(&block);
            let sequence = self.current().sequence;
            match header.filter(|header| header.sequence == sequence).map(|header| header.block_type) {
                Some(BlockType::Descriptor) => self.descriptor(&block)?,
                Some(BlockType::Revoke) => self.revoke(&block),
                Some(BlockType::Patches) => self.patches(&block),
                Some(BlockType::Commit) => {
                    if !self.commit(&block) {
                        break;
                    }
                }
                _ => break,
            }
        }
        if self.current().len == 0 {
            self.transactions.pop();
        }
        self.judge_torn_ones();
        Ok(())
    }

    fn pass(&mut self, blocks: u32) {
        self.passed += blocks;
        self.current().len += blocks;
        self.at = self.reader.ring.advance(self.at, blocks);
    }

    fn descriptor(&mut self, block: &[u8]) -> Result<()> {
        let (format, at) = (self.format, self.at);
        let sequence = self.current().sequence;
        if !format.tail_is_valid(block) {
            self.current()
                .problems
                .push(format!("the descriptor in journal block {at} has a wrong checksum"));
        }
        self.crc = crc32_be(self.crc, block);
        let mut copies = Vec::new();
        for (tag, index) in decode_tags(&format, block).iter().zip(1..) {
            let place = self.reader.ring.advance(at, index);
            let copy = self.reader.block(place)?;
            self.crc = crc32_be(self.crc, copy);
            let checked = format.has_block_checksums();
            copies.push(LoggedCopy {
                home: BlockNr(tag.block),
                at: place,
                is_escaped: tag.flags.has(TagFlags::ESCAPE),
                checksum_ok: checked.then(|| format.copy_is_valid(tag, sequence, copy)),
                is_superseded: false,
            });
        }
        let count = copies.len() as u32;
        let current = self.current();
        current.descriptors += 1;
        for copy in copies.iter().filter(|copy| copy.checksum_ok == Some(false)) {
            current.problems.push(format!("the copy of {} has a wrong checksum", copy.home));
        }
        current.copies.append(&mut copies);
        self.pass(1 + count);
        Ok(())
    }

    fn revoke(&mut self, block: &[u8]) {
        let (format, at) = (self.format, self.at);
        let current = self.current();
        current.revoke_blocks += 1;
        if !format.tail_is_valid(block) {
            current.problems.push(format!("the revoke block in journal block {at} has a wrong checksum"));
        }
        match decode_revokes(&format, block) {
            Some(revoked) => current.revoked.extend(revoked.into_iter().map(BlockNr)),
            None => current.problems.push(format!("the revoke block in journal block {at} is damaged")),
        }
        self.pass(1);
    }

    fn patches(&mut self, block: &[u8]) {
        let (format, at) = (self.format, self.at);
        self.crc = crc32_be(self.crc, block);
        let current = self.current();
        current.patch_blocks += 1;
        let sound = format.tail_is_valid(block);
        match decode_patches(&format, block).filter(|_| sound) {
            Some(patches) => {
                for patch in patches {
                    *current.patched.entry(BlockNr(patch.block)).or_default() += patch.bytes.len();
                }
            }
            None => current.problems.push(format!("the block of patches in journal block {at} is damaged")),
        }
        self.pass(1);
    }

    /// Ends the current transaction. False if its commit block is left from an earlier round
    /// through the ring, so that the log ends before it.
    fn commit(&mut self, block: &[u8]) -> bool {
        let commit = CommitBlock::decode(block);
        let (format, crc) = (self.format, self.crc);
        let own = CommitBlock::is_valid(&format, block);
        let sum = format.checksums != Checksums::V1 || commit.matches_transaction(crc);
        if !(own && sum) && commit.secs < self.last_secs {
            return false;
        }
        let current = self.current();
        current.time = Some((commit.secs, commit.nanos));
        current.state = match current.problems.is_empty() {
            true if own && sum => LoggedState::Complete,
            true => LoggedState::Torn,
            false => LoggedState::Damaged,
        };
        if !own {
            current.problems.push("the commit block has a wrong checksum".into());
        }
        if !sum {
            current.problems.push("the commit block's checksum is not that of the transaction".into());
        }
        let next = current.sequence.wrapping_add(1);
        self.last_secs = commit.secs;
        self.pass(1);
        self.crc = !0;
        self.transactions.push(LoggedTransaction::begun(next, self.at));
        true
    }

    /// A wrong commit block at the end of the log is what a crash leaves. If the log continues
    /// behind it, it is damage. (With ASYNC_COMMIT the next transaction may have been begun, as for
    /// `scan`.)
    fn judge_torn_ones(&mut self) {
        let mut goes_on = false;
        for transaction in self.transactions.iter_mut().rev() {
            if transaction.state == LoggedState::Torn && goes_on {
                transaction.state = LoggedState::Damaged;
            }
            goes_on |= transaction.time.is_some() || !self.async_commit;
        }
    }
}

/// Marks the copies that a replay leaves out.
fn mark_superseded(transactions: &mut [LoggedTransaction]) {
    let mut newer = BTreeSet::new();
    for transaction in transactions.iter_mut().rev() {
        if transaction.state != LoggedState::Complete {
            continue;
        }
        for copy in transaction.copies.iter_mut().rev() {
            let revoked = transaction.revoked.contains(&copy.home);
            copy.is_superseded = revoked || !newer.insert(copy.home);
        }
        newer.extend(&transaction.revoked);
    }
}
