//! Checks between users that can be left out, so that the property test of access
//! (`crates/fuse/tests/strangers`) can show that it finds each of them.
//!
//! Without the cargo feature `faults` none of this is compiled: [`AccessCheck::is_made`] is then
//! the constant `true`.

/// A check that keeps a user of a mount from more access than plain calls give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AccessCheck {
    /// The contents of a side of a change are read with the caller's permissions.
    ReadPermission,
    /// Only inodes that the transaction changes have sides to read.
    ReadChangedOnly,
    /// A list of changes, file by file, walks no folder that its caller may not list.
    DiffPermission,
    /// Savepoints of a view are made and ended by the transaction's own user.
    SavepointOwner,
    /// Only the owner of a file writes to it atomically.
    AtomicWriteOwner,
    /// Stores through mappings by others stay outside of an atomic write.
    AtomicWriteMappings,
    /// A kept transaction is attached by its own user.
    AttachOwner,
    /// A commit compares modes and owners of the files that it changes, under every isolation.
    CommitMode,
    /// A commit compares the immutable and append-only flags of the files that it changes, under
    /// every isolation.
    CommitFlags,
    /// A commit compares access control lists of the files that it changes, under every isolation.
    CommitAcl,
    /// A commit compares the folders above the files that it changes, under every isolation.
    CommitWay,
}

impl AccessCheck {
    /// All checks, in the order of their numbers.
    pub const ALL: [AccessCheck; 11] = [
        AccessCheck::ReadPermission,
        AccessCheck::ReadChangedOnly,
        AccessCheck::DiffPermission,
        AccessCheck::SavepointOwner,
        AccessCheck::AtomicWriteOwner,
        AccessCheck::AtomicWriteMappings,
        AccessCheck::AttachOwner,
        AccessCheck::CommitMode,
        AccessCheck::CommitFlags,
        AccessCheck::CommitAcl,
        AccessCheck::CommitWay,
    ];
}

#[cfg(feature = "faults")]
mod left_out {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::AccessCheck;

    static LEFT_OUT: AtomicU32 = AtomicU32::new(0);

    impl AccessCheck {
        /// Whether this process makes the check.
        pub fn is_made(self) -> bool {
            LEFT_OUT.load(Ordering::Relaxed) & 1 << self as u8 == 0
        }

        /// Leaves one check out in the whole process, or none.
        pub fn leave_out(check: Option<AccessCheck>) {
            LEFT_OUT.store(check.map_or(0, |check| 1 << check as u8), Ordering::Relaxed);
        }
    }
}

#[cfg(not(feature = "faults"))]
impl AccessCheck {
    /// Whether this process makes the check.
    #[inline]
    pub const fn is_made(self) -> bool {
        true
    }
}
