//! Transactions that outlive the process: undecided, and kept in a file of the volume (TX-18).
//!
//! ```text
//!   /.xact-kept        0700 root   there as long as something is in it
//!   /.xact-kept/ID     one persisted transaction: its head (see `codec`), its contents by block
//! ```
//! To the kernel and to e2fsck these are a folder and files like others. Only the name `ID` decides
//! whether a persisted transaction exists.
//!
//! Crash argument. Each step is one ordinary transaction on the base, so that a crash leaves all or
//! nothing of it ([`crate::commit`]):
//! 1. [`Transaction::persist`] makes the file, whole and under its name, in one commit, and returns
//!    when that is durable. So it exists from then on.
//! 2. A commit removes the name in the same operation, and so in the same jbd2 transaction, in
//!    which it brings the changes into the base: [`Transaction::apply`] prepares both, then applies
//!    both. So a crash leaves the changes or the file, never both and never neither.
//!    (`Fault::PersistedRemovedApart` leaves that out.)
//! 3. A partial commit puts a file with the rest in the place of the old one, in the same way. How
//!    the base looks after that commit is foreseen, as it can only be known when it is made; what
//!    others change at the same moment may be taken for a conflict after a crash. The file is
//!    written once more at once, as it came out.
//! 4. An abort removes the name, and returns when that is durable.
//!
//! The process continues with what it has in memory, and reads the file only when the volume is
//! reopened ([`Transaction::reopen`]). Inodes that were born in the transaction get other numbers
//! then. Its view is of that moment; what others have changed since its begin is found by value
//! (`fingerprint`) and stays a conflict.

mod codec;
mod fingerprint;
mod folder;
pub(crate) mod info;
mod record;
mod reopen;

use std::cell::RefCell;

use parking_lot::Mutex;
use xact_fs::{Caller, InodeOps, PERSISTED_FOLDER as FOLDER, VersionedFs, View, WriteHow};
use xact_types::{Errno, Error, Ino, Result};

use crate::options::{TxOptions, TxState};
use crate::overlay::Overlay;
use crate::partial::Selection;
use crate::transaction::{Inner, Transaction};
use crate::tx_tree::{Access, TxTree};
use crate::validation::read_set::ReadSet;
pub use folder::persisted_transactions;
use folder::{find_folder, note_transaction, tidy};
use info::OnVolume;
pub use info::PersistedInfo;
use record::{Image, Record};

/// Type and permissions of the folder and of the files in it.
const FOLDER_PERM: u16 = 0o700;
const FILE_MODE: u16 = 0o100_600;
/// Attempts, where others make or remove the folder at the same time.
const TRIES: u32 = 16;

impl<B: VersionedFs> Transaction<B> {
    /// Keeps the transaction as it is now in a file of the volume too, from which
    /// [`Transaction::reopen`] restores it after a stop or a crash, until it is committed or
    /// aborted. Returns when that is durable. To be called again when it has changed since.
    ///
    /// `NoSpace` where its contents do not fit the volume a second time, `SpaceRevoked` where
    /// others got its space, `Usage` where it has savepoints, and where something else is in the
    /// way: then what was kept before stays.
    pub fn persist(&self, info: PersistedInfo) -> Result<()> {
        // What it has seen is there after a crash, too: else that would be a conflict.
        self.base.sync_all()?;
        let mut inner = self.inner.write();
        inner.check_divisible()?;
        self.put_on_record(&mut inner, info)
    }

    /// What it is kept with, if it is in a file.
    pub fn persisted_info(&self) -> Option<PersistedInfo> {
        self.inner.read().on_volume.as_ref().map(|persisted| persisted.info.clone())
    }

    /// As [`Transaction::persist`], for one that is in a file, if it has changed since.
    pub fn update_persisted(&self) -> Result<()> {
        let mut inner = self.inner.write();
        let Some(persisted) = inner.on_volume.clone() else { return Ok(()) };
        inner.check_divisible()?;
        if !persisted.outdated && persisted.weight == self.reads.lock().weight() {
            return Ok(());
        }
        self.put_on_record(&mut inner, persisted.info)
    }

    /// Drops the transaction's changes, those in its file too, durably: it ends, whatever happens.
    /// On an error it may be there again when the volume is reopened.
    pub fn abort_persisted(&self) -> Result<()> {
        let mut inner = self.inner.write();
        if inner.state != TxState::Active {
            return Ok(());
        }
        let Some(_) = inner.on_volume.take() else {
            self.end_aborted(&mut inner);
            return Ok(());
        };
        let removed = self.note(None).and_then(|note| note.commit());
        self.end_aborted(&mut inner);
        drop(inner);
        tidy(&self.base);
        removed
    }

    /// The file is gone by a commit.
    pub(crate) fn off_record(&self) {
        tidy(&self.base);
    }

    /// Takes the file of a transaction away that ends since its commit was refused. Where that
    /// fails it is open again when the volume is reopened, which does no harm.
    pub(crate) fn forget_record(&self, inner: &mut Inner<B>) {
        if inner.on_volume.take().is_some() {
            let _ = self.note(None).and_then(|note| note.commit());
            tidy(&self.base);
        }
    }

    /// Puts the transaction on record by itself.
    pub(crate) fn put_on_record(&self, inner: &mut Inner<B>, info: PersistedInfo) -> Result<()> {
        // What it had is lost in part: it stays as it was kept before.
        B::check_space(&self.space)?;
        let reads = self.reads.lock();
        let nothing = Overlay::default();
        let record = Record { overlay: &inner.overlay, reads: &reads, beside: &nothing, info: &info };
        let mut tries = 0;
        loop {
            tries += 1;
            match self.note(Some(self.encode(inner, &record)?)).and_then(|note| note.commit()) {
                Err(Error::Conflict { .. }) if tries < TRIES => {}
                done => break done?,
            }
        }
        inner.on_volume = Some(OnVolume { info, weight: reads.weight(), outdated: false });
        Ok(())
    }

    /// The change of the record that goes with a commit: the file goes, or another comes in its
    /// place.
    pub(crate) fn note_of_commit(
        &self,
        inner: &Inner<B>,
        rest: Option<Rest>,
    ) -> Result<Option<Transaction<B>>> {
        let Some(persisted) = &inner.on_volume else { return Ok(None) };
        let image = match &rest {
            None => None,
            Some(Rest { overlay, reads, part }) => {
                let record = Record { overlay, reads, beside: part, info: &persisted.info };
                Some(self.encode(inner, &record)?)
            }
        };
        self.note(image).map(Some)
    }

    /// What stays of the transaction, as it will be when `part` is in the base.
    pub(crate) fn rest_after(
        &self,
        inner: &Inner<B>,
        selected: &Selection,
        part: &Overlay,
        reads: &ReadSet,
    ) -> Option<Rest> {
        inner.on_volume.as_ref()?;
        let scratch = Mutex::default();
        let tree = RefCell::new(TxTree::new(&*self.base, inner.stamp, Access::Shared(part), &scratch));
        let attr = |ino: Ino| part.still_has(tree.borrow_mut().attr(ino)?);
        let (mut overlay, mut reads) = (inner.overlay.clone(), reads.clone());
        overlay.absorb(selected, part, attr);
        reads.rebase(attr, |dir| tree.borrow_mut().parent(dir));
        Some(Rest { overlay, reads, part: part.clone() })
    }

    /// Removes the file, or replaces it, in a transaction that is not committed yet.
    fn note(&self, image: Option<Image>) -> Result<Transaction<B>> {
        let TxOptions { id, owner, .. } = self.options;
        let name = id.to_string();
        let note = note_transaction(&self.base, id, owner);
        let folder = match find_folder(&note)? {
            Some(folder) => folder,
            None if image.is_some() => {
                note.make_dir(&Caller::ROOT, Ino::ROOT, FOLDER.as_bytes(), FOLDER_PERM)?.ino
            }
            // Somebody who has the volume mounted otherwise has removed it: that is a drop.
            None => return Ok(note),
        };
        match note.unlink(&Caller::ROOT, folder, name.as_bytes()) {
            Ok(()) | Err(Error::Posix(Errno::ENOENT)) => {}
            Err(error) => return Err(error),
        }
        if let Some(image) = image {
            let by = Caller { uid: owner, gid: image.gid, umask: 0 };
            let file = note.make_node(&by, folder, name.as_bytes(), FILE_MODE, 0)?.ino;
            image.write(|offset, bytes| {
                note.write(file, offset, bytes, WriteHow { by, ..WriteHow::default() })
            })?;
        }
        Ok(note)
    }
}

/// What a commit of a part leaves.
pub(crate) struct Rest {
    overlay: Overlay,
    reads: ReadSet,
    part: Overlay,
}
