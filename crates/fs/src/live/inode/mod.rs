//! Inodes in memory: each with its lock (`cached`), and their cache (`cache`).

pub(super) mod access_time;
pub(super) mod cache;
pub(super) mod cached;
pub(super) mod device_number;
mod store;
