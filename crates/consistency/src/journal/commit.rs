//! Writes one transaction to the log: in two steps as stock jbd2, or in a single write.
//!
//! Why a single write is enough (JOJ-3): a crash leaves each of its sectors old or new. If a sector
//! that the checksum covers is old, the checksum is wrong. Of the commit block, only the first
//! sector is read. If that sector is old, it is not a commit block with this sequence number: no
//! earlier block of the ring has this number. The same holds for a revoke block, whose records all
//! lie in its first sector here. So a transaction is found whole or not at all. Our recovery,
//! e2fsck and the kernel all compare this checksum before they replay anything. (The checksums of
//! v3 are compared during the replay, which is too late.)

use std::sync::atomic::Ordering::Relaxed;

use xact_device::SECTOR_BYTES;
use xact_layout::jbd2::{
    CHECKSUM_V1_CRC32, Checksums, CommitBlock, LogFormat, PatchWriter, Tag, TagFlags, crc32_be,
    encode_descriptor, encode_revokes, escape, needs_escape, revokes_per_block, tags_per_block,
};
use xact_types::{CommitId, Error, Result, Timestamp};

use crate::core::block::{BlockRef, Record};
use crate::core::dirty_blocks::{Frozen, FrozenBlock};
use crate::core::superblock_io::Flags;
use crate::fault::{Fault, Faults};
use crate::journal::Journal;
use crate::journal::log::Committed;
use crate::options::{CommitWrites, LogRecords};

/// The one sequence number (of 2^32) that must not be found torn: the kernel and e2fsck note the
/// number of the torn transaction, take 0 for "none", and would replay it.
const UNTEARABLE: u32 = 0;

/// A transaction's blocks in the log, except the commit block.
struct Body {
    blocks: Vec<BlockRef>,
    /// The v1 sum over patches, descriptors and copies; revoke blocks are not part of it.
    crc: u32,
}

impl Body {
    /// Records the changed bytes of each block if they are few and its record knows them, else the
    /// whole block.
    fn build(
        format: &LogFormat,
        sequence: u32,
        frozen: &mut [FrozenBlock],
        revokes: std::slice::Chunks<'_, u64>,
        faults: Faults,
    ) -> Body {
        let mut body = Body { blocks: Vec::new(), crc: !0 };
        for records in revokes {
            body.blocks.push(encode_revokes(format, sequence, records).into());
        }
        let mut patches = PatchWriter::new(format, sequence);
        let mut copied = Vec::with_capacity(frozen.len());
        for block in frozen {
            match block.record.changes(&block.contents) {
                Some(changes) => {
                    block.is_whole = block.record == Record::OnZeros;
                    for (index, range) in changes.into_iter().enumerate() {
                        let zeroed = block.is_whole && index == 0;
                        patches.push(block.slot.block.0, zeroed, &block.contents, range);
                    }
                }
                None => copied.push(&*block),
            }
        }
        for block in patches.finish() {
            body.crc = crc32_be(body.crc, &block);
            body.blocks.push(block.into());
        }
        for part in copied.chunks(tags_per_block(format)) {
            let mut copies = Vec::with_capacity(part.len());
            let mut tags = Vec::with_capacity(part.len());
            for block in part {
                let mut flags = TagFlags::default();
                let mut copy = block.contents.clone();
                if needs_escape(&copy) && !faults.has(Fault::NoEscape) {
                    flags = TagFlags::ESCAPE;
                    let mut bytes = copy.to_vec();
                    escape(&mut bytes);
                    copy = bytes.into();
                }
                let checksum =
                    if format.has_block_checksums() { format.copy_checksum(sequence, &copy) } else { 0 };
                tags.push(Tag { block: block.slot.block.0, flags, checksum });
                copies.push(copy);
            }
            let descriptor = encode_descriptor(format, sequence, &tags);
            if format.checksums == Checksums::V1 {
                body.crc = crc32_be(body.crc, &descriptor);
                body.crc = copies.iter().fold(body.crc, |crc, copy| crc32_be(crc, copy));
            }
            body.blocks.push(descriptor.into());
            body.blocks.append(&mut copies);
        }
        body
    }

    fn commit_block(&self, format: &LogFormat, sequence: u32, faults: Faults) -> BlockRef {
        let now = Timestamp::now();
        let v1 = format.checksums == Checksums::V1 && !faults.has(Fault::NoTransactionChecksum);
        CommitBlock {
            sequence,
            checksum_kind: if v1 { CHECKSUM_V1_CRC32 } else { (0, 0) },
            checksum: if v1 { self.crc } else { 0 },
            secs: now.secs as u64,
            nanos: now.nanos,
        }
        .encode(format)
        .into()
    }
}

impl Journal {
    /// Leader: closes the running commit, writes it, and wakes its waiters.
    pub(super) fn commit_running(&self) -> Result<()> {
        let commit = self.core.pipeline.lock()?;
        let mut frozen = self.core.blocks.freeze(commit, |block, contents| {
            // Every copy of the superblock in the log must be true after its replay: it says that
            // there is a log to recover, whatever the operation that changed it knew.
            if block == self.superblock_place.block {
                let bytes = std::sync::Arc::make_mut(contents);
                Flags { recover: Some(true), ..Flags::default() }.apply(self.superblock_place.within(bytes));
            }
        });
        for block in frozen.blocks.iter_mut().filter(|block| block.slot.block == self.superblock_place.block)
        {
            // Its flags in its own place are not those that the previous commit left.
            block.record = Record::Copy;
        }
        let revokes = self.note_logged(commit, &frozen);
        let deferred = self.core.deferred.begin(commit, self.core.faults);
        self.core.pipeline.switch();
        deferred.write(&self.core.volume)?;
        if frozen.is_empty() {
            // Nothing to log, but data that was written before must become durable all the same.
            self.core.volume.flush()?;
        } else {
            self.write_transaction(commit, frozen, &revokes)?;
        }
        self.core.pipeline.finish(commit);
        Ok(())
    }

    /// Notes which blocks this commit copies to the log, and finds the freed blocks with an older
    /// copy there. Runs before the next commit begins, which may free some of the former.
    fn note_logged(&self, commit: CommitId, frozen: &Frozen) -> Vec<u64> {
        let mut logged = self.log.logged.lock();
        let mut revokes: Vec<u64> =
            frozen.forgotten.iter().map(|b| b.0).filter(|b| logged.contains_key(b)).collect();
        for block in &frozen.blocks {
            logged.insert(block.slot.block.0, commit);
        }
        drop(logged);
        revokes.sort_unstable();
        if self.core.faults.has(Fault::NoRevoke) {
            revokes.clear();
        }
        revokes
    }

    fn write_transaction(&self, commit: CommitId, mut frozen: Frozen, revokes: &[u64]) -> Result<()> {
        let format = &self.log.format;
        let (start, sequence) = {
            let state = self.log.state.lock();
            (state.head, state.sequence)
        };
        let revokes = revokes.chunks(revokes_in(self.commit_writes, format));
        let body = Body::build(format, sequence, &mut frozen.blocks, revokes, self.core.faults);
        let len = body.blocks.len() as u32 + 1;
        self.make_room(len)?;
        self.mark_in_use(start, sequence)?;
        match (self.commit_writes, sequence) {
            (CommitWrites::TwoStep, _) | (_, UNTEARABLE) => {
                self.write_in_two_steps(start, sequence, &body)?
            }
            (CommitWrites::Single, _) => self.write_at_once(commit, start, sequence, body)?,
        }
        // Durable by this flush: the commit block, and so the transaction. Without it a caller of
        // commit() would take changes for safe that a crash undoes, freed blocks would be reused
        // while a replay can still bring their old owner back, and the log could hold the next
        // transaction behind a torn one.
        if !self.core.faults.has(Fault::NoFlushAfterCommitBlock) {
            self.core.volume.flush()?;
        }
        let blocks = frozen.blocks.len() as u64;
        self.settle(commit, sequence, start, len, frozen);
        self.commits.fetch_add(1, Relaxed);
        self.committed_blocks.fetch_add(blocks, Relaxed);
        self.wake_checkpointer();
        Ok(())
    }

    fn write_in_two_steps(&self, start: u32, sequence: u32, body: &Body) -> Result<()> {
        let ring = self.log.ring();
        ring.write(&self.core.volume, start, &body.blocks)?;
        // Durable by this flush: the blocks of this transaction, and all data whose write returned
        // before the operations that refer to it ended, since those ended before the commit was
        // locked. Without it the commit block could be durable alone: a replay would write old
        // contents of the log home, and files would show stale data.
        if !self.core.faults.has(Fault::NoFlushBeforeCommitBlock) {
            self.core.volume.flush()?;
        }
        let at = ring.advance(start, body.blocks.len() as u32);
        ring.write(&self.core.volume, at, &[body.commit_block(&self.log.format, sequence, self.core.faults)])
    }

    fn write_at_once(&self, commit: CommitId, start: u32, sequence: u32, mut body: Body) -> Result<()> {
        // Durable by this flush: the data that this transaction refers to. Without it the whole
        // transaction could be durable alone, and files would show the previous contents of their
        // blocks. If a later flush has covered the data, this does none. Patches also depend on the
        // contents in place.
        let asked = self.core.pipeline.is_ordered(commit);
        let ordered = asked || self.ordered_data || self.log_records == LogRecords::SubBlock;
        if ordered && !self.core.faults.has(Fault::NoFlushOfData) {
            self.core.volume.flush_data()?;
        }
        let commit_block = body.commit_block(&self.log.format, sequence, self.core.faults);
        body.blocks.push(commit_block);
        self.log.ring().write(&self.core.volume, start, &body.blocks)
    }

    /// Before the first transaction after a clean open: notes on the volume that there is a log.
    fn mark_in_use(&self, start: u32, sequence: u32) -> Result<()> {
        let mut head = self.head.lock();
        if head.fields.start != 0 {
            return Ok(());
        }
        self.superblock_place
            .write_home(&self.core.volume, Flags { recover: Some(true), ..Flags::default() })?;
        // Durable by this flush: the superblock's flag. It must not come after the journal's own
        // superblock: the kernel discards the log of a volume that claims to be clean at the next
        // mount.
        self.core.volume.flush()?;
        head.fields.start = start;
        head.fields.sequence = sequence;
        // Durable by the flush before the commit block. Otherwise a recovery would not look for the
        // transaction in its place.
        head.write(&self.core.volume)
    }

    /// The commit is durable. From now on checkpoints write its contents home, and no older
    /// contents of the blocks that it freed.
    fn settle(&self, commit: CommitId, sequence: u32, start: u32, len: u32, frozen: Frozen) {
        let mut being_written = false;
        for &block in &frozen.forgotten {
            self.core.blocks.cache.with(block, |_, state| {
                if state.committed.take().is_some() {
                    self.pinned_blocks.fetch_sub(1, Relaxed);
                    self.checkpoint_writes_saved.fetch_add(1, Relaxed);
                }
                being_written |= state.writing;
                // Revoked by now, so its next owner may write it in place.
                if state.in_no_commit() {
                    self.core.blocks.set_data(state, false);
                }
            });
        }
        let mut blocks = Vec::with_capacity(frozen.blocks.len());
        for FrozenBlock { slot, contents, is_whole, .. } in frozen.blocks {
            let mut state = slot.lock_any();
            if is_whole {
                state.whole = Some(commit);
            }
            state.committing = None;
            if state.committed.replace((commit, contents)).is_none() {
                self.pinned_blocks.fetch_add(1, Relaxed);
            } else {
                self.checkpoint_writes_saved.fetch_add(1, Relaxed);
            }
            self.journaled_data_blocks.fetch_add(u64::from(state.data), Relaxed);
            drop(state);
            blocks.push(slot);
        }
        {
            let ring = self.log.ring();
            let mut state = self.log.state.lock();
            state.head = ring.advance(start, len);
            state.sequence = sequence.wrapping_add(1);
            state.used += len;
            state.committed.push_back(Committed { commit, sequence, start, len, blocks });
        }
        if being_written {
            // A checkpoint may be writing such a block. Its new owner may write it as soon as this
            // commit counts as durable, so the checkpoint's write must have ended by then.
            drop(self.home_writes.lock());
        }
    }

    /// Makes sure that `len` blocks of the log are free, by a checkpoint if they are not.
    /// Everything in the log is durable and does not change (committed contents are separate from
    /// running ones), so a checkpoint can always empty all of it.
    fn make_room(&self, len: u32) -> Result<()> {
        let capacity = self.log.capacity();
        if len > capacity {
            return Err(Error::TooLarge { blocks: len.into(), limit: capacity.into() });
        }
        while self.log.used() + len > capacity {
            self.checkpoint_to(capacity - len)?;
        }
        // Committed blocks that are not home stay in memory, and a large log must not fill it.
        let most =
            (self.cache_bytes / self.core.volume.block_size).max(self.core.pipeline.max_alone() as usize);
        while self.pinned_blocks.load(Relaxed) > most && self.log.used() > 0 {
            self.checkpoint_to(self.log.used() / 2)?;
        }
        Ok(())
    }
}

/// Revoke records that fit one block. In a single write, those that fit its first sector.
pub(super) fn revokes_in(commit_writes: CommitWrites, format: &LogFormat) -> usize {
    match commit_writes {
        CommitWrites::TwoStep => revokes_per_block(format),
        CommitWrites::Single => revokes_per_block(&LogFormat { block_size: SECTOR_BYTES, ..*format }),
    }
}

/// The largest size of a transaction, by the size of the ring in blocks.
pub(super) struct Limits {
    /// As jbd2: a quarter of the ring.
    pub credits: u32,
    /// For a handle that has the transaction for itself: half of the ring. Descriptors, revoke
    /// records and the commit block still fit the rest of the ring, so an empty log takes any
    /// transaction.
    pub alone: u32,
    /// Freed blocks, whose records take no more than another quarter.
    pub forgotten: usize,
}

impl Limits {
    pub fn of(revokes_per_block: usize, ring_blocks: u32) -> Limits {
        let quarter = ring_blocks / 4;
        Limits { credits: quarter, alone: ring_blocks / 2, forgotten: quarter as usize * revokes_per_block }
    }

    /// The smallest ring in which a handle that is alone may have `credits`; `None` if there is
    /// none.
    pub fn ring_for(credits: u32) -> Option<u32> {
        credits.checked_mul(2)
    }
}
