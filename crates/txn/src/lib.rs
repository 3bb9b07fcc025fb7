//! User transactions: private views of the volume, conflicts, commit.
//!
//! A [`Transaction`] is a [`xact_fs::View`], like the live volume: all POSIX operations, written
//! once in [`xact_fs::posix`], run on it unchanged.
//!
//! - `options`: options and states; `transaction`: its life cycle and its calls;
//!   `transaction/view`: its operations
//! - `overlay`: its changes, by inode; `tx_tree`: the overlay over the base as of the transaction's
//!   stamp, as an [`xact_fs::InodeOps`]
//! - `validation`: its read set, the permissions that it depends on, and the report of conflicts
//! - `commit`: locks the inodes and applies the changes, as one operation on the base; the net
//!   effect for caches of the base (`changes`), and their notification (`observer`)
//! - `savepoint`: savepoints and rollback
//! - `diff`: the net effect by path, for users and for patches; `partial`: partial commits and
//!   aborts
//! - `persisted`: transactions that survive the process
//! - `contention`: precedence after repeated conflicts; conflicts between open transactions
//! - `account`: resource limits of users
//!
//! The *base* is the file system under a transaction; [`xact_fs::versioned_fs`] is its interface.
//!
//! A *transaction* here is always the user's. The journal commits *jbd2 transactions*, or just
//! *commits*; many transactions may share one.

#![warn(missing_docs)]

mod account;
mod commit;
mod contention;
mod diff;
mod options;
mod overlay;
mod partial;
mod persisted;
mod ranges;
mod savepoint;
mod transaction;
mod tx_tree;
mod validation;

#[cfg(test)]
mod mem_fs;
#[cfg(test)]
mod tests;

pub use account::{Account, Accounts, Charge, Limits, RESOURCES, Refusal, Resource};
pub use commit::changes::Changes;
pub use commit::observer::CommitObserver;
pub use contention::{AbortHistory, ContentionManager, LostAttempt};
pub use diff::{Difference, Side, What};
pub use options::{ConflictDetection, Durability, Isolation, TxOptions, TxState};
pub use persisted::{PersistedInfo, persisted_transactions};
pub use transaction::{Reader, SearchedFolders, Transaction};
