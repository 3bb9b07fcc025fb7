//! What is known of a persisted transaction beside its changes.

/// Kept with the transaction in its file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PersistedInfo {
    /// Group of the user that it belongs to.
    pub gid: u32,
    /// What people know it by.
    pub label: Vec<u8>,
    /// When it began, in seconds since 1970.
    pub begun: u64,
    /// When it is to be dropped, in seconds since 1970; `None`: never.
    pub deadline: Option<u64>,
}

/// That a transaction is in a file, too.
#[derive(Debug, Clone)]
pub(crate) struct OnVolume {
    pub info: PersistedInfo,
    /// What had been read when it was written, as
    /// [`ReadSet::weight`](crate::validation::read_set::ReadSet::weight) has it.
    pub(super) weight: usize,
    /// Whether something was changed since.
    pub outdated: bool,
}
