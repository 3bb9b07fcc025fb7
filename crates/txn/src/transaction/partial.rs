//! Partial commits and aborts of changes selected by path; the transaction stays open.

use std::sync::OnceLock;

use xact_types::{Error, Ino, Result};

use super::{Inner, Transaction};
use crate::commit::Commit;
use crate::commit::observer::CommitObserver;
use crate::options::Durability;
use crate::partial::{Keep, LeftOut, Purpose, Selection};
use xact_fs::{ValidationOps, VersionedFs};

impl<B: VersionedFs> Transaction<B> {
    /// Commits the changes at and below `paths`, with the changes that they need: new folders
    /// above, and both ends of a rename. The transaction continues with the other changes, and then
    /// has a view of the volume as of this commit. Its reads are validated, because any of them may
    /// have led to these changes, except for reads of files whose changes were not chosen
    /// ([`LeftOut`]). If others have changed such a file, its changes remain a conflict until they
    /// are dropped, and this returns the first such conflict. A refused commit changes nothing, and
    /// the transaction continues.
    ///
    /// `Usage` if nothing at or below one of the paths was changed, or the part is impossible
    /// without the other changes.
    pub fn commit_only(
        &self,
        paths: &[impl AsRef<[u8]>],
        durability: Durability,
        observer: &mut dyn CommitObserver,
    ) -> Result<Option<Error>> {
        let admitted = self.wait_for_claims();
        let mut guard = self.inner.write();
        let inner = &mut *guard;
        inner.check_divisible()?;
        let mut reads = self.reads.lock();
        let refused = inner.refused_change(&reads);
        match refused {
            Some(_) => B::check_space(&self.space)?,
            None => inner.check_not_doomed(&self.space)?,
        }
        let selected =
            Selection::of(&inner.overlay, &reads.paths, paths, Purpose::Commit, &[], &mut self.budget())?;
        let part = inner.overlay.part(&selected, Keep::Selected);
        part.check_shape(|dir| self.parent_in_view(inner, dir), &reads.paths)?;
        let left_out = LeftOut::of(&part, &inner.overlay, &reads.paths, refused);
        // The chosen changes concern the file of which a change was refused.
        if refused.is_some_and(|ino| !left_out.has(ino)) {
            inner.check_not_doomed(&self.space)?;
        }
        let rest = self.rest_after(inner, &selected, &part, &reads, &left_out);
        let note = self.note_of_commit(inner, rest)?;
        let left_out = Some(left_out);
        let commit = Commit { left_out, ..self.as_commit(inner, &part, &reads) };
        let mut hold = None;
        let opens = |tree: &mut B::Operation<'_>| hold = Some(tree.open_view_after(&self.base));
        let applied = self.apply_with(&commit, note.as_ref(), durability, observer, opens)?;
        let met = commit.met.into_inner();
        let hold = hold.expect("opened with the commit");
        let stamp = B::stamp(&hold);
        let left_conflict = met.first();
        // Some were only listed. They are checked from now on.
        met.names.keys().for_each(|(dir, name)| reads.name(*dir, name));
        let keeps_view = inner.pins.add(met, inner.stamp);
        let pins = &inner.pins;
        let at = |ino: Ino| pins.stamp_of(ino).unwrap_or(stamp);
        let attr = |ino: Ino| part.still_has(self.base.attr_at(ino, at(ino))?);
        let stays = |ino: Ino| pins.stamp_of(ino).is_some();
        inner.overlay.absorb(&selected, &part, stays, attr);
        for (ino, _) in part.nodes.iter().filter(|(_, node)| node.born) {
            if inner.overlay.nodes.get(ino).is_none_or(|node| !node.born) {
                self.base.adopted_inode(&self.space, *ino);
            }
        }
        reads.rebase(stays, attr, |dir| self.base.parent_at(dir, at(dir)));
        drop(reads);
        inner.overlay.recount();
        let before = inner.hold.replace(hold).expect("an active transaction has a view");
        inner.stamp = stamp;
        inner.forget_writes();
        if keeps_view {
            inner.older.push(before);
        } else {
            drop(before);
        }
        if let Some(info) = inner.on_volume.as_ref().map(|persisted| persisted.info.clone()) {
            // Store the actual state. After an error, the record has the predicted one.
            let _ = self.write_record(inner, info);
        }
        drop(guard);
        drop(admitted);
        self.finish(applied, durability)?;
        Ok(left_conflict)
    }

    /// Discards the changes at and below `paths`, with the changes that depend on them: the
    /// deletion of a folder in which a name is restored, and both ends of a rename. The other
    /// changes stay open. What was read of the files whose changes are dropped does not count any
    /// longer, unless other changes concern the same inodes. `Usage`: see
    /// [`Transaction::commit_only`].
    pub fn abort_only(&self, paths: &[impl AsRef<[u8]>]) -> Result<()> {
        let mut guard = self.inner.write();
        let inner = &mut *guard;
        inner.check_divisible()?;
        let mut reads = self.reads.lock();
        let refused = inner.refused_change(&reads);
        // As it is shown, and for a selection of folders far above.
        let refused_paths: Vec<String> =
            refused.iter().flat_map(|ino| [reads.paths.of(*ino), reads.paths.whole(*ino)]).collect();
        let (all, met) = (&inner.overlay, &reads.paths);
        let selected = Selection::of(all, met, paths, Purpose::Drop, &refused_paths, &mut self.budget())?;
        let rest = inner.overlay.part(&selected, Keep::Others);
        rest.check_shape(|dir| self.parent_in_view(inner, dir), &reads.paths)?;
        // It is dropped with its path, or with all changes of the file.
        let refused =
            refused.filter(|ino| selected.selects(&refused_paths, paths) || selected.inodes.contains(ino));
        let dropped = LeftOut::of(&rest, &inner.overlay, &reads.paths, refused);
        let before = (reads.clone(), inner.pins.clone(), std::mem::replace(&mut inner.overlay, rest));
        for ino in dropped.inodes() {
            reads.drop_inode(ino);
            inner.pins.remove(ino);
        }
        for at in dropped.names() {
            reads.drop_name(at.0, &at.1);
            inner.pins.remove_name(at);
        }
        // The places of folders matter for moved ones.
        if !inner.overlay.nodes.values().any(|node| node.parent.is_some() && !node.born) {
            reads.parents.clear();
        }
        reads.recount();
        drop(reads);
        let before = match self.record_drop(inner) {
            Ok(()) => before.2,
            Err(error) => {
                (*self.reads.lock(), inner.pins, inner.overlay) = before;
                return Err(error);
            }
        };
        if inner.pins.is_empty() {
            inner.older.clear();
        }
        // Nothing is left of the call that failed, and no change was made after it.
        if refused.is_some_and(|ino| dropped.has(ino)) {
            inner.doom = OnceLock::new();
        }
        inner.forget_writes();
        for (ino, _) in before.nodes.iter().filter(|(_, node)| node.born) {
            if !inner.overlay.nodes.contains_key(ino) {
                self.base.unreserve_inode(&self.space, *ino);
            }
        }
        Ok(())
    }

    fn parent_in_view(&self, inner: &Inner<B>, dir: Ino) -> Result<Ino> {
        self.base.parent_at(dir, inner.pins.stamp_of(dir).unwrap_or(inner.stamp))
    }

    fn record_drop(&self, inner: &mut Inner<B>) -> Result<()> {
        let info = inner.on_volume.as_ref().map(|persisted| persisted.info.clone());
        info.map_or(Ok(()), |info| self.write_record(inner, info))
    }
}
