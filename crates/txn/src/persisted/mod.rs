//! Open transactions that survive the process, each stored in a file of the volume (TX-18).
//!
//! ```text
//!   /.xact-kept        0700 root   exists as long as it is not empty
//!   /.xact-kept/ID     one persisted transaction: its head (see `codec`), its contents by block
//! ```
//! To the kernel and to e2fsck these are an ordinary folder and files. Only the name `ID` decides
//! whether a persisted transaction exists.
//!
//! Crash argument. Each step is one ordinary transaction on the base, so a crash leaves all or
//! nothing of it ([`crate::commit`]):
//! 1. [`Transaction::persist`] creates the whole file under its name in one commit, and returns
//!    when that is durable. The persisted transaction exists from then on.
//! 2. A commit removes the name in the operation that applies the changes to the base, so in the
//!    same jbd2 transaction: [`Transaction::apply`] prepares both, then applies both. So a crash
//!    leaves either the changes or the file, never both or neither. (`Fault::PersistedRemovedApart`
//!    omits that.)
//! 3. A partial commit replaces the file by one with the remaining changes, in the same way. The
//!    new file must contain the base's state after that commit, which is predicted, because it is
//!    only known once the commit is made. After a crash, a concurrent change of another caller may
//!    therefore look like a conflict. After the commit, the file is written again with the actual
//!    state.
//! 4. An abort removes the name, and returns when that is durable.
//!
//! The process continues with its state in memory; the file is read only when the volume is
//! reopened ([`Transaction::reopen`]). Inodes created in the transaction then get other numbers.
//! Its view is of that moment; changes made by others since its begin are found by value
//! (`fingerprint`) and remain conflicts.

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
use crate::partial::{LeftOut, Selection};
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
/// Maximum attempts, if other threads create or remove the folder at the same time.
const TRIES: u32 = 16;

impl<B: VersionedFs> Transaction<B> {
    /// Stores the transaction's present state in a file of the volume. [`Transaction::reopen`]
    /// restores it from there after a stop or a crash, until it is committed or aborted. Returns
    /// when the file is durable. Called again after further changes.
    ///
    /// Errors, which leave an earlier file in place: `NoSpace` if its contents do not fit on the
    /// volume a second time, `SpaceRevoked` if its space was revoked, `Usage` if it has savepoints
    /// or cannot be stored for another reason.
    pub fn persist(&self, info: PersistedInfo) -> Result<()> {
        // Makes all that it has read durable: otherwise a crash could cause conflicts.
        self.base.sync_all()?;
        let mut inner = self.inner.write();
        inner.check_divisible()?;
        self.write_record(&mut inner, info)
    }

    /// Its properties, if it is persisted.
    pub fn persisted_info(&self) -> Option<PersistedInfo> {
        self.inner.read().on_volume.as_ref().map(|persisted| persisted.info.clone())
    }

    /// Updates the file of a persisted transaction, if the transaction has changed since.
    pub fn update_persisted(&self) -> Result<()> {
        let mut inner = self.inner.write();
        let Some(persisted) = inner.on_volume.clone() else { return Ok(()) };
        inner.check_divisible()?;
        if !persisted.outdated && persisted.weight == self.reads.lock().weight() {
            return Ok(());
        }
        self.write_record(&mut inner, persisted.info)
    }

    /// Discards the transaction's changes and its file, durably. The transaction ends in any case;
    /// after an error it may exist again when the volume is reopened.
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

    /// Records that a commit has removed the file.
    pub(crate) fn note_record_removed(&self) {
        tidy(&self.base);
    }

    /// Removes the file of a transaction that ends because its commit was refused. After an error
    /// the transaction is open again when the volume is reopened, which is harmless.
    pub(crate) fn remove_record(&self, inner: &mut Inner<B>) {
        if inner.on_volume.take().is_some() {
            let _ = self.note(None).and_then(|note| note.commit());
            tidy(&self.base);
        }
    }

    /// Stores the transaction, in a commit of its own.
    pub(crate) fn write_record(&self, inner: &mut Inner<B>, info: PersistedInfo) -> Result<()> {
        // Part of its contents is lost: the earlier file stays.
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

    /// The internal transaction that changes the record along with a commit: it removes or replaces
    /// the file.
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

    /// The remaining transaction, once `part` is in the base.
    pub(crate) fn rest_after(
        &self,
        inner: &Inner<B>,
        selected: &Selection,
        part: &Overlay,
        reads: &ReadSet,
        left_out: &LeftOut,
    ) -> Option<Rest> {
        inner.on_volume.as_ref()?;
        let scratch = Mutex::default();
        let tree = RefCell::new(TxTree::new(&*self.base, inner.stamp, Access::Shared(part), &scratch));
        tree.borrow_mut().pins = Some(&inner.pins);
        let attr = |ino: Ino| part.still_has(tree.borrow_mut().attr(ino)?);
        let (mut overlay, mut reads) = (inner.overlay.clone(), reads.clone());
        // Some of what is left out may turn out to be a conflict.
        let stays = |ino: Ino| left_out.has(ino);
        overlay.absorb(selected, part, stays, attr);
        reads.rebase(stays, attr, |dir| tree.borrow_mut().parent(dir));
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
            // Another mount of the volume has removed the file: that counts as an abort.
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
                note.write(file, offset, bytes, WriteHow { by, ..WriteHow::default() }).map(drop)
            })?;
        }
        Ok(note)
    }
}

/// The remaining changes after a partial commit.
pub(crate) struct Rest {
    overlay: Overlay,
    reads: ReadSet,
    part: Overlay,
}
