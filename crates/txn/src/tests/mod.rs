//! Transactions over a base in memory.

mod conflicts;
mod eager;
mod history;
mod kept;
mod large;
mod memory;
mod parts;
mod permission;
mod random;
mod real;
mod savepoints;
mod shapes;
mod space;
mod turns;

pub(crate) use xact_fs::inode_ops::random as ops;
