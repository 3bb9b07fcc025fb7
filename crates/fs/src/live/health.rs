//! The health of an open volume: corruption that is met, shutting down, the claim on a shared
//! volume.
//!
//! *Corruption* that an operation meets is noted in the superblock, in a commit of its own, as ext4
//! does: e2fsck then looks at the volume, and `dumpe2fs` shows when and where. What happens next is
//! the mount's choice ([`OnError`]). Whatever fails half-way stops all writing, here as always
//! (`op`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use parking_lot::Mutex;
use xact_consistency::mmp::Mmp;
use xact_consistency::{Engine, Handle};
use xact_layout::superblock::{NotedError, ON_ERROR_CONTINUE, ON_ERROR_PANIC, Superblock};
use xact_types::{Corruption, Error, Result, Site, unix_seconds};

use crate::live::LiveFs;

/// What happens after damage was met (`errors=` of ext4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The operation fails, others continue.
    Continue,
    /// Nothing may be changed any more (`EROFS`).
    ReadOnly,
    /// Nothing is served any more, reading included, until the volume is opened again: what comes
    /// nearest to a machine that stops.
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

/// Whether the volume is served and may be changed.
pub(in crate::live) struct Health {
    engine: Arc<Engine>,
    sb: Superblock,
    policy: ErrorPolicy,
    /// Where several machines reach the volume: that it is this one's.
    claim: Mutex<Option<Mmp>>,
}

/// What corruption leads to, and has led to.
struct ErrorPolicy {
    on_error: OnError,
    read_only: AtomicBool,
    stopped: AtomicBool,
}

impl Health {
    pub fn new(engine: Arc<Engine>, sb: Superblock, asked: Option<OnError>) -> Health {
        let on_error = asked.unwrap_or_else(|| OnError::of(&sb));
        let policy =
            ErrorPolicy { on_error, read_only: AtomicBool::new(false), stopped: AtomicBool::new(false) };
        Health { engine, sb, policy, claim: Mutex::new(None) }
    }

    /// `ReadOnly` where nothing may be changed (any more).
    pub fn check_writable(&self) -> Result<()> {
        self.check_served()?;
        if self.engine.is_read_only() || self.policy.read_only.load(SeqCst) {
            return Err(Error::ReadOnly);
        }
        Ok(())
    }

    /// An error where nothing is served any more.
    pub fn check_served(&self) -> Result<()> {
        if self.policy.stopped.load(SeqCst) { self.engine.health() } else { Ok(()) }
    }

    /// Looks at an operation's outcome: corruption is noted, and leads to what the mount asks for.
    /// The caller holds no lock and no handle.
    pub fn note_corruption<R>(&self, result: Result<R>) -> Result<R> {
        if let Err(Error::Corrupt(corruption)) = &result {
            self.follow_policy(corruption);
        }
        result
    }

    fn follow_policy(&self, corruption: &Corruption) {
        if self.check_writable().is_err() || self.engine.health().is_err() {
            return;
        }
        // What cannot be noted must not hide the corruption itself.
        if let Err(error) = self.write_corruption(corruption) {
            log::warn!("{corruption}; that could not be noted in the superblock: {error}");
        }
        match self.policy.on_error {
            OnError::Continue => {}
            OnError::ReadOnly => {
                self.policy.read_only.store(true, SeqCst);
                log::warn!("{corruption}: the volume is read-only from now on (errors=remount-ro)");
            }
            OnError::Panic => {
                self.policy.stopped.store(true, SeqCst);
                self.engine.poison(&format!("{corruption} (errors=panic)"));
            }
        }
    }

    fn write_corruption(&self, corruption: &Corruption) -> Result<()> {
        let (ino, block) = match corruption.site {
            Site::Inode(ino) => (ino.0, 0),
            Site::Block(block) => (0, block.0),
            Site::Group(group) => (0, self.sb.desc_place(group).0.0),
            Site::Superblock | Site::JournalSuperblock | Site::Root => (0, 0),
        };
        let time = unix_seconds() as u32;
        let mut handle = Handle::begin(&self.engine, 1)?;
        let noted = NotedError { time, ino, block, what: corruption.what };
        crate::superblock::update(&mut handle, &self.sb, |sb| sb.note_error(&noted))?;
        let commit = handle.commit_id();
        drop(handle);
        self.engine.commit(commit)
    }

    /// Keeps the claim on a volume that several machines reach, until the file system is closed.
    fn keep_claim(&self, claim: Mmp) {
        claim.guard(self.engine.clone());
        *self.claim.lock() = Some(claim);
    }

    /// Where nothing may be written any more, the volume counts as this machine's until the number
    /// is old.
    pub fn release_claim(&self, healthy: bool) -> Result<()> {
        match self.claim.lock().take() {
            Some(claim) if healthy => claim.release(),
            _ => Ok(()),
        }
    }
}

impl LiveFs {
    /// See [`Health::keep_claim`].
    pub(crate) fn keep_claim(&self, claim: Mmp) {
        self.health.keep_claim(claim);
    }

    /// Stops all writing until the volume is opened again; the log stays as it is, for the next
    /// opening's recovery.
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
