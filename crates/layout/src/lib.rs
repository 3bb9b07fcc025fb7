//! Converts bytes to structures of ext4 and jbd2, and back. Pure: no I/O, no state; any layer may
//! use it.
//!
//! A structure with many fields is kept as its bytes with one accessor for each field, so that
//! fields unknown to xact survive a read and a write.

mod bytes;
pub mod checksum;
pub mod dirent;
pub mod dirhash;
pub mod extent;
pub mod feature;
pub mod generations;
mod geometry;
pub mod group;
pub mod htree;
pub mod inode;
pub mod jbd2;
pub mod mmp;
pub mod mode_record;
pub mod orphan;
pub mod posix_acl;
pub mod quota;
pub mod superblock;
pub mod xattr;

pub use bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
