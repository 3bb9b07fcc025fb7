//! Replies that differ from the kernel's ext4, by intent or as a known limit.

use crate::call::{Call, Reply, What};

/// The reason for a call that succeeds and changes nothing.
pub const NOTHING_TO_REMOVE: &str = "an ACL that does not exist is removed: flags are not looked at";

/// The reason why the two may differ.
pub fn known(call: &Call, ours: &Reply, kernels: &Reply) -> Option<&'static str> {
    let errors = (ours.errno, kernels.errno);
    match call.what {
        What::RemoveXattr if call.other.starts_with("system.") && errors == (libc::ENODATA, 0) => {
            Some("an ACL that is not there cannot be removed")
        }
        What::RemoveXattr if call.other.starts_with("system.") && errors == (0, libc::EPERM) => {
            Some(NOTHING_TO_REMOVE)
        }
        // The kernel does not know the flags of a FUSE server's inodes: it does not check them
        // first, and open and access do not check them at all.
        What::Open | What::Access if errors == (0, libc::EPERM) => {
            Some("flags are looked at when something is written")
        }
        _ if ours.errno != 0 && kernels.errno == libc::EPERM => Some("refused for something else than flags"),
        _ => None,
    }
}
