//! Properties of a persisted transaction other than its changes.

/// Properties that are stored in the transaction's file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PersistedInfo {
    /// Group of its owner.
    pub gid: u32,
    /// The user's label.
    pub label: Vec<u8>,
    /// Time of its begin, in seconds since 1970.
    pub begun: u64,
    /// Time at which it will be aborted, in seconds since 1970; `None`: never.
    pub deadline: Option<u64>,
}

/// The state of a transaction's file on the volume.
#[derive(Debug, Clone)]
pub(crate) struct OnVolume {
    pub info: PersistedInfo,
    /// Size of the read set when the file was written, see
    /// [`ReadSet::weight`](crate::validation::read_set::ReadSet::weight).
    pub(super) weight: usize,
    /// Whether the transaction has changed since.
    pub outdated: bool,
}
