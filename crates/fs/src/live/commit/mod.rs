//! What a transaction's commit does to the volume.
//!
//! - `size`: how much of the journal and of free space it takes
//! - `staging`: new contents of files, written to free blocks before the commit
//! - `validation`: what has changed since the transaction began, under the commit's locks
//! - `reservation`: what it reserves before its first change
//! - `install`: staged contents become the files'

mod install;
mod reservation;
pub(super) mod size;
pub(super) mod staging;
mod validation;
