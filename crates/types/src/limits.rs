//! Limits that both the format on disk and the control ioctls have.

/// Longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_MAX: usize = 100;
/// The most bytes that the paths of one snapshot take, each with a NUL after it.
pub const SNAPSHOT_PATHS_MAX: usize = 8192;
