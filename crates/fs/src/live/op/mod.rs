//! One operation: its locks, handle and stamp (`run`), what it does to inodes and names.

pub(super) mod dir_blocks;
pub(super) mod inode_ops;
pub(super) mod read_ahead;
pub(super) mod run;
pub(super) mod shared_reads;
