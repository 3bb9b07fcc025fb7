//! User transactions: private views of the volume, conflicts, commit.
//!
//! A [`Transaction`] is a [`xact_fs::View`] like the base itself: all POSIX operations, written
//! once in [`xact_fs::posix`], run on it unchanged.
//!
//! - `options`: how it runs, and its states; `transaction`: its life and its calls;
//!   `transaction/view`: its operations
//! - `overlay`: what it has changed, by inode; `tx_tree`: the overlay over the base as of the
//!   transaction's instant, as a [`xact_fs::InodeOps`]
//! - `validation`: what it has read, what its permissions rested on, and how conflicts are reported
//! - `commit`: which inodes are locked, and how the changes are applied, as one operation on the
//!   base; its net effect for caches of the base (`changes`), and how these are notified
//!   (`observer`)
//! - `savepoint`: what a rollback within it undoes
//! - `diff`: its net effect by path, for people and for patches; `partial`: some of it apart from
//!   the rest
//! - `persisted`: outliving the process
//! - `contention`: precedence after many conflicts
//! - `account`: what one user may use up of the process
//!
//! What a transaction needs of the volume under it, its *base*, is [`xact_fs::versioned_fs`].
//!
//! The words: a *transaction* here is always the user's. What the journal commits is a *jbd2
//! transaction*, or just a *commit*; many transactions may share one.

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
mod mem_base;
#[cfg(test)]
mod tests;

pub use account::{Account, Accounts, Charge, Limits, RESOURCES, Refusal, Resource};
pub use commit::changes::Changes;
pub use commit::observer::CommitObserver;
pub use contention::{AbortHistory, ContentionManager, LostAttempt};
pub use diff::{Difference, Side, What};
pub use options::{Durability, Isolation, TxOptions, TxState};
pub use persisted::{PersistedInfo, persisted_transactions};
pub use transaction::{Reader, Transaction};
