//! Third pass: verifies every copy that counts, then writes the newest contents of each block home,
//! with the patches that came after the last copy. Without a copy, patches apply to the block in
//! its place, or to zeros.

use xact_layout::jbd2::{LogFormat, Patch, Tag, TagFlags, decode_patches, decode_tags, unescape};
use xact_types::{BlockNr, Error, Result, Site};

use super::RecoveryReport;
use super::reader::LogReader;
use super::revoke::Revokes;
use super::scan::Transaction;
use crate::core::cache::BlockMap;
use crate::fault::{Fault, Faults};
use crate::options::EngineOptions;

pub(super) struct Replay<'a, 'b> {
    reader: &'a mut LogReader<'b>,
    format: &'a LogFormat,
    transactions: &'a [Transaction],
    revokes: &'a Revokes,
    /// Bytes of copies that are sorted and written together.
    batch_bytes: usize,
    faults: Faults,
    /// The sources of each block's newest contents.
    newest: BlockMap<Newest>,
}

/// The log's records of a block that count.
#[derive(Default)]
struct Newest {
    /// The log block of its newest copy, and whether the copy is escaped.
    copy: Option<(u32, bool)>,
    /// Patches newer than the copy, in order. All patches together take no more memory than a few
    /// times the log.
    patches: Vec<Bytes>,
}

/// Bytes of a block.
struct Bytes {
    /// The block is zeros except for these bytes.
    zeroed: bool,
    at: usize,
    bytes: Box<[u8]>,
}

impl<'a, 'b> Replay<'a, 'b> {
    pub fn new(
        reader: &'a mut LogReader<'b>,
        format: &'a LogFormat,
        transactions: &'a [Transaction],
        revokes: &'a Revokes,
        options: &EngineOptions,
    ) -> Replay<'a, 'b> {
        let (batch_bytes, faults) = (options.steps.replay_bytes, options.faults());
        Replay { reader, format, transactions, revokes, batch_bytes, faults, newest: BlockMap::default() }
    }

    pub fn run(&mut self, report: &mut RecoveryReport) -> Result<()> {
        let transactions = self.transactions;
        for transaction in transactions {
            self.take_copies(transaction, report)?;
            self.take_patches(transaction, report)?;
        }
        report.blocks_written = self.newest.len() as u64;
        self.write()
    }

    fn take_copies(&mut self, transaction: &Transaction, report: &mut RecoveryReport) -> Result<()> {
        for &descriptor in &transaction.descriptors {
            let tags = decode_tags(self.format, self.reader.block(descriptor)?);
            let mut at = descriptor;
            for tag in &tags {
                at = self.reader.ring.advance(at, 1);
                if self.revokes.stop(tag.block, transaction.sequence) {
                    report.revoked_copies += 1;
                    continue;
                }
                report.copies += 1;
                self.check_home(tag.block)?;
                self.verify(transaction.sequence, tag, at)?;
                let copy = Some((at, tag.flags.has(TagFlags::ESCAPE)));
                self.newest.insert(tag.block, Newest { copy, patches: Vec::new() });
            }
        }
        Ok(())
    }

    fn take_patches(&mut self, transaction: &Transaction, report: &mut RecoveryReport) -> Result<()> {
        for &at in &transaction.patches {
            let block = self.reader.block(at)?.to_vec();
            let Some(patches) = decode_patches(self.format, &block) else {
                let (place, _) = self.reader.ring.layout.place(at)?;
                return Err(Error::corrupt(Site::Block(place), "a block of patches in the log is damaged"));
            };
            for patch in patches {
                if self.revokes.stop(patch.block, transaction.sequence) {
                    report.revoked_copies += 1;
                    continue;
                }
                report.patches += 1;
                self.check_home(patch.block)?;
                let newest = self.newest.entry(patch.block).or_default();
                if patch.zeroed {
                    *newest = Newest::default();
                }
                let Patch { zeroed, at, bytes, .. } = patch;
                newest.patches.push(Bytes { zeroed, at, bytes: block[bytes].into() });
            }
        }
        Ok(())
    }

    fn check_home(&self, block: u64) -> Result<()> {
        let home = BlockNr(block);
        if self.reader.volume.check_range(home, 1).is_err() {
            return Err(Error::corrupt(Site::Block(home), "a copy in the log belongs outside the volume"));
        }
        let of_journal = |run: &crate::journal::location::JournalRun| {
            (run.start.0..run.start.0 + u64::from(run.blocks)).contains(&block)
        };
        if self.reader.ring.layout.runs().iter().any(of_journal) {
            return Err(Error::corrupt(Site::Block(home), "a copy in the log belongs into the log itself"));
        }
        Ok(())
    }

    fn verify(&mut self, sequence: u32, tag: &Tag, at: u32) -> Result<()> {
        // Without checksums of copies they need not be read twice.
        if !self.format.has_block_checksums() || self.faults.has(Fault::AcceptBadChecksum) {
            return Ok(());
        }
        if !self.format.copy_is_valid(tag, sequence, self.reader.block(at)?) {
            let home = BlockNr(tag.block);
            return Err(Error::corrupt(Site::Block(home), "the log's copy of it is damaged"));
        }
        Ok(())
    }

    /// In the order of the log, so that it is read sequentially.
    fn write(&mut self) -> Result<()> {
        let mut batch: Vec<(BlockNr, Vec<u8>)> = Vec::new();
        let most = (self.batch_bytes / self.format.block_size).max(1);
        let mut blocks: Vec<(u64, Newest)> = std::mem::take(&mut self.newest).into_iter().collect();
        blocks.sort_unstable_by_key(|(block, newest)| (newest.copy, *block));
        for (block, newest) in blocks {
            batch.push((BlockNr(block), self.contents(BlockNr(block), &newest)?));
            if batch.len() == most {
                self.write_batch(&mut batch)?;
            }
        }
        self.write_batch(&mut batch)
    }

    fn contents(&mut self, home: BlockNr, newest: &Newest) -> Result<Vec<u8>> {
        let mut contents = vec![0; self.format.block_size];
        match newest.copy {
            Some((at, escaped)) => {
                contents.copy_from_slice(self.reader.block(at)?);
                if escaped {
                    unescape(&mut contents);
                }
            }
            None if newest.patches.first().is_some_and(|patch| patch.zeroed) => {}
            None => self.reader.volume.read(home, &mut contents)?,
        }
        for patch in &newest.patches {
            contents[patch.at..patch.at + patch.bytes.len()].copy_from_slice(&patch.bytes);
        }
        Ok(contents)
    }

    fn write_batch(&self, batch: &mut Vec<(BlockNr, Vec<u8>)>) -> Result<()> {
        batch.sort_unstable_by_key(|(block, _)| *block);
        self.reader.volume.write_sorted(batch)?;
        batch.clear();
        Ok(())
    }
}
