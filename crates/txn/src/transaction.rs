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
//! An active transaction is **doomed** once a change in it has met contents that others have changed
//! since its begin (TX-4), or that its snapshot is too old, or once others needed the space that it held: that change, all later ones and every commit
//! fail with the same error, which has the path. It stays so whatever is rolled back, as what was done
//! after the failure may have come of it. ReadSet go on.

mod apply;
mod view;

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use xact_fs::posix::{self, Access as Permission, Credentials};
use xact_fs::{Attr, FileKind, InodeOps};
use xact_types::{AccessCheck, CommitId, Errno, Error, Ino, Result};

use crate::base::{CommitTree, Stamp, VersionedBase};
use crate::by_file;
use crate::changes::{Changes, CommitObserver};
use crate::commit::Commit;
use crate::contention::{AbortHistory, ContentionManager, LostAttempt, PriorityClaim};
use crate::diff::{self, Budget, Difference, Side};
use crate::memory::Memory;
use crate::overlay::{Node, Overlay};
use crate::part::{Keep, Purpose, Selection};
use crate::persisted::OnVolume;
use crate::read_set::ReadSet;
use crate::savepoint::Savepoints;
use crate::tx_tree::{Access, TxTree};

/// What a commit checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Nothing that the transaction has read or written was changed by others: the result is as
    /// if it had run alone, at the moment of its commit.
    #[default]
    Serializable,
    /// Only what it has written. Two transactions may then each read what the other writes.
    Snapshot,
}

/// When `commit` returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// When a crash cannot undo it any more.
    #[default]
    Durable,
    /// When it is visible. It becomes durable together with the next durable commit, `fsync` or
    /// `sync`, or by itself within seconds; a crash before that undoes it as a whole, and with it
    /// all that came after.
    Ordered,
    /// As `Ordered`, of contents that later commits are going to replace (TX-10): as far as the volume's
    /// mode lets data into the journal and there is room, they wait there for the next durable commit,
    /// and what has been replaced by then is never written.
    Consolidated,
}

/// Who wants to read contents by an inode's number.
#[derive(Debug, Clone, Copy)]
pub enum Reader<'a> {
    /// Somebody who may read anything.
    Anybody,
    /// A user of a mount, and the paths by which this inode may be reached.
    User(&'a Credentials, &'a [&'a [u8]]),
}

impl Reader<'_> {
    fn may_read(&self, tree: &mut impl InodeOps, ino: Ino) -> Result<bool> {
        let Reader::User(who, paths) = self else { return Ok(true) };
        if who.uid == 0 || !AccessCheck::ReadPermission.is_made() {
            return Ok(true);
        }
        for path in *paths {
            if posix::permits_path(tree, who, path, ino, Permission::READ)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// How a transaction runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxOptions {
    /// Its number, by which the losers of conflicts are told who won.
    pub id: u64,
    pub isolation: Isolation,
    /// It is a kernel that looks at attributes, and it asks for all of a file that is opened: where
    /// the transaction writes to the file itself, the time of modification does not count as read.
    pub mounted: bool,
    /// Whose it is: the user on whose behalf space is used.
    pub owner: u32,
}

/// Where a transaction stands; see the module's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxState {
    Active,
    Committing,
    Committed,
    Aborted,
}

/// A private view of the volume as of one instant, with the changes made in it.
///
/// Everything in it is done through its [`View`]. Dropping an active transaction aborts it.
pub struct Transaction<B: VersionedBase> {
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

pub(crate) struct Inner<B: VersionedBase> {
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
    pub hold: Option<B::Hold>,
}

impl<B: VersionedBase> Inner<B> {
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

impl<B: VersionedBase> Transaction<B> {
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

    /// After a commit that was refused for a conflict: what is to be known for another try.
    pub fn take_lost_attempt(&self) -> Option<LostAttempt> {
        self.lost_attempt.lock().take()
    }

    /// Waits until those who have lost again and again have had what this would change.
    fn wait_for_claims(&self) -> RwLockReadGuard<'_, ()> {
        let own = self.inner.read().claim.as_ref().map(|claim| claim.age);
        self.contention.wait_for_claims(own, self.options.owner, || {
            let inner = self.inner.read();
            let changed = |node: &Node| !node.born && node.is_changed() && !node.changes_dir_times_only();
            inner.overlay.nodes.iter().filter(|(_, node)| changed(node)).map(|(ino, _)| *ino).collect()
        })
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

    /// Commits and waits until that is durable. Whatever the outcome, the transaction has ended.
    pub fn commit(&self) -> Result<()> {
        self.commit_with(Durability::Durable)
    }

    /// Errors: [`Error::Conflict`] with the path, [`Error::NoSpace`], [`Error::TooLarge`]: the
    /// transaction is aborted. After an error of the device in the last step the changes are
    /// visible, but whether a crash keeps them is not known; the volume is read-only then.
    pub fn commit_with(&self, durability: Durability) -> Result<()> {
        self.commit_with_observer(durability, &mut ())
    }

    /// As [`Transaction::commit_with`], before an observer.
    pub fn commit_with_observer(
        &self,
        durability: Durability,
        observer: &mut dyn CommitObserver,
    ) -> Result<()> {
        let admitted = self.wait_for_claims();
        let mut inner = self.inner.write();
        let commit = self.make_visible(&mut inner, durability, observer);
        drop(admitted);
        if matches!(commit, Err(Error::Conflict { .. })) {
            let reads = self.reads.lock();
            let inodes = self.as_commit(&inner, &inner.overlay, &reads).inodes().into_iter().collect();
            *self.lost_attempt.lock() =
                Some(LostAttempt { id: self.options.id, inodes, took: self.begun.elapsed() });
        }
        if commit.is_err() && inner.state == TxState::Active {
            self.forget_record(&mut inner);
            self.end_aborted(&mut inner);
        }
        drop(inner);
        self.finish(commit?, durability)
    }

    /// As [`Transaction::commit_with_observer`], but a transaction whose commit is refused stays open as it
    /// was: it can be looked at, and part of it may still be committed.
    pub fn try_commit(&self, durability: Durability, observer: &mut dyn CommitObserver) -> Result<()> {
        let admitted = self.wait_for_claims();
        let commit = self.make_visible(&mut self.inner.write(), durability, observer)?;
        drop(admitted);
        self.finish(commit, durability)
    }

    /// Commits the changes at and below `paths`, with what cannot be had without them: the new
    /// folders above, and both ends of a rename. The transaction goes on with the rest, and from
    /// then on sees the volume as of this commit. All that it has read so far is validated, since
    /// any of it may have led to these changes. Where the commit is refused nothing has happened,
    /// and the transaction goes on as it was.
    ///
    /// `Usage`: nothing at or below one of the paths was changed, or the part is none that a volume
    /// could have without the rest.
    pub fn commit_only(
        &self,
        paths: &[impl AsRef<[u8]>],
        durability: Durability,
        observer: &mut dyn CommitObserver,
    ) -> Result<()> {
        let admitted = self.wait_for_claims();
        let mut inner = self.inner.write();
        inner.check_not_doomed(&self.space)?;
        inner.check_divisible()?;
        let mut reads = self.reads.lock();
        let selected =
            Selection::of(&inner.overlay, &reads.paths, paths, Purpose::Commit, &mut self.budget())?;
        let part = inner.overlay.part(&selected, Keep::Selected);
        part.check_shape(|dir| self.base.parent_at(dir, inner.stamp), &reads.paths)?;
        let rest = self.rest_after(&inner, &selected, &part, &reads);
        let note = self.note_of_commit(&inner, rest)?;
        let commit = self.as_commit(&inner, &part, &reads);
        let mut hold = None;
        let opens = |tree: &mut B::Tree<'_>| hold = Some(tree.open_view_after(&self.base));
        let commit = self.apply_with(&commit, note.as_ref(), durability, observer, opens)?;
        let hold = hold.expect("opened with the commit");
        let stamp = B::stamp(&hold);
        let attr = |ino: Ino| part.still_has(self.base.attr_at(ino, stamp)?);
        inner.overlay.absorb(&selected, &part, attr);
        for (ino, _) in part.nodes.iter().filter(|(_, node)| node.born) {
            if inner.overlay.nodes.get(ino).is_none_or(|node| !node.born) {
                self.base.adopted_inode(&self.space, *ino);
            }
        }
        reads.rebase(attr, |dir| self.base.parent_at(dir, stamp));
        drop(reads);
        inner.overlay.recount();
        (inner.stamp, inner.hold) = (stamp, Some(hold));
        if let Some(info) = inner.on_volume.as_ref().map(|persisted| persisted.info.clone()) {
            // As it came out. Where that fails, what was foreseen is on record.
            let _ = self.put_on_record(&mut inner, info);
        }
        drop(inner);
        drop(admitted);
        self.finish(commit, durability)
    }

    /// Drops the changes at and below `paths`, with what cannot stay without them: the deletion of
    /// a folder in which something is restored, and both ends of a rename. The rest stays open.
    /// `Usage` as for [`Transaction::commit_only`].
    pub fn abort_only(&self, paths: &[impl AsRef<[u8]>]) -> Result<()> {
        let mut inner = self.inner.write();
        inner.check_divisible()?;
        let reads = self.reads.lock();
        let selected = Selection::of(&inner.overlay, &reads.paths, paths, Purpose::Drop, &mut self.budget())?;
        let rest = inner.overlay.part(&selected, Keep::Others);
        rest.check_shape(|dir| self.base.parent_at(dir, inner.stamp), &reads.paths)?;
        drop(reads);
        let before = std::mem::replace(&mut inner.overlay, rest);
        if let Some(info) = inner.on_volume.as_ref().map(|persisted| persisted.info.clone()) {
            let recorded = self.put_on_record(&mut inner, info);
            if recorded.is_err() {
                inner.overlay = before;
                return recorded;
            }
        }
        for (ino, _) in before.nodes.iter().filter(|(_, node)| node.born) {
            if !inner.overlay.nodes.contains_key(ino) {
                self.base.unreserve_inode(&self.space, *ino);
            }
        }
        Ok(())
    }

    /// Marks the state of the transaction as it is now, to go back to; a begin within it. Returns the
    /// savepoint's number, which is not given again. `EMFILE`, `ENOMEM`: its user has too many, or too large ones.
    pub fn savepoint(&self) -> Result<u64> {
        let mut guard = self.inner.write();
        guard.check_active()?;
        let inner = &mut *guard;
        self.make_room_for_copy(inner)?;
        inner.savepoints.make(&inner.overlay, self.base.block_size(), &self.memory.account())
    }

    /// Undoes everything since a savepoint, which is gone with all later ones: the inner part is
    /// aborted. Returns what differs now, for those who cache the view. `Usage`: there is none of
    /// this number.
    pub fn roll_back(&self, savepoint: u64) -> Result<Changes> {
        let mut guard = self.inner.write();
        guard.check_active()?;
        let inner = &mut *guard;
        let saved = inner.savepoints.take(savepoint)?;
        let changes = inner.overlay.roll_back(saved, self.base.link_max());
        self.charge_memory(inner);
        Ok(changes)
    }

    /// Makes what was done since a savepoint part of what is around it; the savepoint is gone with all
    /// later ones. `Usage`: there is none of this number.
    pub fn release_savepoint(&self, savepoint: u64) -> Result<()> {
        let mut inner = self.inner.write();
        inner.check_active()?;
        inner.savepoints.take(savepoint)?;
        self.charge_memory(&inner);
        Ok(())
    }

    /// No lock is held while the device works.
    fn finish(&self, commit: Option<CommitId>, durability: Durability) -> Result<()> {
        match (commit, durability) {
            (Some(commit), Durability::Durable) => self.base.wait_durable(commit),
            _ => Ok(()),
        }
    }

    /// Validates and applies; `None` where there is nothing to apply. Where that is refused the
    /// transaction is as it was.
    fn make_visible(
        &self,
        inner: &mut Inner<B>,
        durability: Durability,
        observer: &mut dyn CommitObserver,
    ) -> Result<Option<CommitId>> {
        inner.check_not_doomed(&self.space)?;
        inner.state = TxState::Committing;
        inner.assert_state();
        let mut reads = self.reads.lock();
        let commit = self.as_commit(inner, &inner.overlay, &reads);
        let result = self.note_of_commit(inner, None).and_then(|note| match note {
            // Without a net effect it is a reader, which saw one instant: it always commits.
            None if commit.is_empty() => Ok(None),
            Some(note) if commit.is_empty() => note.commit().map(|()| None),
            note => self.apply_with(&commit, note.as_ref(), durability, observer, |_| ()),
        });
        if result.is_err() {
            inner.state = TxState::Active;
            return result;
        }
        let adopted: Vec<Ino> =
            inner.overlay.nodes.keys().copied().filter(|ino| commit.adopts(*ino)).collect();
        inner.end(&self.base, &self.space, TxState::Committed, |ino| adopted.binary_search(&ino).is_ok());
        *reads = ReadSet::default();
        if inner.on_volume.take().is_some() {
            self.off_record();
        }
        result
    }

    fn as_commit<'a>(&self, inner: &'a Inner<B>, overlay: &'a Overlay, reads: &'a ReadSet) -> Commit<'a> {
        let TxOptions { id, isolation, mounted, .. } = self.options;
        let serializable = isolation == Isolation::Serializable || reads.is_coarse;
        Commit { overlay, whole: &inner.overlay, reads, stamp: inner.stamp, id, serializable, mounted }
    }

    /// Whether a commit would change the base at all.
    pub fn has_effect(&self) -> bool {
        let inner = self.inner.read();
        !self.as_commit(&inner, &inner.overlay, &self.reads.lock()).is_empty()
    }

    /// Drops the transaction's changes, but for what is kept of it in a file ([`Transaction::abort_persisted`]).
    /// Nothing happens where it has ended already.
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

    fn budget(&self) -> Budget {
        Budget::of(&self.memory.account())
    }

    /// What a commit would change, by path, in the order of the paths. `ENOMEM`: that is more than the user may have
    /// in memory.
    pub fn diff(&self) -> Result<Vec<Difference>> {
        let inner = self.inner.read();
        inner.check_active()?;
        let mut budget = self.budget();
        let found = diff::all(&inner.overlay, &self.reads.lock().paths, &mut budget)?;
        Ok(found.into_iter().map(|found| found.difference).collect())
    }

    /// What a commit would change, file by file: renamed folders as their files, what a rename has replaced as
    /// modified, and each path once. In the order of the paths; nothing of it counts as read. What `who` may not
    /// list in a renamed folder is left out, and the folder named instead.
    pub fn diff_by_file(&self, who: Option<&Credentials>) -> Result<Vec<Difference>> {
        let inner = self.inner.read();
        inner.check_active()?;
        let mut budget = self.budget();
        let found = diff::all(&inner.overlay, &self.reads.lock().paths, &mut budget)?;
        let (nothing, reads) = (Overlay::default(), Mutex::default());
        let side = |overlay| TxTree::new(&*self.base, inner.stamp, Access::Shared(overlay), &reads);
        by_file::of(found, who, &mut side(&nothing), &mut side(&inner.overlay), &mut budget)
    }

    /// Looks at one side of the differences without that counting as read.
    fn peek<R>(&self, side: Side, action: impl FnOnce(&mut TxTree<'_, B>) -> Result<R>) -> Result<R> {
        let inner = self.inner.read();
        inner.check_active()?;
        let nothing = Overlay::default();
        let overlay = if side == Side::Old { &nothing } else { &inner.overlay };
        let reads = Mutex::default();
        action(&mut TxTree::new(&self.base, inner.stamp, Access::Shared(overlay), &reads))
    }

    /// Attributes of an inode on one side of a difference, without that counting as read.
    pub fn peek_attr(&self, side: Side, ino: Ino) -> Result<Attr> {
        self.peek(side, |tree| posix::attr(tree, ino))
    }

    /// Contents of a file, or the target of a symbolic link, on one side of a difference, without
    /// that counting as read; as [`View::read`]. `EACCES` where `by` may not read it on that side.
    pub fn peek_contents(
        &self,
        by: &Reader<'_>,
        side: Side,
        ino: Ino,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.peek(side, |tree| match tree.attr(ino)?.kind {
            _ if !by.may_read(tree, ino)? => Err(Error::Posix(Errno::EACCES)),
            FileKind::Symlink => {
                let target = posix::read_link(tree, ino)?;
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(target.len());
                out.extend_from_slice(&target[start..target.len().min(start.saturating_add(len))]);
                Ok(())
            }
            _ => posix::read(tree, ino, offset, len, out),
        })
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

impl<B: VersionedBase> Drop for Transaction<B> {
    fn drop(&mut self) {
        self.abort();
    }
}
