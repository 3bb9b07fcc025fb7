//! Calls of a program on a mounted volume.
//!
//! ```text
//!   channel     a control channel: begins and ends transactions, lists changes
//!   savepoint   a begin within a transaction, from inside its view
//!   write_file  atomic writes of open files
//!   volume      requests by mount point: sync, statistics, snapshots, modes
//!   snapshots   creates, lists and deletes snapshots, by the requests of volume
//! ```

mod channel;
mod savepoint;
mod snapshots;
mod volume;
mod write_file;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

pub use channel::{Channel, CommitError, TxChange};
pub use savepoint::SavepointHandle;
pub use snapshots::{SnapshotEntry, WithReason, create_snapshot, delete_snapshot, list_snapshots};
pub use volume::{
    counters, file_mode, files, latencies, modes, mount_info, outcome_socket, pool, sync, users, version,
};
pub use write_file::{PART_MAX, WriteRequest};

fn ioctl(file: &File, command: u32, argument: &mut [u8]) -> io::Result<()> {
    // SAFETY: the command's number gives the number of bytes that the kernel copies, and `argument`
    // is the struct of that size; a command without one ignores the pointer.
    let done =
        unsafe { libc::ioctl(file.as_raw_fd(), libc::c_ulong::from(command) as _, argument.as_mut_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An error with the reason that the daemon gave for it.
fn with_reason(error: io::Error, errmsg: &[u8], errmsg_len: u32) -> (io::Error, String) {
    let len = (errmsg_len as usize).min(errmsg.len());
    (error, String::from_utf8_lossy(&errmsg[..len]).into_owned())
}
