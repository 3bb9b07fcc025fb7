//! Tests of transactions over a file system in memory and over real volumes.

mod conflicts;
mod contention;
mod deep_trees;
mod eager_conflicts;
mod early_conflicts;
mod history;
mod large_transactions;
mod memory_limits;
mod old_views;
mod partial_commits;
mod partial_conflicts;
mod permission;
mod persisted;
mod real_volumes;
mod savepoints;
mod serializability;
mod space;
mod visibility;

pub(crate) use xact_fs::inode_ops::random as ops;
