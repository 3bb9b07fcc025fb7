//! `fs_tx_begin`, `fs_tx_commit` and so on: transactions around the calls of a thread. See `xact.h`.

use std::cell::RefCell;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use xact_control::client::SavepointHandle;

use crate::transaction::Failed;
use crate::{Told, around, border};

thread_local! {
    /// Of the last call that failed.
    static TOLD: RefCell<Option<Told>> = const { RefCell::new(None) };
}

/// Runs what a function does that can tell more of its failure than `errno`.
fn telling(action: impl FnOnce() -> Result<c_int, Failed>) -> c_int {
    telling_or(-1, action)
}

/// As `telling`, with what is returned on a failure.
pub fn telling_or<R>(wrong: R, action: impl FnOnce() -> Result<R, Failed>) -> R {
    border(wrong, || {
        action().map_err(|failed| {
            let errno = failed.errno;
            TOLD.set(Some(Told::of(failed)));
            errno
        })
    })
}

/// Something of the last call of this thread that failed.
pub fn told<R>(otherwise: R, of: impl FnOnce(&Told) -> R) -> R {
    TOLD.with_borrow(|told| told.as_ref().map_or(otherwise, of))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_begin(flags: c_uint) -> c_int {
    telling(|| around::begin(None, flags).map(|()| 0))
}

/// # Safety
/// `at` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fs_tx_begin_at(at: *const c_char, flags: c_uint) -> c_int {
    telling(|| {
        if at.is_null() {
            return Err(Failed::of_errno(libc::EINVAL));
        }
        // SAFETY: a string of C, as the caller promises.
        let at = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(at) }.to_bytes()));
        around::begin(Some(at), flags).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_commit(flags: c_uint) -> c_int {
    telling(|| around::commit(flags).map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_abort() -> c_int {
    telling(|| around::abort().map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_status() -> c_int {
    border(-1, || Ok(around::status().0 as c_int))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_id() -> u64 {
    border(0, || Ok(around::status().1))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_doomed() -> c_int {
    telling(|| around::is_doomed().map(c_int::from))
}

/// # Safety
/// `number` has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fs_tx_savepoint(number: *mut u64) -> c_int {
    telling(|| {
        // SAFETY: as the caller promises.
        let number = unsafe { number.as_mut() }.ok_or(Failed::of_errno(libc::EINVAL))?;
        *number = around::in_view(|folder| Ok(SavepointHandle::of(folder)?.number()))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_rollback(number: u64) -> c_int {
    telling(|| {
        around::in_view(|folder| SavepointHandle::with_number(folder, number)?.roll_back()).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_release(number: u64) -> c_int {
    telling(|| around::in_view(|folder| SavepointHandle::with_number(folder, number)?.release()).map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_reason() -> c_int {
    border(-1, || Ok(told(0, |told| told.reason as c_int)))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_winner() -> u64 {
    border(0, || Ok(told(0, |told| told.conflicting_tx)))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_conflict_path() -> *const c_char {
    let path = |told: &Told| told.path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
    border(std::ptr::null(), || Ok(told(std::ptr::null(), path)))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_why() -> *const c_char {
    border(std::ptr::null(), || Ok(told(std::ptr::null(), |told| told.why.as_ptr())))
}
