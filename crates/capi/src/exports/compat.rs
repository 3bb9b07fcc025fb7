//! Compatible names: those of the TxFS paper (`fs_tx_begin` and so on) and former names of this
//! library. Each calls the function that replaces it.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use super::error::{xact_conflict_path, xact_conflicting_tx, xact_errmsg, xact_reason};
use super::handle::{Handle, xact_tx_conflicting_tx, xact_tx_errmsg};
use super::required_path;
use super::thread::{
    xact_tx_thread_abort, xact_tx_thread_begin, xact_tx_thread_commit, xact_tx_thread_doomed,
    xact_tx_thread_id, xact_tx_thread_release, xact_tx_thread_rollback, xact_tx_thread_savepoint,
    xact_tx_thread_status,
};
use crate::failure::ffi_call;
use crate::thread_tx;

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_begin(flags: c_uint) -> c_int {
    // SAFETY: null stands for the volume of the current folder.
    unsafe { xact_tx_thread_begin(ptr::null(), flags) }
}

/// # Safety
/// `at` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fs_tx_begin_at(at: *const c_char, flags: c_uint) -> c_int {
    // Null is an error here.
    // SAFETY: as the caller promises.
    ffi_call(-1, || thread_tx::begin(Some(unsafe { required_path(at) }?), flags).map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_commit(flags: c_uint) -> c_int {
    xact_tx_thread_commit(flags)
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_abort() -> c_int {
    xact_tx_thread_abort()
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_status() -> c_int {
    xact_tx_thread_status()
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_id() -> u64 {
    xact_tx_thread_id()
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_doomed() -> c_int {
    xact_tx_thread_doomed()
}

/// # Safety
/// `number` is null or points to a writable `u64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fs_tx_savepoint(number: *mut u64) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { xact_tx_thread_savepoint(number) }
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_rollback(number: u64) -> c_int {
    xact_tx_thread_rollback(number)
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_release(number: u64) -> c_int {
    xact_tx_thread_release(number)
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_reason() -> c_int {
    xact_reason()
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_conflict_path() -> *const c_char {
    xact_conflict_path()
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_winner() -> u64 {
    xact_conflicting_tx()
}

#[unsafe(no_mangle)]
pub extern "C" fn fs_tx_why() -> *const c_char {
    xact_errmsg()
}

/// # Safety
/// As for [`xact_tx_conflicting_tx`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_winner(tx: *mut Handle) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { xact_tx_conflicting_tx(tx) }
}

/// # Safety
/// As for [`xact_tx_errmsg`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_why(tx: *mut Handle) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { xact_tx_errmsg(tx) }
}
