//! The interface between transactions and the file system under them, in addition to
//! [`crate::InodeOps`].
//!
//! The live file system ([`crate::LiveFs`]) implements these traits. For the tests of transactions,
//! a file system in memory does, so that semantics are tested without disk structures.
//!
//! - `read_as_of`: reads as of an instant, and changes since
//! - `limits`: limits of inodes
//! - `tx_space`: space that a transaction holds before its commit; `contents`: its file contents
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
