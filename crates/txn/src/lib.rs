//! User transactions: private views of the volume, conflicts, commit.
//!
//! A [`Transaction`] is a [`xact_fs::View`] like the base itself: all POSIX operations, written
//! once in [`xact_fs::posix`], run on it unchanged.
//!
//! - `transaction`: its life and its operations
//! - `overlay`: what it has changed, by inode; `tx_tree`, `tx_data`: the overlay over the base
//!   as of the transaction's instant, as a [`xact_fs::InodeOps`]
//! - `read_set`: what it has looked at
//! - `changes`: its net effect, for caches of the base, and how these are notified; `diff`: the same by path, for
//!   people; `by_file`: the same for patches; `part`: taking some of it apart from the rest
//! - `savepoint`: going back within it
//! - `persisted`: outliving the process
//! - `spill`: contents that memory should not hold
//! - `contention`: precedence after many conflicts; `account`: what one user may use up, `memory`: that of a transaction
//! - `permission`: what the right to make its changes rested on
//! - `commit`: validation and application, as one operation on the base
//! - `base`: what the volume has to offer for that; `real_base`: how the volume does it
//!
//! The words: a *transaction* here is always the user's. What the journal commits is a *jbd2
//! transaction*, or just a *commit*; many transactions may share one.

mod account;
mod base;
mod blocks;
mod by_file;
mod changes;
mod commit;
mod contention;
mod diff;
mod memory;
mod overlay;
mod part;
mod permission;
mod persisted;
mod ranges;
mod read_set;
mod real_base;
mod savepoint;
mod spill;
mod transaction;
mod tx_data;
mod tx_tree;

#[cfg(test)]
mod mem_base;
#[cfg(test)]
mod tests;

pub use account::{Account, Accounts, Charge, Limits, RESOURCES, Refusal, Resource};
pub use base::{ChangedBy, CommitSize, CommitTree, DirGrowth, NewContents, Stamp, VersionedBase};
pub use changes::{Changes, CommitObserver};
pub use contention::{AbortHistory, ContentionManager, LostAttempt};
pub use diff::{Difference, Side, What};
pub use persisted::{PersistedInfo, persisted_transactions};
pub use transaction::{Durability, Isolation, Reader, Transaction, TxOptions, TxState};
