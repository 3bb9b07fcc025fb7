//! The entry point of the program. `lib.rs` has all of it, and says what it does.

#![no_main]

use std::ffi::{c_char, c_int};

/// Called by libc, since Rust's own start code would change signals and descriptors.
///
/// # Safety
/// The arguments must be those of main in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(
    count: c_int,
    words: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: as above.
    unsafe { xact_run_helper::run(count, words, environment) }
}
