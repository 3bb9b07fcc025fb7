//! The life cycle of a user transaction. Its [`xact_fs::View`] is in `view`.
//!
//! ```text
//!              begin              commit()              applied: visible to all
//!   (nothing) ──────▶ Active ───────────────▶ Committing ────────────────▶ Committed
//!                       │                          │ conflict, no space, too large, I/O
//!                       │ abort(), drop,           ▼
//!                       └─────────────────────▶ Aborted
//!                         a call that failed half-way
//! ```
//! [`Transaction::try_commit`] returns to Active if the commit is refused, and
//! [`Transaction::commit_only`] always does, with the changes that it did not commit.
//!
//! - **Active**: calls read and change the overlay. The base keeps the versions that the view
//!   needs.
//! - **Committing**: the committing thread holds the transaction's exclusive lock, so no call runs
//!   and none starts.
//! - **Committed**: the base has the changes; the overlay is empty. They are durable once `commit`
//!   has returned (except with weaker durability).
//! - **Aborted**: overlay, view and reserved inode numbers were given back.
//!
//! Calls in any state except Active fail with [`Error::Ended`].
//!
//! An active transaction is **doomed** once a call in it has failed because of others: a change has
//! found contents that others have changed since its begin, or in an eager transaction a change
//! that another open one has made before (TX-4), a call needed a version that was evicted, or its
//! space was revoked. That call, all later changes and every commit fail with the same error, which
//! has the path. It stays doomed after a rollback, because later calls may have depended on the
//! failure. Reads still work, unless the view is too old. A transaction with changes whose view has
//! expired is doomed before any call notices. A user who has looked at a transaction that a
//! conflict has doomed may commit its other changes, or drop those of the file, unless the call
//! that failed had made a change before.

mod commit;
mod inspect;
mod memory;
mod partial;
mod savepoints;
mod view;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use xact_types::{Error, Ino, Result};

use crate::contention::open_writes::{HasWrites, OpenEntry};
use crate::contention::{AbortHistory, ContentionManager, LostAttempt, PriorityClaim};
use crate::options::{TxOptions, TxState};
use crate::overlay::Overlay;
use crate::partial::pins::Pins;
use crate::persisted::info::OnVolume;
use crate::savepoint::Savepoints;
use crate::tx_tree::{Access, TxTree};
use crate::validation::conflict::OPEN_HAS_WRITTEN;
use crate::validation::read_set::ReadSet;
use crate::validation::write_set::WriteSet;
pub use inspect::{Reader, SearchedFolders};
pub(crate) use memory::Memory;
use xact_fs::{Stamp, VersionedFs};

/// A private view of the volume as of one instant, with the changes made in it.
///
/// Its operations are those of its [`View`](xact_fs::View). Dropping an active transaction aborts
/// it.
pub struct Transaction<B: VersionedFs> {
    pub(crate) base: Arc<B>,
    pub(crate) options: TxOptions,
    pub(crate) begun: Instant,
    /// The space on the volume that it holds before its commit.
    pub(crate) space: B::Space,
    pub(crate) inner: Arc<RwLock<Inner<B>>>,
    /// Locked after `inner`.
    pub(crate) reads: Mutex<ReadSet>,
    /// Taken before `inner`.
    pub(crate) contention: Arc<ContentionManager>,
    /// Set after a commit that was refused for a conflict.
    pub(crate) lost_attempt: Mutex<Option<LostAttempt>>,
    /// It is internal, and changes only the records of persisted transactions.
    pub(crate) is_note: bool,
    /// It was begun with a claim.
    pub(crate) has_claim: bool,
    /// Locked after `reads`.
    pub(crate) memory: Memory,
}

pub(crate) struct Inner<B: VersionedFs> {
    pub state: TxState,
    pub stamp: Stamp,
    pub overlay: Overlay,
    pub savepoints: Savepoints,
    /// The reason why it can never commit: the error of the first call that failed because of
    /// others.
    pub doom: OnceLock<Error>,
    /// A call failed with a conflict after its first change: only the whole can be aborted.
    pub is_half_done: bool,
    /// Its entry among the open transactions of the volume; only while the transaction is active.
    pub entry: Option<OpenEntry>,
    /// Its claim on the inodes of earlier lost attempts.
    pub claim: Option<PriorityClaim>,
    /// Its file on the volume, if it is persisted (see `persisted`).
    pub on_volume: Option<OnVolume>,
    /// The view; only while the transaction is active.
    pub hold: Option<B::ReadView>,
    /// Conflicts that partial commits have left out, and the older views that they are read in.
    pub pins: Pins,
    pub older: Vec<B::ReadView>,
}

impl<B: VersionedFs> Inner<B> {
    fn assert_state(&self) {
        let ended = matches!(self.state, TxState::Committed | TxState::Aborted);
        assert_eq!(ended, self.hold.is_none(), "a view is open exactly as long as its transaction runs");
        assert!(!ended || self.overlay.nodes.is_empty(), "an ended transaction has no changes of its own");
    }

    fn check_active(&self) -> Result<()> {
        if self.state == TxState::Active { Ok(()) } else { Err(Error::Ended) }
    }

    /// The error of a doomed transaction, for changes and commits.
    fn check_not_doomed(&self, space: &B::Space) -> Result<()> {
        self.check_active()?;
        self.doom.get().cloned().map_or_else(|| B::check_space(space), Err)
    }

    /// The file of which a change was refused with a conflict, in a doomed transaction. All later
    /// changes have failed, so its other changes can be committed, and the doom ends when those of
    /// this file are dropped.
    pub(super) fn refused_change(&self, reads: &ReadSet) -> Option<Ino> {
        let Some(Error::Conflict { path, .. }) = self.doom.get() else { return None };
        if self.is_half_done {
            return None;
        }
        let known = reads.blocks.keys().chain(self.overlay.nodes.keys());
        known.copied().find(|ino| reads.paths.of(*ino) == *path)
    }

    /// Dooms the transaction if a call failed because of others. The caller has got the error, so
    /// all that it does from now on may be a consequence.
    fn note_failure<R>(&self, result: &Result<R>) {
        if let Err(error @ (Error::Conflict { .. } | Error::TooOld | Error::SpaceRevoked)) = result {
            // The first failure stays the reason.
            let _ = self.doom.set(error.clone());
            self.forget_writes();
        }
    }

    /// Call after changes were undone, committed in part, or doomed.
    pub(super) fn forget_writes(&self) {
        self.entry.iter().for_each(OpenEntry::forget);
    }

    pub fn check_divisible(&self) -> Result<()> {
        self.check_active()?;
        if self.savepoints.is_empty() {
            return Ok(());
        }
        Err(Error::Usage("the transaction has open savepoints: release them, or roll back to them".into()))
    }

    /// Drops all state. Numbers for which `adopted` returns true belong to the base and are not
    /// given back.
    fn end(&mut self, base: &B, space: &B::Space, state: TxState, adopted: impl Fn(Ino) -> bool) {
        let overlay = std::mem::take(&mut self.overlay);
        for (ino, _) in overlay.nodes.iter().filter(|(_, node)| node.born) {
            if adopted(*ino) {
                base.adopted_inode(space, *ino);
            } else {
                base.unreserve_inode(space, *ino);
            }
        }
        for ino in overlay.unlinked_numbers {
            base.unreserve_inode(space, ino);
        }
        self.savepoints.clear();
        self.hold = None;
        self.pins = Pins::default();
        self.older.clear();
        self.claim = None;
        self.entry = None;
        self.state = state;
        self.assert_state();
    }
}

impl<B: VersionedFs> HasWrites for RwLock<Inner<B>> {
    fn try_writes(&self) -> Option<WriteSet> {
        let inner = self.try_read()?;
        let counts = inner.state == TxState::Active && inner.doom.get().is_none();
        Some(if counts { WriteSet::of(&inner.overlay) } else { WriteSet::default() })
    }
}

/// Enters a transaction among the open ones of the volume.
pub(crate) fn enter<B: VersionedFs>(
    inner: Inner<B>,
    options: TxOptions,
    contention: &Arc<ContentionManager>,
) -> Arc<RwLock<Inner<B>>> {
    let inner = Arc::new(RwLock::new(inner));
    let weak = Arc::downgrade(&inner);
    let entry = OpenEntry::new(contention, options.id, options.detection, weak);
    inner.write().entry = Some(entry);
    inner
}

impl<B: VersionedFs> Transaction<B> {
    /// Begins a transaction with a view of the present base.
    pub fn begin(base: &Arc<B>, options: TxOptions) -> Transaction<B> {
        Transaction::begin_after(base, options, &Arc::default(), &AbortHistory::default())
    }

    /// As [`Transaction::begin`] on a volume with this contention manager, after lost attempts. If
    /// these give it priority, it has a claim, and first waits for running commits.
    pub fn begin_after(
        base: &Arc<B>,
        options: TxOptions,
        contention: &Arc<ContentionManager>,
        history: &AbortHistory,
    ) -> Transaction<B> {
        let (claim, hold) = contention.claim_priority(history, options.owner, || base.open_view());
        let has_claim = claim.is_some();
        let inner = Inner {
            state: TxState::Active,
            stamp: B::stamp(&hold),
            overlay: Overlay::default(),
            savepoints: Savepoints::default(),
            doom: OnceLock::new(),
            is_half_done: false,
            entry: None,
            claim,
            on_volume: None,
            hold: Some(hold),
            pins: Pins::default(),
            older: Vec::new(),
        };
        inner.assert_state();
        Transaction {
            base: base.clone(),
            space: base.open_space(options.id, options.owner),
            options,
            begun: Instant::now(),
            inner: enter(inner, options, contention),
            reads: Mutex::default(),
            contention: contention.clone(),
            lost_attempt: Mutex::default(),
            is_note: false,
            has_claim,
            memory: Memory::default(),
        }
    }

    /// The state of the transaction.
    pub fn state(&self) -> TxState {
        self.inner.read().state
    }

    /// Whether it can never commit; a commit returns the reason.
    pub fn is_doomed(&self) -> bool {
        let inner = self.inner.read();
        if inner.state != TxState::Active {
            return false;
        }
        inner.doom.get().is_some()
            || B::check_space(&self.space).is_err()
            || self.base.check_stamp(inner.stamp).is_err() && self.changes_anything(&inner)
    }

    /// Whether the commit will create this inode: it was created in the transaction and has a name.
    pub fn will_make(&self, ino: Ino) -> bool {
        self.inner.read().overlay.nodes.get(&ino).is_some_and(|node| node.born && node.nlink(0, u32::MAX) > 0)
    }

    /// Whether it has a claim, so that commits of others wait for its end.
    pub fn has_claim(&self) -> bool {
        self.has_claim
    }

    /// The options that it was begun with.
    pub fn options(&self) -> TxOptions {
        self.options
    }

    /// The time of its begin.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Discards the transaction's changes, but not its file on the volume
    /// ([`Transaction::abort_persisted`]). Has no effect if it has already ended.
    pub fn abort(&self) {
        let mut inner = self.inner.write();
        if inner.state == TxState::Active {
            self.end_aborted(&mut inner);
        }
    }

    pub(crate) fn end_aborted(&self, inner: &mut Inner<B>) {
        inner.end(&self.base, &self.space, TxState::Aborted, |_| false);
        *self.reads.lock() = ReadSet::default();
    }

    pub(crate) fn with_overlay<R>(&self, look: impl FnOnce(&Overlay) -> R) -> R {
        look(&self.inner.read().overlay)
    }

    /// A path by which an inode was found in this transaction, for messages.
    pub fn path_of(&self, ino: Ino) -> String {
        self.reads.lock().paths.of(ino)
    }

    /// Runs a read-only operation.
    fn look<R>(&self, action: impl FnOnce(&mut TxTree<'_, B>) -> Result<R>) -> Result<R> {
        let inner = self.inner.read();
        inner.check_active()?;
        self.check_memory(&inner)?;
        let mut tree = TxTree::new(&*self.base, inner.stamp, Access::Shared(&inner.overlay), &self.reads);
        tree.sees_persisted = self.is_note;
        tree.pins = Some(&inner.pins);
        let result = action(&mut tree);
        self.charge_memory(&inner);
        inner.note_failure(&result);
        result
    }

    /// Runs an operation that may change the overlay. An operation that fails after its first
    /// change is half done, so the transaction cannot continue.
    fn change<R>(&self, action: impl FnOnce(&mut TxTree<'_, B>) -> Result<R>) -> Result<R> {
        let mut inner = self.inner.write();
        inner.check_not_doomed(&self.space)?;
        self.check_memory(&inner)?;
        self.change_in(&mut inner, action)
    }

    /// As `change`, for an operation that adds contents; first frees memory for them.
    fn add_contents<R>(&self, action: impl FnOnce(&mut TxTree<'_, B>) -> Result<R>) -> Result<R> {
        let mut inner = self.inner.write();
        inner.check_not_doomed(&self.space)?;
        let room = self.make_room(&mut inner);
        inner.note_failure(&room);
        room?;
        self.change_in(&mut inner, action)
    }

    fn change_in<R>(
        &self,
        inner: &mut Inner<B>,
        action: impl FnOnce(&mut TxTree<'_, B>) -> Result<R>,
    ) -> Result<R> {
        inner.check_active()?;
        let access = Access::Exclusive(&mut inner.overlay);
        let mut tree = TxTree::new(&*self.base, inner.stamp, access, &self.reads);
        tree.space = Some(&self.space);
        tree.pins = Some(&inner.pins);
        tree.entry = inner.entry.as_ref();
        (tree.has_savepoints, tree.sees_persisted) = (!inner.savepoints.is_empty(), self.is_note);
        let result = action(&mut tree);
        let (changed, touched) = (tree.changed, std::mem::take(&mut tree.touched));
        touched.into_iter().for_each(|(ino, before)| inner.overlay.note_bytes(ino, before));
        inner.note_failure(&result);
        inner.is_half_done |= changed && matches!(result, Err(Error::Conflict { why: OPEN_HAS_WRITTEN, .. }));
        // Half done or not, a doomed one is never committed, but can be read.
        if result.is_err() && changed && inner.doom.get().is_none() {
            inner.end(&self.base, &self.space, TxState::Aborted, |_| false);
        }
        if changed && let Some(persisted) = &mut inner.on_volume {
            persisted.outdated = true;
        }
        self.charge_memory(inner);
        result
    }
}

impl<B: VersionedFs> Drop for Transaction<B> {
    fn drop(&mut self) {
        self.abort();
    }
}
