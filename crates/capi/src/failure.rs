//! Failures, as C sees them: `errno`, and the last failure of each thread for `xact_errmsg` and its
//! relatives. A panic ends at this border, as `EIO`.

use std::cell::RefCell;
use std::ffi::CString;
use std::fmt::Display;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use xact_control::abi::Reason;
use xact_control::client::CommitError;

/// The reason why a call failed.
pub struct Failed {
    pub errno: i32,
    pub reason: Reason,
    pub conflicting_tx: Option<u64>,
    pub path: Option<Vec<u8>>,
    pub message: String,
}

impl Failed {
    pub fn new(errno: i32, message: impl Into<String>) -> Failed {
        let message = message.into();
        Failed { errno, reason: Reason::Other, conflicting_tx: None, path: None, message }
    }

    pub fn of(error: CommitError) -> Failed {
        Failed {
            errno: error.errno,
            reason: error.reason,
            conflicting_tx: error.conflicting_tx,
            path: error.path.map(|path| path.into_os_string().into_vec()),
            message: error.why,
        }
    }

    pub fn of_io(error: &io::Error) -> Failed {
        let text = error.to_string();
        let message = match error.raw_os_error() {
            Some(libc::ESTALE) => "the transaction has ended",
            Some(libc::ENOTCONN | libc::ECONNABORTED) => "the daemon of the mount has ended",
            _ => text.split(" (os error").next().unwrap_or(&text),
        };
        Failed::new(error.raw_os_error().unwrap_or(libc::EIO), message)
    }

    /// As `of_io`, with its subject before it.
    pub fn of_io_at(subject: impl Display, error: &io::Error) -> Failed {
        let failed = Failed::of_io(error);
        Failed { message: format!("{subject}: {}", failed.message), ..failed }
    }

    /// There is no xact volume at this path.
    fn no_volume(at: &Path) -> Failed {
        Failed::new(libc::ENODEV, format!("{} is not on a mounted xact volume", at.display()))
    }

    /// A control channel of the mount of `at` could not be opened, or no transaction begun on it.
    pub fn of_channel(at: &Path, error: &io::Error) -> Failed {
        match error.raw_os_error() {
            // The errors of file systems without a control channel.
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EISDIR | libc::ENOTTY | libc::ENOSYS) => {
                Failed::no_volume(at)
            }
            _ => Failed::of_io_at(at.display(), error),
        }
    }

    /// There is no transaction that could be ended.
    pub fn none_open() -> Failed {
        Failed::new(libc::ESTALE, "this thread has no open transaction")
    }

    /// This process is a child of the one that began the transaction.
    pub fn of_parent() -> Failed {
        Failed::new(libc::EPERM, "the transaction was begun by the process that forked this one")
    }

    pub fn null_argument() -> Failed {
        Failed::new(libc::EINVAL, "an argument is NULL")
    }

    pub fn of_errno(errno: i32) -> Failed {
        Failed::of_io(&io::Error::from_raw_os_error(errno))
    }

    pub fn of_namespace(error: &xact_namespace::Error) -> Failed {
        Failed::new(error.errno(), error.to_string())
    }
}

/// A failure that C can read.
pub struct CError {
    pub reason: u32,
    pub conflicting_tx: u64,
    pub path: Option<CString>,
    pub message: CString,
}

impl CError {
    pub fn of(failed: &Failed) -> CError {
        // Neither contains a NUL: a path cannot, and the library writes the message.
        let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
        CError {
            reason: failed.reason as u32,
            conflicting_tx: failed.conflicting_tx.unwrap_or(0),
            path: failed.path.as_deref().map(text),
            message: text(failed.message.as_bytes()),
        }
    }
}

thread_local! {
    /// The last failure of this thread.
    static LAST_ERROR: RefCell<Option<CError>> = const { RefCell::new(None) };
}

/// Runs the body of a C function. On a failure it sets `errno` and the thread's last failure, and
/// returns `failure_value`.
pub fn ffi_call<R>(failure_value: R, body: impl FnOnce() -> Result<R, Failed>) -> R {
    let failed = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failed)) => failed,
        Err(_) => Failed::new(libc::EIO, "internal error of libxact"),
    };
    let errno = failed.errno;
    // A thread that ends may call when its thread-local values are destroyed; then `errno` is all.
    let _ = LAST_ERROR.try_with(|last| last.replace(Some(CError::of(&failed))));
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    failure_value
}

/// Reads the thread's last failure; `default` if no call has failed.
pub fn last_error<R>(default: R, read: impl FnOnce(&CError) -> R) -> R {
    let mut read = Some((default, read));
    let found = LAST_ERROR.try_with(|last| {
        let (default, read) = read.take().expect("is called once");
        last.borrow().as_ref().map_or(default, read)
    });
    found.unwrap_or_else(|_| read.expect("was not called").0)
}
