//! `fs_tx_begin`, `fs_tx_commit` and so on: transactions around the calls of a thread. See
//! `xact.h`.

use std::cell::RefCell;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use xact_control::client::SavepointHandle;

use crate::transaction::Failed;
use crate::{CError, ffi_guard, thread_tx};

thread_local! {
    /// Of the last call that failed.
    static LAST_ERROR: RefCell<Option<CError>> = const { RefCell::new(None) };
}

/// Runs what a function does that can tell more of its failure than `errno`.
fn int_with_last_error(action: impl FnOnce() -> Result<c_int, Failed>) -> c_int {
    with_last_error(-1, action)
}

/// As `int_with_last_error`, with what is returned on a failure.
pub fn with_last_error<R>(wrong: R, action: impl FnOnce() -> Result<R, Failed>) -> R {
    ffi_guard(wrong, || {
        action().map_err(|failed| {
            let errno = failed.errno;
            LAST_ERROR.set(Some(CError::of(failed)));
            errno
        })
    })
}

/// Something of the last call of this thread that failed.
pub fn last_error<R>(otherwise: R, of: impl FnOnce(&CError) -> R) -> R {
    LAST_ERROR.with_borrow(|error| error.as_ref().map_or(otherwise, of))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_begin(flags: c_uint) -> c_int {
    int_with_last_error(|| thread_tx::begin(None, flags).map(|()| 0))
}

/// # Safety
/// `at` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fs_tx_begin_at(at: *const c_char, flags: c_uint) -> c_int {
    int_with_last_error(|| {
        if at.is_null() {
            return Err(Failed::of_errno(libc::EINVAL));
        }
        // SAFETY: a string of C, as the caller promises.
        let at = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(at) }.to_bytes()));
        thread_tx::begin(Some(at), flags).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_commit(flags: c_uint) -> c_int {
    int_with_last_error(|| thread_tx::commit(flags).map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_abort() -> c_int {
    int_with_last_error(|| thread_tx::abort().map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_status() -> c_int {
    ffi_guard(-1, || Ok(thread_tx::status().0 as c_int))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_id() -> u64 {
    ffi_guard(0, || Ok(thread_tx::status().1))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_doomed() -> c_int {
    int_with_last_error(|| thread_tx::is_doomed().map(c_int::from))
}

/// # Safety
/// `number` has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fs_tx_savepoint(number: *mut u64) -> c_int {
    int_with_last_error(|| {
        // SAFETY: as the caller promises.
        let number = unsafe { number.as_mut() }.ok_or(Failed::of_errno(libc::EINVAL))?;
        *number = thread_tx::in_view(|folder| Ok(SavepointHandle::of(folder)?.number()))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_rollback(number: u64) -> c_int {
    int_with_last_error(|| {
        thread_tx::in_view(|folder| SavepointHandle::with_number(folder, number)?.roll_back()).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_release(number: u64) -> c_int {
    int_with_last_error(|| {
        thread_tx::in_view(|folder| SavepointHandle::with_number(folder, number)?.release()).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_reason() -> c_int {
    ffi_guard(-1, || Ok(last_error(0, |error| error.reason as c_int)))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_winner() -> u64 {
    ffi_guard(0, || Ok(last_error(0, |error| error.conflicting_tx)))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_conflict_path() -> *const c_char {
    let path = |error: &CError| error.path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
    ffi_guard(std::ptr::null(), || Ok(last_error(std::ptr::null(), path)))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_why() -> *const c_char {
    ffi_guard(std::ptr::null(), || Ok(last_error(std::ptr::null(), |error| error.why.as_ptr())))
}
