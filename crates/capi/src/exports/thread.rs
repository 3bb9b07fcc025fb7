//! `xact_tx_thread_begin`, `xact_tx_thread_commit` and so on: the transaction around the calls of
//! the calling thread.

use std::ffi::{c_char, c_int, c_uint};

use xact_control::client::SavepointHandle;

use super::path_argument;
use crate::failure::{Failed, ffi_call};
use crate::thread_tx;

/// # Safety
/// `at` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_thread_begin(at: *const c_char, flags: c_uint) -> c_int {
    // SAFETY: as the caller promises.
    ffi_call(-1, || thread_tx::begin(unsafe { path_argument(at) }, flags).map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn xact_tx_thread_commit(flags: c_uint) -> c_int {
    ffi_call(-1, || thread_tx::commit(flags).map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn xact_tx_thread_abort() -> c_int {
    ffi_call(-1, || thread_tx::abort().map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn xact_tx_thread_status() -> c_int {
    ffi_call(-1, || Ok(thread_tx::status().0 as c_int))
}

#[unsafe(no_mangle)]
pub extern "C" fn xact_tx_thread_id() -> u64 {
    ffi_call(0, || Ok(thread_tx::status().1))
}

#[unsafe(no_mangle)]
pub extern "C" fn xact_tx_thread_doomed() -> c_int {
    ffi_call(-1, || thread_tx::is_doomed().map(c_int::from))
}

/// # Safety
/// `number` is null or points to a writable `u64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_thread_savepoint(number: *mut u64) -> c_int {
    ffi_call(-1, || {
        // SAFETY: as the caller promises.
        let number = unsafe { number.as_mut() }.ok_or_else(Failed::null_argument)?;
        *number = thread_tx::in_view(|folder| Ok(SavepointHandle::of(folder)?.number()))?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn xact_tx_thread_rollback(number: u64) -> c_int {
    ffi_call(-1, || {
        thread_tx::in_view(|folder| SavepointHandle::with_number(folder, number)?.roll_back()).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn xact_tx_thread_release(number: u64) -> c_int {
    ffi_call(-1, || {
        thread_tx::in_view(|folder| SavepointHandle::with_number(folder, number)?.release()).map(|()| 0)
    })
}
