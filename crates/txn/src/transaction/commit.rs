//! The calls that commit: they wait for claims, validate and apply, and wait for durability.

use std::cell::RefCell;
use std::collections::BTreeMap;

use parking_lot::RwLockReadGuard;
use xact_types::{CommitId, Error, Ino, Result};

use super::{Inner, Transaction};
use crate::commit::Commit;
use crate::commit::changes::Changes;
use crate::commit::observer::CommitObserver;
use crate::contention::LostAttempt;
use crate::options::{Durability, Isolation, TxOptions, TxState};
use crate::overlay::{Node, Overlay};
use crate::validation::read_set::ReadSet;
use xact_fs::{CommitSize, InstallOps, Staging, VersionedFs};

impl<B: VersionedFs> Transaction<B> {
    /// Commits, and waits until the commit is durable. The transaction ends in any case.
    pub fn commit(&self) -> Result<()> {
        self.commit_with(Durability::Durable)
    }

    /// Errors: [`Error::Conflict`] with the path, [`Error::NoSpace`], [`Error::TooLarge`]: the
    /// transaction is aborted. After an error of the device in the last step the changes are
    /// visible, but whether a crash keeps them is not known; the volume is read-only then.
    pub fn commit_with(&self, durability: Durability) -> Result<()> {
        self.commit_with_observer(durability, &mut ())
    }

    /// As [`Transaction::commit_with`], and notifies `observer` before and after.
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
            self.remove_record(&mut inner);
            self.end_aborted(&mut inner);
        }
        drop(inner);
        self.finish(commit?, durability)
    }

    /// As [`Transaction::commit_with_observer`], but a transaction whose commit is refused stays
    /// open and unchanged: it can be read, and part of it may still be committed.
    pub fn try_commit(&self, durability: Durability, observer: &mut dyn CommitObserver) -> Result<()> {
        let admitted = self.wait_for_claims();
        let commit = self.make_visible(&mut self.inner.write(), durability, observer)?;
        drop(admitted);
        self.finish(commit, durability)
    }

    /// The lost attempt after a commit that was refused for a conflict, for the next attempt.
    pub fn take_lost_attempt(&self) -> Option<LostAttempt> {
        self.lost_attempt.lock().take()
    }

    /// Waits for transactions with a claim on inodes that this one would change.
    pub(super) fn wait_for_claims(&self) -> RwLockReadGuard<'_, ()> {
        let own = self.inner.read().claim.as_ref().map(|claim| claim.age);
        self.contention.wait_for_claims(own, self.options.owner, || {
            let inner = self.inner.read();
            let changed = |node: &Node| !node.born && node.is_changed() && !node.changes_dir_times_only();
            inner.overlay.nodes.iter().filter(|(_, node)| changed(node)).map(|(ino, _)| *ino).collect()
        })
    }

    /// Waits for durability, without locks.
    pub(super) fn finish(&self, commit: Option<CommitId>, durability: Durability) -> Result<()> {
        match (commit, durability) {
            (Some(commit), Durability::Durable) => self.base.wait_durable(commit),
            _ => Ok(()),
        }
    }

    /// Validates and applies; `None` if there is nothing to apply. A refusal leaves the transaction
    /// unchanged.
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
            // Without a net effect it is a reader of one instant, which always commits.
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
            self.note_record_removed();
        }
        result
    }

    pub(super) fn as_commit<'a>(
        &self,
        inner: &'a Inner<B>,
        overlay: &'a Overlay,
        reads: &'a ReadSet,
    ) -> Commit<'a> {
        let TxOptions { id, isolation, mounted, .. } = self.options;
        let serializable = isolation == Isolation::Serializable || reads.is_coarse;
        let (whole, stamp, pins) = (&inner.overlay, inner.stamp, &inner.pins);
        let (left_out, met) = (None, RefCell::default());
        Commit { overlay, whole, reads, stamp, id, serializable, mounted, pins, left_out, met }
    }

    /// Whether a commit would change the base.
    pub fn has_effect(&self) -> bool {
        self.changes_anything(&self.inner.read())
    }

    pub(super) fn changes_anything(&self, inner: &Inner<B>) -> bool {
        !self.as_commit(inner, &inner.overlay, &self.reads.lock()).is_empty()
    }

    /// The changes that a commit would make now; none for a transaction that has ended.
    pub fn changes(&self) -> Changes {
        self.with_overlay(Changes::of)
    }

    /// Applies a commit, and in the same operation that of `note`, which changes the record of the
    /// transaction.
    pub(super) fn apply_with(
        &self,
        commit: &Commit<'_>,
        note: Option<&Transaction<B>>,
        durability: Durability,
        observer: &mut dyn CommitObserver,
        applied: impl FnMut(&mut B::Operation<'_>),
    ) -> Result<Option<CommitId>> {
        let Some(note) = note else {
            return self.apply(&[(commit, &self.space)], durability, observer, applied);
        };
        if self.base.removes_persisted_apart() {
            let id = self.apply(&[(commit, &self.space)], Durability::Durable, observer, applied)?;
            self.finish(id, Durability::Durable)?;
            return note.commit().map(|()| None);
        }
        let mut inner = note.inner.write();
        let reads = note.reads.lock();
        let noted = note.as_commit(&inner, &inner.overlay, &reads);
        let id =
            self.apply(&[(commit, &self.space), (&noted, &note.space)], durability, observer, applied)?;
        let adopted: Vec<Ino> =
            inner.overlay.nodes.keys().copied().filter(|ino| noted.adopts(*ino)).collect();
        inner.end(&self.base, &note.space, TxState::Committed, |ino| adopted.binary_search(&ino).is_ok());
        Ok(id)
    }

    /// Applies all commits in one operation; the observer is notified of the first.
    fn apply(
        &self,
        commits: &[(&Commit<'_>, &B::Space)],
        durability: Durability,
        observer: &mut dyn CommitObserver,
        mut applied: impl FnMut(&mut B::Operation<'_>),
    ) -> Result<Option<CommitId>> {
        // Pinned space is not revoked during the commit.
        let _pinned =
            commits.iter().map(|(_, space)| B::pin_space(space)).collect::<Result<Vec<B::Pinned>>>()?;
        let commits: Vec<&Commit<'_>> = commits.iter().map(|(commit, _)| *commit).collect();
        let privileged = self.options.owner == 0;
        let begun = commits.iter().map(|commit| commit.stamp).min().unwrap_or_default();
        let by = Staging { privileged, begun };
        let mut staged = Vec::new();
        let mut size = CommitSize { privileged, begun, ..CommitSize::default() };
        let mut inodes = Vec::new();
        for commit in &commits {
            commit.check_known_conflicts()?;
            let mut files = BTreeMap::new();
            for (ino, new) in commit.files(self.base.block_size(), durability) {
                files.insert(ino, self.base.stage(ino, new, by)?);
            }
            staged.push(files);
            commit.add_size(&mut size);
            inodes.extend(commit.inodes());
        }
        let files: Vec<Ino> = staged.iter().flat_map(|files| files.keys().copied()).collect();
        self.base.prepare(&files)?;
        inodes.sort_unstable();
        inodes.dedup();
        observer.before(&Changes::of(commits[0].overlay));
        let result = self.base.commit(&inodes, &size, |tree| {
            // All of them are prepared before the first change.
            for (commit, staged) in commits.iter().zip(&staged) {
                commit.prepare(tree, staged)?;
            }
            for (commit, staged) in commits.iter().zip(&mut staged) {
                commit.apply(tree, staged)?;
            }
            applied(tree);
            Ok(tree.commit_id())
        });
        observer.after();
        result
    }
}
