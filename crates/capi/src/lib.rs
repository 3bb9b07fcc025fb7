//! The C library `libxact` (include/xact.h, man/libxact.3): transactions on a mounted volume, from
//! any language that can call C. It talks to the daemon over the control ioctls.
//!
//! Inside a transaction (`xact run`) a begin is a savepoint in it, so that a program that uses
//! transactions works there as outside.
//!
//! Every function may be called from any thread, but one handle from one thread at a time. A panic
//! ends at this ffi_guard, as `EIO`.

mod exports;
mod handle;
mod mount_path;
mod thread_tx;
mod transaction;

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use transaction::Failed;

/// A failure in the terms of C.
struct CError {
    reason: u32,
    conflicting_tx: u64,
    path: Option<CString>,
    why: CString,
}

impl CError {
    fn of(failed: Failed) -> CError {
        // Neither has a NUL: a path cannot, and the sentence is ours.
        let text = |bytes: Vec<u8>| CString::new(bytes).unwrap_or_default();
        CError {
            reason: failed.reason as u32,
            conflicting_tx: failed.conflicting_tx.unwrap_or(0),
            path: failed.path.map(text),
            why: text(failed.why.into_bytes()),
        }
    }
}

fn set_errno(errno: i32) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs what a C function does; on an error sets `errno` and returns `wrong`.
fn ffi_guard<R>(wrong: R, action: impl FnOnce() -> Result<R, i32>) -> R {
    match catch_unwind(AssertUnwindSafe(action)) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => {
            set_errno(errno);
            wrong
        }
        Err(_) => {
            set_errno(libc::EIO);
            wrong
        }
    }
}

fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
