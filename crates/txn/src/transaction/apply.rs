//! Bringing a transaction's commit into the base, and with it what is on record of the transaction.

use std::collections::BTreeMap;

use xact_types::{CommitId, Ino, Result};

use super::{Durability, Transaction, TxState};
use crate::base::{CommitSize, CommitTree, Staging, VersionedBase};
use crate::changes::{Changes, CommitObserver};
use crate::commit::Commit;

impl<B: VersionedBase> Transaction<B> {
    /// Applies a commit, and in the same operation that of `note`, which changes what is on record of the
    /// transaction.
    pub(super) fn apply_with(
        &self,
        commit: &Commit<'_>,
        note: Option<&Transaction<B>>,
        durability: Durability,
        observer: &mut dyn CommitObserver,
        applied: impl FnMut(&mut B::Tree<'_>),
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

    /// All of the commits, in one operation; the observer is told of the first.
    fn apply(
        &self,
        commits: &[(&Commit<'_>, &B::Space)],
        durability: Durability,
        observer: &mut dyn CommitObserver,
        mut applied: impl FnMut(&mut B::Tree<'_>),
    ) -> Result<Option<CommitId>> {
        // What is committed is not revoked any more.
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
            commit.check_gone()?;
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
            // Nothing changes before all of them may.
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
