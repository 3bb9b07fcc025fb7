//! Replays the log that a crash left: the kernel's logs as well as ours.
//!
//! Layer: consistency. Three passes over the log, as in the kernel's `fs/jbd2/recovery.c`:
//!
//! 1. [`scan`]: finds the end. The log extends from the tail over all transactions that are whole:
//!    each of the journal's own blocks is where it must be and carries the expected sequence
//!    number, and the last of them is a sound commit block.
//! 2. [`revoke`]: for each block, the last transaction that revoked it.
//! 3. [`replay`]: verifies every copy that counts, then writes the newest copy of each block home.
//!
//! Invariants:
//! 1. Nothing is written before all copies that will be written have been verified. (The kernel
//!    writes as it goes, and leaves a partly replayed volume if a copy turns out to be bad.)
//! 2. The log is marked empty only when all replayed blocks are durable, and the superblock's flag
//!    is cleared only when the empty log is durable.
//!
//! A crash during recovery therefore leaves the log unchanged, with some of its blocks home
//! already; the next recovery writes the same bytes again.
//!
//! Intended differences from the kernel:
//! - A damaged copy or descriptor inside the log is an error before any write, not after.
//! - A torn last commit block means that the crash interrupted this commit: it is dropped and the
//!   volume opens. The kernel calls it corruption unless the journal has ASYNC_COMMIT. If the log
//!   continues behind it, we call it corruption too.
//! - Fast commits are refused, not replayed.
//!
//! After a replay the volume is byte for byte what the kernel and `debugfs -w -R jr` leave, except
//! for some fields:
//! - in the ext4 superblock, the statistics (times, kilobytes written, mount counts, and free
//!   counts, which the kernel recomputes) and the checksum;
//! - in the journal superblock, `s_head` (set by the kernel and by us, not by debugfs), the
//!   checksum features (which a kernel mount sets by its options) and the checksum.

pub mod inspect;
mod reader;
mod replay;
mod revoke;
mod scan;

use std::sync::Arc;

use xact_device::BlockDevice;
use xact_layout::feature::incompat;
use xact_layout::jbd2::{Features, fast_commit_head};
use xact_layout::superblock::Superblock;
use xact_types::{Error, Result, Site};

use crate::core::superblock_io::{self, Flags, Health, SuperblockPlace};
use crate::core::volume::Volume;
use crate::fault::Fault;
use crate::journal::location::JournalLayout;
use crate::journal::log::Ring;
use crate::journal::superblock::JournalHead;
use crate::options::EngineOptions;

use reader::LogReader;
use scan::Scan;

/// The findings and work of a recovery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Whether there was a journal's log to be replayed.
    pub replayed: bool,
    /// On a volume with generations: blocks that the intent log had, which the next generation
    /// writes.
    pub intent_log_blocks: u64,
    /// Complete transactions in it.
    pub transactions: u32,
    /// Sequence number of the first transaction, and the one behind the last.
    pub first_sequence: u32,
    pub end_sequence: u32,
    /// Copies that were not revoked.
    pub copies: u64,
    /// Sub-block records that were not revoked.
    pub patches: u64,
    /// Blocks written home: the newest contents of each.
    pub blocks_written: u64,
    pub revoke_records: u64,
    /// Copies skipped because a later transaction revoked them.
    pub revoked_copies: u64,
    /// The last transaction's commit block was torn, and the transaction dropped.
    pub dropped_torn_commit: bool,
    /// Error with which the journal had been aborted; the volume is now marked for e2fsck.
    pub errno: i32,
}

/// Brings a volume with a journal into the state after its last complete transaction. Does nothing
/// on a volume without a journal, and on one that was unmounted cleanly.
///
/// Writes to the device whenever it can, also for an engine that is read-only, as the kernel does
/// for a read-only mount. On a read-only device, a log that needs replaying is an error. Does
/// nothing with [`EngineOptions::no_recovery`].
pub fn recover(device: &Arc<dyn BlockDevice>, options: &EngineOptions) -> Result<RecoveryReport> {
    let Some(mut recovery) = Recovery::read(device, options)? else {
        return Ok(RecoveryReport::default());
    };
    recovery.run()?;
    Ok(recovery.report)
}

/// Whether [`recover`] must write before the volume can be read. Writes nothing.
///
/// Errors: `Unsupported` for features that xact does not know; else as [`recover`].
pub fn needs_replay(device: &Arc<dyn BlockDevice>) -> Result<bool> {
    superblock_io::read(&**device)?.superblock.support()?;
    let options = EngineOptions::default();
    Ok(Recovery::read(device, &options)?.is_some_and(|recovery| recovery.is_needed()))
}

struct Recovery<'a> {
    volume: Volume,
    superblock: Superblock,
    place: SuperblockPlace,
    health: Health,
    layout: JournalLayout,
    head: JournalHead,
    options: &'a EngineOptions,
    report: RecoveryReport,
}

impl Recovery<'_> {
    /// Reads what decides whether there is anything to do; `None` on a volume without a journal.
    fn read<'a>(device: &Arc<dyn BlockDevice>, options: &'a EngineOptions) -> Result<Option<Recovery<'a>>> {
        let home = superblock_io::read(&**device)?;
        if superblock_io::has_generations(&home.superblock) {
            // A journal of such a volume is empty until the volume is converted back.
            return Ok(None);
        }
        if options.no_recovery || !superblock_io::has_journal(&home.superblock)? {
            return match home.health {
                Health::Unsound => Err(Error::corrupt(Site::Superblock, "checksum does not match")),
                _ => Ok(None),
            };
        }
        let superblock = home.superblock;
        let volume =
            Volume::new(device.clone(), superblock.block_size() as usize, superblock.blocks_count())?;
        let layout = JournalLayout::locate(&volume, &superblock)?;
        let head = JournalHead::read(&volume, &layout)?;
        Ok(Some(Recovery {
            place: SuperblockPlace::of(&superblock),
            volume,
            superblock,
            health: home.health,
            layout,
            head,
            options,
            report: RecoveryReport::default(),
        }))
    }

    fn is_live(&self) -> bool {
        self.head.fields.start != 0
    }

    /// Whether the log counts. That of a volume whose flag is clear is obsolete, as for the kernel:
    /// the volume was declared clean, or changed by a program that knows no journals.
    fn counts(&self) -> bool {
        self.superblock.has_incompat(incompat::RECOVER) || self.health != Health::Sound
    }

    /// Whether the volume cannot be read before the log is replayed, or its superblock repaired.
    fn is_needed(&self) -> bool {
        self.is_live() && self.counts() || self.health != Health::Sound
    }

    fn run(&mut self) -> Result<()> {
        self.report.errno = self.head.fields.errno;
        let live = self.is_live();
        if self.health == Health::Unsound && !live {
            return Err(Error::corrupt(Site::Superblock, "checksum does not match"));
        }
        let flagged = self.superblock.has_incompat(incompat::RECOVER);
        let dirty = live || flagged || self.health != Health::Sound || self.report.errno != 0;
        if !dirty {
            return Ok(());
        }
        let is_read_only = self.volume.device_is_read_only();
        if (is_read_only || self.options.read_only) && !self.is_needed() {
            return Ok(());
        }
        if is_read_only {
            return Err(Error::Usage(
                "the log of this volume must be replayed, which its read-only device does not allow \
                 (ro,noload reads it without the log)"
                    .into(),
            ));
        }
        if live {
            self.replay(self.counts())?;
        }
        self.finish()
    }

    /// Replays the log, or only finds its end if it does not count.
    fn replay(&mut self, counts: bool) -> Result<()> {
        let fields = &self.head.fields;
        let ring = Ring::new(self.layout.clone(), fields)?;
        let format = fields.format();
        let mut reader = LogReader::new(&self.volume, &ring);
        let scan = Scan::run(&mut reader, fields)?;
        self.refuse_fast_commits(scan.end)?;
        let report = &mut self.report;
        report.first_sequence = fields.sequence;
        report.end_sequence = scan.end;
        report.transactions = scan.transactions.len() as u32;
        report.dropped_torn_commit = scan.torn_commit;
        if counts {
            report.replayed = true;
            let revokes = revoke::collect(&mut reader, &format, &scan.transactions)?;
            report.revoke_records = revokes.records;
            replay::Replay::new(&mut reader, &format, &scan.transactions, &revokes, self.options)
                .run(&mut self.report)?;
        }
        let fields = &mut self.head.fields;
        fields.start = 0;
        fields.features.incompat &= !Features::XACT_PATCHES;
        // One more than the end, so that the rest of an incomplete transaction can never be taken
        // for a part of the next one.
        fields.sequence = scan.end.wrapping_add(1);
        fields.head = scan.head;
        Ok(())
    }

    /// Fast commits on top of the last transaction hold acknowledged changes that we cannot apply.
    fn refuse_fast_commits(&self, end: u32) -> Result<()> {
        let Some(area) = self.head.fields.fast_commit_start() else {
            return Ok(());
        };
        let (place, _) = self.layout.place(area)?;
        let block = self.volume.read_block(place)?;
        match fast_commit_head(&block) {
            Some(head) if head.sequence == end => Err(Error::Unsupported(
                "fast commits that have not been replayed; mount the volume with Linux once, or run e2fsck"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    /// Makes the replay durable and then the volume clean, in this order.
    fn finish(&mut self) -> Result<()> {
        if self.report.errno != 0 {
            // The abort is noted in the superblock before it is cleared in the journal.
            let flags = Flags { errors: true, ..Flags::default() };
            self.place.write_home(&self.volume, flags)?;
        }
        // Durable by this flush: everything that was replayed. Without it the log could be marked
        // empty while blocks that exist only in it are not written yet.
        if !self.options.faults().has(Fault::NoFlushAfterReplay) {
            self.volume.flush()?;
        }
        self.head.fields.errno = 0;
        self.head.write(&self.volume)?;
        // Durable by this flush: the empty log. The flag must not be cleared before: a live log on
        // a volume without the flag is discarded, which would be harmless here, but e2fsck
        // complains about it.
        self.volume.flush()?;
        let after = superblock_io::read_health(&self.volume, self.place)?;
        if after == Health::Unsound {
            return Err(Error::corrupt(
                Site::Superblock,
                "checksum does not match, not even after the replay",
            ));
        }
        self.place.write_home(&self.volume, Flags { recover: Some(false), ..Flags::default() })?;
        // Durable by this flush: the flag, so that a volume opened only for reading is clean.
        self.volume.flush()
    }
}
