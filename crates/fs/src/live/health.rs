//! What concerns the volume as a whole while it is open: damage that is met, the label, trimming,
//! shutting down.
//!
//! *Damage* that an operation meets is noted in the superblock, in a commit of its own, as ext4 does:
//! e2fsck then looks at the volume, and `dumpe2fs` shows when and where. What happens next is the mount's
//! choice ([`OnError`]). Whatever fails half-way stops all writing, here as always (`op`).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use xact_consistency::Handle;
use xact_layout::superblock::{NotedError, ON_ERROR_CONTINUE, ON_ERROR_PANIC, Superblock};
use xact_types::{BlockNr, Corruption, Errno, Error, Result, Site, unix_seconds};

use crate::live::LiveFs;

/// Bytes of a label at the most.
const LABEL_MAX: usize = 16;

/// What happens after damage was met (`errors=` of ext4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The operation fails, others go on.
    Continue,
    /// Nothing may be changed any more (`EROFS`).
    ReadOnly,
    /// Nothing is served any more, reading included, until the volume is opened anew: what comes nearest
    /// to a machine that stops.
    Panic,
}

impl OnError {
    /// What the superblock asks for.
    fn of(sb: &Superblock) -> OnError {
        match sb.errors() {
            ON_ERROR_CONTINUE => OnError::Continue,
            ON_ERROR_PANIC => OnError::Panic,
            _ => OnError::ReadOnly,
        }
    }
}

/// How much is made durable before all writing stops (`EXT4_IOC_SHUTDOWN`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Everything done so far.
    Sync,
    /// What operations have changed in metadata, and data that was written back.
    FlushLog,
    /// Nothing: as a power cut.
    AtOnce,
}

/// What damage has led to.
pub(in crate::live) struct ErrorPolicy {
    on_error: OnError,
    read_only: AtomicBool,
    stopped: AtomicBool,
}

impl ErrorPolicy {
    pub fn new(asked: Option<OnError>, sb: &Superblock) -> ErrorPolicy {
        let on_error = asked.unwrap_or_else(|| OnError::of(sb));
        ErrorPolicy { on_error, read_only: AtomicBool::new(false), stopped: AtomicBool::new(false) }
    }
}

impl LiveFs {
    /// `ReadOnly` where nothing may be changed (any more).
    pub(in crate::live) fn check_writable(&self) -> Result<()> {
        self.check_served()?;
        if self.engine.is_read_only() || self.error_policy.read_only.load(SeqCst) {
            return Err(Error::ReadOnly);
        }
        Ok(())
    }

    /// An error where nothing is served any more.
    pub(in crate::live) fn check_served(&self) -> Result<()> {
        if self.error_policy.stopped.load(SeqCst) { self.engine.health() } else { Ok(()) }
    }

    /// Looks at an operation's outcome: damage is noted, and leads to what the mount asks for. The caller
    /// holds no lock and no handle.
    pub(in crate::live) fn note_corruption<R>(&self, result: Result<R>) -> Result<R> {
        if let Err(Error::Corrupt(damage)) = &result {
            self.follow_error_policy(damage);
        }
        result
    }

    fn follow_error_policy(&self, damage: &Corruption) {
        if self.check_writable().is_err() || self.engine.health().is_err() {
            return;
        }
        // What cannot be noted must not hide the damage itself.
        if let Err(error) = self.write_corruption(damage) {
            log::warn!("{damage}; that could not be noted in the superblock: {error}");
        }
        match self.error_policy.on_error {
            OnError::Continue => {}
            OnError::ReadOnly => {
                self.error_policy.read_only.store(true, SeqCst);
                log::warn!("{damage}: the volume is read-only from now on (errors=remount-ro)");
            }
            OnError::Panic => {
                self.error_policy.stopped.store(true, SeqCst);
                self.engine.poison(&format!("{damage} (errors=panic)"));
            }
        }
    }

    fn write_corruption(&self, damage: &Corruption) -> Result<()> {
        let (ino, block) = match damage.site {
            Site::Inode(ino) => (ino.0, 0),
            Site::Block(block) => (0, block.0),
            Site::Group(group) => (0, self.sb.desc_place(group).0.0),
            Site::Superblock | Site::JournalSuperblock | Site::Root => (0, 0),
        };
        let time = unix_seconds() as u32;
        let mut handle = Handle::begin(&self.engine, 1)?;
        let noted = NotedError { time, ino, block, what: damage.what };
        crate::superblock::update(&mut handle, &self.sb, |sb| sb.note_error(&noted))?;
        let commit = handle.commit_id();
        drop(handle);
        self.engine.commit(commit)
    }

    /// Discards what is free in a range of bytes, in runs of at least `min_bytes`; returns the bytes.
    ///
    /// Errors: `EINVAL` for a range without a block, `EOPNOTSUPP` where the device cannot discard.
    pub fn trim(&self, range: Range<u64>, min_bytes: u64) -> Result<u64> {
        self.check_writable()?;
        let block = self.block_bytes();
        let (start, end) = (range.start / block, (range.end / block).min(self.sb.blocks_count()));
        let group_bytes = u64::from(self.sb.blocks_per_group()) * block;
        if min_bytes > group_bytes || start >= self.sb.blocks_count() || range.end - range.start < block {
            return Err(Errno::EINVAL.into());
        }
        // What was deleted before the call is free.
        self.engine.sync()?;
        let trimmed = self.allocator.trim(BlockNr(start)..BlockNr(end), min_bytes.div_ceil(block).max(1));
        match trimmed {
            Ok(blocks) => Ok(blocks * block),
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(Errno::EOPNOTSUPP.0) => {
                Err(Errno::EOPNOTSUPP.into())
            }
            Err(error) => Err(error),
        }
    }

    /// For the crash explorer's canary; see [`crate::alloc::Allocator`].
    #[cfg(feature = "faults")]
    pub(crate) fn discard_at_once(&self) {
        self.allocator.discard_at_once();
    }

    /// The volume's label.
    pub fn label(&self) -> Result<Vec<u8>> {
        Ok(crate::superblock::read(&*self.engine, &self.sb)?.volume_name().to_vec())
    }

    /// Changes the label durably. `EINVAL` for more than 16 bytes.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() > LABEL_MAX {
            return Err(Errno::EINVAL.into());
        }
        self.check_writable()?;
        let mut handle = Handle::begin(&self.engine, 1)?;
        crate::superblock::update(&mut handle, &self.sb, |sb| sb.set_volume_name(label))?;
        let commit = handle.commit_id();
        drop(handle);
        self.engine.commit(commit)
    }

    /// Stops all writing for good; the log stays as it is, for the next opening's recovery.
    pub fn shut_down(&self, how: Shutdown) -> Result<()> {
        let done = match how {
            Shutdown::Sync => self.write_back_all(None).and_then(|()| self.engine.sync()),
            Shutdown::FlushLog => self.engine.sync(),
            Shutdown::AtOnce => Ok(()),
        };
        self.engine.poison("it was shut down (FS_IOC_SHUTDOWN)");
        done
    }
}
