//! The functions that `include/xact.h` declares. They convert arguments and results; the modules
//! above do the work.
//!
//! ```text
//!   error         xact_errmsg and its relatives: the thread's last failure
//!   thread        xact_tx_thread_*: the transaction of the calling thread
//!   handle        xact_tx_*: transactions with a handle
//!   snapshots     xact_snapshot_*: snapshots of a volume
//!   transactions  xact_tx_list_*: the open transactions of a volume
//!   list          how the lists of both are read
//!   compat        fs_tx_* and other former names
//! ```

mod compat;
mod error;
mod handle;
mod list;
mod snapshots;
mod thread;
mod transactions;

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use xact_namespace::mount::Mount;
use xact_namespace::mounts;

use crate::failure::Failed;

/// A path argument; `None` for a null pointer.
///
/// # Safety
/// `path` is null or a C string that stays unchanged for `'a`.
unsafe fn path_argument<'a>(path: *const c_char) -> Option<&'a Path> {
    // SAFETY: as the caller promises.
    let path = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })?;
    Some(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// As [`path_argument`], for a path that must be given.
///
/// # Safety
/// As for [`path_argument`].
unsafe fn required_path<'a>(path: *const c_char) -> Result<&'a Path, Failed> {
    // SAFETY: as the caller promises.
    unsafe { path_argument(path) }.ok_or_else(Failed::null_argument)
}

/// The mount that a path argument is on; for null, that of the current folder, or the only one.
///
/// # Safety
/// As for [`path_argument`].
unsafe fn mount_argument(at: *const c_char) -> Result<Mount, Failed> {
    // SAFETY: as the caller promises.
    mounts::serving(unsafe { path_argument(at) }).map_err(|e| Failed::of_namespace(&e))
}
