//! The health of an open volume: the reaction to corruption, and the claim on a shared volume.
//!
//! *Corruption* that an operation meets is recorded in the superblock, in a commit of its own, as
//! ext4 does: e2fsck then checks the volume, and `dumpe2fs` shows when and where. The mount chooses
//! what follows ([`OnError`]). An operation that fails after its first change always stops all
//! writing (`op`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xact_consistency::mmp::Mmp;
use xact_consistency::{Engine, Handle};
use xact_layout::superblock::{NotedError, ON_ERROR_CONTINUE, ON_ERROR_PANIC, Superblock};
use xact_types::{Corruption, Error, Ino, Result, Site, unix_seconds};

/// The same corruption is logged again after this time.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// The reaction to corruption (`errors=` of ext4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// The operation fails, others continue.
    Continue,
    /// All further changes fail with `EROFS`.
    ReadOnly,
    /// All further calls fail, reads included, until the volume is opened again: the nearest thing
    /// to a machine that stops.
    Panic,
}

impl OnError {
    /// The superblock's choice.
    fn of(sb: &Superblock) -> OnError {
        match sb.errors() {
            ON_ERROR_CONTINUE => OnError::Continue,
            ON_ERROR_PANIC => OnError::Panic,
            _ => OnError::ReadOnly,
        }
    }
}

/// Whether the volume serves calls and may be changed.
pub(in crate::live) struct Health {
    engine: Arc<Engine>,
    sb: Superblock,
    policy: ErrorPolicy,
    /// Damaged folders that were listed, with the first damage met in each.
    damaged_folders: Mutex<BTreeMap<Ino, Error>>,
    /// The corruption that was logged last, and when.
    logged: Mutex<Option<(Corruption, Instant)>>,
    /// This machine's claim on a volume that several machines reach.
    claim: Mutex<Option<Mmp>>,
}

/// The reaction to corruption, and its effects so far.
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
        Health {
            engine,
            sb,
            policy,
            damaged_folders: Mutex::default(),
            logged: Mutex::default(),
            claim: Mutex::new(None),
        }
    }

    /// `ReadOnly` if the volume was opened read-only or has become so.
    pub fn check_writable(&self) -> Result<()> {
        self.check_served()?;
        if self.engine.is_read_only() || self.policy.read_only.load(SeqCst) {
            return Err(Error::ReadOnly);
        }
        Ok(())
    }

    /// An error after [`OnError::Panic`].
    pub fn check_served(&self) -> Result<()> {
        if self.policy.stopped.load(SeqCst) { self.engine.health() } else { Ok(()) }
    }

    /// Records corruption in an operation's outcome, and reacts as the mount asks. The caller holds
    /// no lock and no handle.
    pub fn note_corruption<R>(&self, result: Result<R>) -> Result<R> {
        if let Err(Error::Corrupt(corruption)) = &result {
            self.follow_policy(corruption);
        }
        result
    }

    /// Records corruption and reacts as the mount asks; see [`Self::note_corruption`].
    pub fn follow_policy(&self, corruption: &Corruption) {
        if self.check_writable().is_err() || self.engine.health().is_err() {
            return;
        }
        // A failure to record the corruption must not hide the corruption itself.
        if let Err(error) = self.write_corruption(corruption) {
            tracing::warn!("{corruption}; it could not be recorded in the superblock: {error}");
        }
        match self.policy.on_error {
            OnError::Continue => {
                // A process that reads the same damage again and again does not fill the log.
                let mut logged = self.logged.lock();
                if logged.is_none_or(|(last, at)| last != *corruption || at.elapsed() > LOG_AGAIN) {
                    *logged = Some((*corruption, Instant::now()));
                    tracing::warn!(
                        "{corruption}; it was noted in the superblock: run 'xact check' on the volume"
                    );
                }
            }
            OnError::ReadOnly => {
                self.policy.read_only.store(true, SeqCst);
                tracing::warn!("{corruption}: the volume is read-only from now on (errors=remount-ro)");
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

    /// Number of errors that the superblock notes.
    pub fn errors_noted(&self) -> u64 {
        crate::superblock::read(&self.engine, &self.sb).map_or(0, |sb| sb.error_count().into())
    }

    /// The damage that a listing of the folder has met since the volume was opened.
    pub fn folder_damage(&self, dir: Ino) -> Option<Error> {
        self.damaged_folders.lock().get(&dir).cloned()
    }

    /// Remembers damage of a folder: all later listings read its blocks one by one, and end with
    /// the error.
    pub fn keep_folder_damage(&self, dir: Ino, damage: Error) {
        tracing::warn!("the folder {dir} is damaged: {damage}; its other names are listed");
        self.damaged_folders.lock().insert(dir, damage);
    }

    /// The inode number belongs to a new folder.
    pub fn forget_folder_damage(&self, dir: Ino) {
        self.damaged_folders.lock().remove(&dir);
    }

    /// Keeps the claim on a volume that several machines reach, until the file system is closed.
    pub fn keep_claim(&self, claim: Mmp) {
        claim.guard(self.engine.clone());
        *self.claim.lock() = Some(claim);
    }

    /// Releases the claim. An unhealthy volume must not be written: there the claim stays, and
    /// other machines respect it until its sequence number is old.
    pub fn release_claim(&self, healthy: bool) -> Result<()> {
        match self.claim.lock().take() {
            Some(claim) if healthy => claim.release(),
            _ => Ok(()),
        }
    }
}
