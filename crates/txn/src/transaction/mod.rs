//! A user transaction: its life. Its [`xact_fs::View`] is in `view`.
//!
//! ```text
//!              begin              commit()              applied: visible to all
//!   (nothing) ──────▶ Active ───────────────▶ Committing ────────────────▶ Committed
//!                       │                          │ conflict, no space, too large, I/O
//!                       │ abort(), drop,           ▼
//!                       └─────────────────────▶ Aborted
//!                         a call that failed half-way
//! ```
//! [`Transaction::try_commit`] goes back to Active where the commit is refused, and
//! [`Transaction::commit_only`] does in any case, with the part that it did not commit.
//!
//! - **Active**: calls read and change the overlay. The base keeps what the view may read.
//! - **Committing**: under the transaction's exclusive lock, so no call is under way and none
//!   starts. Performed by the thread that commits.
//! - **Committed**: the base has the changes; the overlay is gone. They are durable once `commit`
//!   has returned (unless it was asked only to keep the order).
//! - **Aborted**: nothing is left: overlay, view and reserved inode numbers are given back.
//!
//! Calls in any state but Active fail with [`Error::Ended`].
//!
//! An active transaction is **doomed** once a change in it has met contents that others have
//! changed since its begin (TX-4), or a snapshot that is too old, or once others needed the space
//! that it held: that change, all later ones and every commit fail with the same error, which has
//! the path. It stays doomed whatever is rolled back, as what was done after the failure may have
//! come of it. Reads still work.

mod commit;
mod inspect;
mod memory;
mod partial;
mod savepoints;
mod view;

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use xact_types::{Error, Ino, Result};

use crate::contention::{AbortHistory, ContentionManager, LostAttempt, PriorityClaim};
use crate::options::{TxOptions, TxState};
use crate::overlay::Overlay;
use crate::persisted::info::OnVolume;
use crate::savepoint::Savepoints;
use crate::tx_tree::{Access, TxTree};
use crate::validation::read_set::ReadSet;
pub use inspect::Reader;
pub(crate) use memory::Memory;
use xact_fs::{Stamp, VersionedFs};

/// A private view of the volume as of one instant, with the changes made in it.
///
/// Everything in it is done through its [`View`](xact_fs::View). Dropping an active transaction
/// aborts it.
pub struct Transaction<B: VersionedFs> {
    pub(crate) base: Arc<B>,
    pub(crate) options: TxOptions,
    pub(crate) begun: Instant,
    /// What it holds of the volume before its commit.
    pub(crate) space: B::Space,
    pub(crate) inner: RwLock<Inner<B>>,
    /// Locked after `inner`.
    pub(crate) reads: Mutex<ReadSet>,
    /// Taken before `inner`.
    pub(crate) contention: Arc<ContentionManager>,
    /// After a commit that was refused for a conflict.
    pub(crate) lost_attempt: Mutex<Option<LostAttempt>>,
    /// It changes what is on record of persisted transactions, and nothing else.
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
    /// Why it can never commit.
    pub doom: Option<Error>,
    /// Its precedence on what its earlier attempts lost.
    pub claim: Option<PriorityClaim>,
    /// That it is in a file of the volume too (see `persisted`).
    pub on_volume: Option<OnVolume>,
    /// Only while the transaction is active.
    pub hold: Option<B::ReadView>,
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

    /// Whether it may change anything, and be committed.
    fn check_not_doomed(&self, space: &B::Space) -> Result<()> {
        self.check_active()?;
        self.doom.clone().map_or_else(|| B::check_space(space), Err)
    }

    pub fn check_divisible(&self) -> Result<()> {
        self.check_active()?;
        if self.savepoints.is_empty() {
            return Ok(());
        }
        Err(Error::Usage("the transaction has open savepoints: release them, or roll back to them".into()))
    }

    /// Drops everything; born inodes that `adopted` says the base took over keep their number.
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
        self.claim = None;
        self.state = state;
        self.assert_state();
    }
}

impl<B: VersionedFs> Transaction<B> {
    /// Begins a transaction that sees the base as of now.
    pub fn begin(base: &Arc<B>, options: TxOptions) -> Transaction<B> {
        Transaction::begin_after(base, options, &Arc::default(), &AbortHistory::default())
    }

    /// As [`Transaction::begin`] on a volume with this contention manager, after attempts that were
    /// lost: where these give it priority it has a claim, and waits for the commits that run now.
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
            doom: None,
            claim,
            on_volume: None,
            hold: Some(hold),
        };
        inner.assert_state();
        Transaction {
            base: base.clone(),
            space: base.open_space(options.id, options.owner),
            options,
            begun: Instant::now(),
            inner: RwLock::new(inner),
            reads: Mutex::default(),
            contention: contention.clone(),
            lost_attempt: Mutex::default(),
            is_note: false,
            has_claim,
            memory: Memory::default(),
        }
    }

    pub fn state(&self) -> TxState {
        self.inner.read().state
    }

    /// Whether it can never commit; the commit says why.
    pub fn is_doomed(&self) -> bool {
        self.inner.read().doom.is_some() || B::check_space(&self.space).is_err()
    }

    /// Whether the commit will make this inode: it was born here and has a name.
    pub fn will_make(&self, ino: Ino) -> bool {
        self.inner.read().overlay.nodes.get(&ino).is_some_and(|node| node.born && node.nlink(0, u32::MAX) > 0)
    }

    /// Whether it has lost so often that commits wait for its end.
    pub fn has_claim(&self) -> bool {
        self.has_claim
    }

    pub fn options(&self) -> TxOptions {
        self.options
    }

    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Drops the transaction's changes, but for what is kept of it in a file
    /// ([`Transaction::abort_persisted`]). Nothing happens where it has ended already.
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

    /// A path by which an inode was met in this transaction, for messages.
    pub fn path_of(&self, ino: Ino) -> String {
        self.reads.lock().paths.of(ino)
    }

    /// Runs an operation that changes nothing.
    fn look<R>(&self, action: impl FnOnce(&mut TxTree<'_, B>) -> Result<R>) -> Result<R> {
        let inner = self.inner.read();
        inner.check_active()?;
        self.check_memory(&inner)?;
        let mut tree = TxTree::new(&*self.base, inner.stamp, Access::Shared(&inner.overlay), &self.reads);
        tree.sees_persisted = self.is_note;
        let result = action(&mut tree);
        self.charge_memory(&inner);
        result
    }

    /// Runs an operation that may change the overlay. One that fails after its first change has
    /// left half of itself behind, so the transaction cannot go on.
    fn change<R>(&self, action: impl FnOnce(&mut TxTree<'_, B>) -> Result<R>) -> Result<R> {
        let mut inner = self.inner.write();
        inner.check_not_doomed(&self.space)?;
        self.check_memory(&inner)?;
        self.change_in(&mut inner, action)
    }

    /// As `change`, for an operation that adds contents, for which it makes room in memory first.
    fn add_contents<R>(&self, action: impl FnOnce(&mut TxTree<'_, B>) -> Result<R>) -> Result<R> {
        let mut inner = self.inner.write();
        inner.check_not_doomed(&self.space)?;
        self.make_room(&mut inner)?;
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
        (tree.has_savepoints, tree.sees_persisted) = (!inner.savepoints.is_empty(), self.is_note);
        let result = action(&mut tree);
        let (changed, touched) = (tree.changed, std::mem::take(&mut tree.touched));
        touched.into_iter().for_each(|(ino, before)| inner.overlay.note_bytes(ino, before));
        match &result {
            // Half-way or not: it is never committed, and can be looked at.
            Err(error @ (Error::Conflict { .. } | Error::TooOld | Error::SpaceRevoked)) => {
                inner.doom = Some(error.clone())
            }
            Err(_) if changed => inner.end(&self.base, &self.space, TxState::Aborted, |_| false),
            _ => {}
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
