//! A transaction that ends with its handle, and savepoints in it.
//!
//! ```text
//!   Volume::begin ──▶ Transaction ──commit(self)──▶ visible and durable, or refused with an error
//!                        │    ▲  └──abort(self), drop──▶ its changes are discarded
//!              savepoint │    │ release(self): the changes since stay; drop: they are undone
//!                        ▼    │
//!                      Savepoint ──savepoint──▶ Savepoint, nested
//! ```
//! The states of the transaction itself are those of [`SharedTransaction`].

use std::sync::Arc;

use xact_fs::{LiveFs, View};
use xact_txn::{AbortHistory, Difference, Durability, PersistedInfo, TxOptions};
use xact_types::{Error, Result};

use crate::paths::PathExt;

/// A transaction that several threads share, as a server does: every call takes `&self`, and the
/// last reference that is dropped aborts it. [`Transaction::into_shared`] makes one.
pub type SharedTransaction = xact_txn::Transaction<LiveFs>;

/// A private view of the volume as of one instant, with the changes made in it.
///
/// File operations are those of [`PathExt`], or by inode number those of its [`View`]. They see the
/// volume as of the begin, and the transaction's own changes. Nothing outside sees these before
/// [`Transaction::commit`], which makes all of them visible at once and durable. Dropped without a
/// commit, the transaction aborts: its changes are discarded.
///
/// The commit checks what the transaction has read and written (optimistic concurrency control, as
/// in TxFS, with validation by content): where others have changed any of that since the begin it
/// is refused with [`Error::Conflict`].
///
/// ```
/// # fn main() -> xact::Result<()> {
/// # let device = std::sync::Arc::new(xact::MemoryDevice::new(64 << 20));
/// # xact::mkfs::mkfs(&*device, &Default::default())?;
/// # let volume = xact::Volume::open(device, &Default::default())?;
/// use xact::{Error, PathExt};
/// let transaction = volume.begin(Default::default());
/// transaction.write("/a", "1")?;
/// transaction.write("/b", "1")?;
/// assert!(!volume.exists("/a")?, "nothing outside sees it yet");
/// transaction.commit()?;
/// assert_eq!(volume.read("/a")?, b"1");
///
/// let late = volume.begin(Default::default());
/// late.write("/a", [&late.read("/a")?[..], b" and 2"].concat())?;
/// volume.write("/a", "changed in between")?;
/// assert!(matches!(late.commit(), Err(Error::Conflict { path, .. }) if path == "/a"));
/// # volume.close()
/// # }
/// ```
pub struct Transaction {
    shared: Arc<SharedTransaction>,
    /// Whether dropping the handle aborts.
    ends_with_handle: bool,
}

/// Why a commit was refused, with the transaction, which is open as before.
#[non_exhaustive]
pub struct Refused {
    /// The transaction.
    pub transaction: Transaction,
    /// As the errors of [`Transaction::commit`].
    pub error: Error,
}

impl Transaction {
    pub(crate) fn new(shared: Arc<SharedTransaction>) -> Transaction {
        Transaction { shared, ends_with_handle: true }
    }

    /// Its number: no other transaction of the volume has the same while the volume is open.
    pub fn id(&self) -> u64 {
        self.shared.options().id
    }

    /// The options it was begun with.
    pub fn options(&self) -> TxOptions {
        self.shared.options()
    }

    /// Makes the changes visible at once, and returns when they are durable.
    ///
    /// # Errors
    /// [`Error::Conflict`] with the path: others have changed what it read or wrote.
    /// [`Error::TooOld`]: others have changed more since its begin than is remembered.
    /// [`Error::NoSpace`], [`Error::SpaceRevoked`], [`Error::TooLarge`] for what one commit takes
    /// on this volume. The transaction is aborted then. After [`Error::Io`] or [`Error::Poisoned`]
    /// the changes may be visible, whether a crash keeps them is not known, and the volume is
    /// read-only.
    pub fn commit(self) -> Result<()> {
        self.shared.commit()
    }

    /// As [`Transaction::commit`], with the choice of when it returns.
    pub fn commit_with(self, durability: Durability) -> Result<()> {
        self.shared.commit_with(durability)
    }

    /// As [`Transaction::commit`]; a conflict is added to the history of attempts.
    pub(crate) fn commit_in_series(self, history: &mut AbortHistory) -> Result<()> {
        let committed = self.shared.commit();
        if let Some(lost) = self.shared.take_lost_attempt() {
            history.add(lost);
        }
        committed
    }

    /// As [`Transaction::commit_with`]. A transaction whose commit is refused comes back, open as
    /// it was: it can be looked at, and part of it may still be committed.
    pub fn try_commit(self, durability: Durability) -> Result<(), Box<Refused>> {
        match self.shared.try_commit(durability, &mut ()) {
            Ok(()) => Ok(()),
            Err(error) => Err(Box::new(Refused { transaction: self, error })),
        }
    }

    /// Commits the changes at and below some paths; the others stay in the transaction. What was
    /// read of files whose changes were not chosen does not count. If others have changed such a
    /// file, its changes can only be dropped ([`Transaction::abort_only`]) from now on, and this
    /// returns the first such conflict.
    ///
    /// # Errors
    /// As [`Transaction::commit`]; [`Error::Usage`] where these changes need others, where nothing
    /// is changed there, or while there are savepoints. The transaction is open in any case.
    pub fn commit_only(
        &mut self,
        paths: &[impl AsRef<[u8]>],
        durability: Durability,
    ) -> Result<Option<Error>> {
        self.shared.commit_only(paths, durability, &mut ())
    }

    /// Discards the changes at and below some paths; the others stay. What was read of these files
    /// does not count any longer. Errors: [`Error::Usage`] as for [`Transaction::commit_only`].
    pub fn abort_only(&mut self, paths: &[impl AsRef<[u8]>]) -> Result<()> {
        self.shared.abort_only(paths)
    }

    /// Discards the changes, as dropping the transaction does.
    pub fn abort(self) {
        self.shared.abort();
    }

    /// Marks the state as it is now. Dropping the [`Savepoint`] goes back to it.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`: the transaction's user has too many savepoints or too large ones
    /// ([`Limits`](crate::Limits)).
    pub fn savepoint(&mut self) -> Result<Savepoint<'_>> {
        Savepoint::make(&self.shared)
    }

    /// The changes that the commit would make, in the order of their paths.
    pub fn diff(&self) -> Result<Vec<Difference>> {
        self.shared.diff()
    }

    /// Whether the commit is known to be refused, whatever is done or undone from now on: a change
    /// has met contents that others have changed, the state at the begin is no longer available
    /// ([`Error::TooOld`]), or others needed the space that it held. Every failure of a call in
    /// such a transaction may be a consequence of that.
    pub fn is_doomed(&self) -> bool {
        self.shared.is_doomed()
    }

    /// Writes the transaction's changes to the volume, where they outlive this process and a crash:
    /// [`Volume::reopen_transaction`](crate::Volume::reopen_transaction) opens it again by its
    /// number. Until it is committed or [`Transaction::abort_persisted`] is called they take their
    /// space twice. Errors: as a commit of a file of their size.
    pub fn persist(&self, info: PersistedInfo) -> Result<()> {
        self.shared.persist(info)
    }

    /// Discards the changes, and those that [`Transaction::persist`] has written.
    pub fn abort_persisted(self) -> Result<()> {
        self.shared.abort_persisted()
    }

    /// Gives up the handle for a reference that threads can share.
    pub fn into_shared(mut self) -> Arc<SharedTransaction> {
        self.ends_with_handle = false;
        self.shared.clone()
    }
}

impl Drop for Transaction {
    /// Files that are open in it keep references to it, so it is aborted here. Nothing happens
    /// where it has ended.
    fn drop(&mut self) {
        if self.ends_with_handle {
            self.shared.abort();
        }
    }
}

impl PathExt for Transaction {
    fn view(&self) -> Arc<dyn View> {
        self.shared.clone()
    }
}

/// A point in a transaction to go back to: an inner part of it that can be undone alone.
///
/// While it is open, the file operations of the transaction are called on it ([`PathExt`]), and a
/// savepoint in it is made with [`Savepoint::savepoint`]; so savepoints end in the right order.
/// [`Savepoint::release`] makes the changes since part of what is around it. Dropped, it undoes
/// them, as a `ROLLBACK TO` of SQL.
///
/// ```
/// # fn main() -> xact::Result<()> {
/// # let device = std::sync::Arc::new(xact::MemoryDevice::new(64 << 20));
/// # xact::mkfs::mkfs(&*device, &Default::default())?;
/// # let volume = xact::Volume::open(device, &Default::default())?;
/// use xact::PathExt;
/// let mut transaction = volume.begin(Default::default());
/// transaction.write("/a", "kept")?;
/// let savepoint = transaction.savepoint()?;
/// savepoint.write("/a", "undone")?;
/// drop(savepoint);
/// let savepoint = transaction.savepoint()?;
/// savepoint.write("/b", "kept")?;
/// savepoint.release()?;
/// transaction.commit()?;
/// assert_eq!(volume.read("/a")?, volume.read("/b")?);
/// # volume.close()
/// # }
/// ```
pub struct Savepoint<'t> {
    transaction: &'t Arc<SharedTransaction>,
    /// `None` once it is released.
    number: Option<u64>,
}

impl<'t> Savepoint<'t> {
    fn make(transaction: &'t Arc<SharedTransaction>) -> Result<Savepoint<'t>> {
        Ok(Savepoint { transaction, number: Some(transaction.savepoint()?) })
    }

    /// A savepoint within this one. Errors as [`Transaction::savepoint`].
    pub fn savepoint(&mut self) -> Result<Savepoint<'_>> {
        Savepoint::make(self.transaction)
    }

    /// Makes the changes since the savepoint part of what is around it. They still happen only with
    /// the commit of the transaction.
    pub fn release(mut self) -> Result<()> {
        match self.number.take() {
            Some(number) => self.transaction.release_savepoint(number),
            None => Ok(()),
        }
    }

    /// Undoes the changes since the savepoint, as dropping it does, and returns an error where that
    /// fails ([`Error::Ended`]: a call that failed half-way has aborted the transaction).
    pub fn roll_back(mut self) -> Result<()> {
        match self.number.take() {
            Some(number) => self.transaction.roll_back(number).map(drop),
            None => Ok(()),
        }
    }
}

impl PathExt for Savepoint<'_> {
    fn view(&self) -> Arc<dyn View> {
        self.transaction.clone()
    }
}

impl Drop for Savepoint<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            // It fails only where the transaction has ended, and its changes with it.
            let _ = self.transaction.roll_back(number);
        }
    }
}
