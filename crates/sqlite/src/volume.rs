//! The volume that a database is on.

use std::os::fd::{BorrowedFd, RawFd};

use xact_control::client::Channel;

/// The way to the volume.
pub struct Volume {
    pub device: u64,
    /// The descriptor of the database in the VFS below.
    pub fd: RawFd,
    pub key: u64,
    /// Its key is valid while it is open.
    pub _channel: Channel,
}

impl Volume {
    pub fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: the VFS below closes it when the database is closed, which ends `self` first.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}
