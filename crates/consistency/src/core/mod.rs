//! What every mechanism is made of: the volume, blocks on their way into a commit, and the life of commits.
//!
//! Nothing here knows which mechanism runs.

pub(crate) mod cache;
pub(crate) mod dirty_blocks;
pub(crate) mod draining;
pub(crate) mod pipeline;
pub(crate) mod poison;
pub(crate) mod shared;
pub(crate) mod superblock_io;
pub(crate) mod volume;
