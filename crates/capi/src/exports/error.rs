//! The last failure of the calling thread.

use std::ffi::{c_char, c_int};
use std::ptr;

use crate::failure::{ffi_call, last_error};

#[unsafe(no_mangle)]
pub extern "C" fn xact_errmsg() -> *const c_char {
    ffi_call(ptr::null(), || Ok(last_error(ptr::null(), |error| error.message.as_ptr())))
}

#[unsafe(no_mangle)]
pub extern "C" fn xact_reason() -> c_int {
    ffi_call(-1, || Ok(last_error(0, |error| error.reason as c_int)))
}

#[unsafe(no_mangle)]
pub extern "C" fn xact_conflict_path() -> *const c_char {
    ffi_call(ptr::null(), || {
        Ok(last_error(ptr::null(), |error| error.path.as_ref().map_or(ptr::null(), |path| path.as_ptr())))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn xact_conflicting_tx() -> u64 {
    ffi_call(0, || Ok(last_error(0, |error| error.conflicting_tx)))
}
