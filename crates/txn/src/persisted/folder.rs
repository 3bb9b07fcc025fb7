//! The folder of persisted transactions, and the internal transactions that change it.

use std::sync::Arc;

use xact_fs::{Caller, FileKind, PERSISTED_FOLDER as FOLDER, VersionedFs, View};
use xact_types::{Errno, Error, Ino, Result};

use crate::options::{Durability, Isolation, TxOptions};
use crate::transaction::Transaction;

/// The folder, if it exists. `Usage` if users other than root may have written to it: its contents
/// would be committed on behalf of the users that they name.
pub(super) fn find_folder(view: &dyn View) -> Result<Option<Ino>> {
    match view.lookup(Ino::ROOT, FOLDER.as_bytes()) {
        Ok(attr) if attr.is_dir() && attr.uid == 0 && attr.perm & 0o077 == 0 => Ok(Some(attr.ino)),
        Ok(_) => {
            Err(Error::Usage(format!("/{FOLDER} on the volume is not the folder of persisted transactions")))
        }
        Err(Error::Posix(Errno::ENOENT)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The numbers of the persisted transactions of a volume.
pub fn persisted_transactions(base: &dyn View) -> Result<Vec<u64>> {
    let Some(folder) = find_folder(base)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    base.read_dir(folder, 0, &mut |item| {
        let text = std::str::from_utf8(item.name).ok();
        let number = text.and_then(|text| text.parse::<u64>().ok().filter(|id| id.to_string() == text));
        all.extend(number.filter(|_| item.kind == FileKind::Regular));
        true
    })?;
    all.sort_unstable();
    Ok(all)
}

/// Removes the folder if it is empty. After an error it stays, empty, until the next attempt.
pub(super) fn tidy<B: VersionedFs>(base: &Arc<B>) {
    let tx = note_transaction(base, 0, 0);
    if tx.remove_dir(&Caller::ROOT, Ino::ROOT, FOLDER.as_bytes()).is_ok() {
        let _ = tx.commit_with(Durability::Ordered);
    }
}

/// An internal transaction that changes the record of transaction `id`, on its owner's account.
pub(super) fn note_transaction<B: VersionedFs>(base: &Arc<B>, id: u64, owner: u32) -> Transaction<B> {
    let options = TxOptions { id, owner, isolation: Isolation::Snapshot, ..TxOptions::default() };
    let mut note = Transaction::begin(base, options);
    note.is_note = true;
    note
}
