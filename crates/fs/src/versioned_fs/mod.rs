//! What a transaction needs of the file system under it, beside the operations of
//! [`crate::InodeOps`].
//!
//! The live file system ([`crate::LiveFs`]) implements these traits where its parts are; a file
//! system in memory does for the tests of transactions, so that semantics are tested without disk
//! structures.
//!
//! - `read_as_of`: the past, and what has changed since
//! - `limits`: what inodes of the volume may be
//! - `tx_space`: what a transaction holds before its commit; `contents`: what it has written
//! - `commit`: validation and changes, as one operation

pub(crate) mod commit;
pub(crate) mod contents;
pub(crate) mod limits;
pub(crate) mod read_as_of;
pub(crate) mod tx_space;

use crate::api::View;
pub use commit::{
    CommitOps, CommitSize, CommitTarget, DirGrowth, InstallOps, ReservationOps, Staging, ValidationOps,
};
pub use contents::{BlockChange, BlockContents, NewContents, SpillPlace, SpilledBlock};
pub use limits::InodeLimits;
pub use read_as_of::{ChangedBy, ReadAsOf, Stamp};
pub use tx_space::{HoldsTxSpace, SpaceLimits};

/// A file system on which transactions run.
pub trait VersionedFs: View + ReadAsOf + InodeLimits + HoldsTxSpace + CommitTarget + 'static {}

impl<T: View + ReadAsOf + InodeLimits + HoldsTxSpace + CommitTarget + 'static> VersionedFs for T {}
