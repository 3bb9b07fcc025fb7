//! Transactions over a base in memory.

mod conflicts;
mod contention;
mod eager;
mod history;
mod large;
mod memory;
mod parts;
mod permission;
mod persisted;
mod random;
mod real;
mod savepoints;
mod shapes;
mod space;

pub(crate) use xact_fs::inode_ops::random as ops;
