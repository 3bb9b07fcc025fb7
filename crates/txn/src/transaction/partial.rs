//! Partial commits and aborts of changes selected by path; the transaction stays open.

use xact_types::{Ino, Result};

use super::Transaction;
use crate::commit::observer::CommitObserver;
use crate::options::Durability;
use crate::partial::{Keep, Purpose, Selection};
use xact_fs::{ValidationOps, VersionedFs};

impl<B: VersionedFs> Transaction<B> {
    /// Commits the changes at and below `paths`, with the changes that they need: new folders
    /// above, and both ends of a rename. The transaction continues with the other changes, and then
    /// has a view of the volume as of this commit. All of its reads are validated, because any of
    /// them may have led to these changes. A refused commit changes nothing, and the transaction
    /// continues.
    ///
    /// `Usage` if nothing at or below one of the paths was changed, or the part is impossible
    /// without the other changes.
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
        let opens = |tree: &mut B::Operation<'_>| hold = Some(tree.open_view_after(&self.base));
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
            // Store the actual state. After an error, the record has the predicted one.
            let _ = self.write_record(&mut inner, info);
        }
        drop(inner);
        drop(admitted);
        self.finish(commit, durability)
    }

    /// Discards the changes at and below `paths`, with the changes that depend on them: the
    /// deletion of a folder in which a name is restored, and both ends of a rename. The other
    /// changes stay open. `Usage`: see [`Transaction::commit_only`].
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
            let recorded = self.write_record(&mut inner, info);
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
}
