//! Transactions with a handle and a folder (`xact_tx_begin` and so on): nothing of the process
//! changes, and what is done below the folder is part of the transaction.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::exports::{fs_tx_why, with_last_error};
use crate::transaction::{Failed, Tx};
use crate::{CError, errno_of, ffi_guard};

/// `struct xact_tx`: a transaction, and what became of it.
pub struct Handle {
    /// `None` when it has ended.
    open: Option<Tx>,
    id: u64,
    /// Of the last commit that was refused.
    failed: Option<CError>,
}

/// # Safety
/// `tx` is a handle of `xact_tx_begin` that was not freed, and no other thread uses it now.
unsafe fn handle<'a>(tx: *mut Handle) -> Result<&'a mut Handle, i32> {
    // SAFETY: as the caller promises.
    unsafe { tx.as_mut() }.ok_or(libc::EINVAL)
}

impl Handle {
    fn tx(&self) -> Result<&Tx, i32> {
        self.open.as_ref().ok_or(libc::ESTALE)
    }
}

/// See `xact.h`, as for all functions here.
///
/// # Safety
/// `at` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_begin(at: *const c_char, flags: c_uint) -> *mut Handle {
    with_last_error(std::ptr::null_mut(), || {
        if at.is_null() {
            return Err(Failed::of_errno(libc::EINVAL));
        }
        // SAFETY: a string of C, as the caller promises.
        let at = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(at) }.to_bytes()));
        let tx = Tx::begin(at, flags)?;
        let id = tx.id();
        Ok(Box::into_raw(Box::new(Handle { open: Some(tx), id, failed: None })))
    })
}

/// # Safety
/// `tx` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_dir(tx: *mut Handle) -> c_int {
    // SAFETY: as the caller promises.
    ffi_guard(-1, || Ok(unsafe { handle(tx) }?.tx()?.dir().as_raw_fd()))
}

/// # Safety
/// `tx` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_id(tx: *mut Handle) -> u64 {
    // SAFETY: as the caller promises.
    ffi_guard(0, || Ok(unsafe { handle(tx) }?.id))
}

/// # Safety
/// `tx` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_status(tx: *mut Handle) -> c_int {
    // SAFETY: as the caller promises.
    ffi_guard(-1, || Ok(unsafe { handle(tx) }?.open.is_some().into()))
}

/// # Safety
/// `tx` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_doomed(tx: *mut Handle) -> c_int {
    ffi_guard(-1, || {
        // SAFETY: as the caller promises.
        let doomed = unsafe { handle(tx) }?.tx()?.is_doomed();
        doomed.map(c_int::from).map_err(|e| errno_of(&e))
    })
}

/// # Safety
/// `tx` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_commit(tx: *mut Handle, flags: c_uint) -> c_int {
    ffi_guard(-1, || {
        // SAFETY: as the caller promises.
        let handle = unsafe { handle(tx) }?;
        let open = handle.open.take().ok_or(libc::ESTALE)?;
        handle.failed = None;
        match open.commit(flags) {
            Ok(()) => Ok(0),
            Err((left, failed)) => {
                let errno = failed.errno;
                handle.open = left;
                handle.failed = Some(CError::of(failed));
                Err(errno)
            }
        }
    })
}

/// # Safety
/// `tx` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_abort(tx: *mut Handle) -> c_int {
    ffi_guard(-1, || {
        // SAFETY: as the caller promises.
        let open = unsafe { handle(tx) }?.open.take().ok_or(libc::ESTALE)?;
        open.abort().map(|()| 0).map_err(|e| errno_of(&e))
    })
}

/// # Safety
/// `tx` is an open handle; `number` has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_savepoint(tx: *mut Handle, number: *mut u64) -> c_int {
    ffi_guard(-1, || {
        // SAFETY: as the caller promises.
        let (tx, number) = unsafe { (handle(tx)?.tx()?, number.as_mut().ok_or(libc::EINVAL)?) };
        *number = tx.savepoint().map_err(|e| errno_of(&e))?;
        Ok(0)
    })
}

/// # Safety
/// `tx` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_rollback(tx: *mut Handle, number: u64) -> c_int {
    ffi_guard(-1, || {
        // SAFETY: as the caller promises.
        unsafe { handle(tx) }?.tx()?.roll_back(number).map(|()| 0).map_err(|e| errno_of(&e))
    })
}

/// # Safety
/// `tx` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_release(tx: *mut Handle, number: u64) -> c_int {
    ffi_guard(-1, || {
        // SAFETY: as the caller promises.
        unsafe { handle(tx) }?.tx()?.release(number).map(|()| 0).map_err(|e| errno_of(&e))
    })
}

/// # Safety
/// `tx` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_reason(tx: *mut Handle) -> c_int {
    // SAFETY: as the caller promises.
    ffi_guard(-1, || Ok(unsafe { handle(tx) }?.failed.as_ref().map_or(0, |error| error.reason as c_int)))
}

/// # Safety
/// `tx` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_winner(tx: *mut Handle) -> u64 {
    // SAFETY: as the caller promises.
    ffi_guard(0, || Ok(unsafe { handle(tx) }?.failed.as_ref().map_or(0, |error| error.conflicting_tx)))
}

/// # Safety
/// `tx` is an open handle; the string is used before its next commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_conflict_path(tx: *mut Handle) -> *const c_char {
    ffi_guard(std::ptr::null(), || {
        // SAFETY: as the caller promises.
        let error = unsafe { handle(tx) }?.failed.as_ref();
        Ok(error.and_then(|error| error.path.as_ref()).map_or(std::ptr::null(), |path| path.as_ptr()))
    })
}

/// # Safety
/// `tx` is an open handle, or null after a begin that failed; the string is used before its next
/// commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_why(tx: *mut Handle) -> *const c_char {
    if tx.is_null() {
        return fs_tx_why();
    }
    ffi_guard(std::ptr::null(), || {
        // SAFETY: as the caller promises.
        let error = unsafe { handle(tx) }?.failed.as_ref();
        Ok(error.map_or(std::ptr::null(), |error| error.why.as_ptr()))
    })
}

/// # Safety
/// `tx` is null, or an open handle that nobody uses from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_free(tx: *mut Handle) {
    if tx.is_null() {
        return;
    }
    ffi_guard((), || {
        // SAFETY: made by `Box::into_raw`, and freed once.
        let handle = unsafe { Box::from_raw(tx) };
        match handle.open {
            // Whoever frees it has nobody to tell.
            Some(open) => open.abort().map_err(|e| errno_of(&e)),
            None => Ok(()),
        }
    });
}
