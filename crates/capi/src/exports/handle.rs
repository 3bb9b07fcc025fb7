//! Transactions with a handle and a folder (`xact_tx_begin` and so on): nothing in the process
//! changes, and calls below the folder are part of the transaction.

use std::ffi::{c_char, c_int, c_uint};
use std::os::fd::AsRawFd;
use std::ptr;

use super::error::xact_errmsg;
use super::required_path;
use crate::failure::{CError, Failed, ffi_call};
use crate::transaction::{Tx, check_commit_flags};

/// `struct xact_tx`: a transaction, and the result of its last commit.
pub struct Handle {
    /// `None` when it has ended.
    open: Option<Tx>,
    id: u64,
    /// The last commit that was refused.
    refused: Option<CError>,
}

/// # Safety
/// `tx` is null, or a handle of `xact_tx_begin` that was not freed and that no other thread uses
/// now.
unsafe fn handle<'a>(tx: *mut Handle) -> Result<&'a mut Handle, Failed> {
    // SAFETY: as the caller promises.
    unsafe { tx.as_mut() }.ok_or_else(Failed::null_argument)
}

impl Handle {
    fn tx(&self) -> Result<&Tx, Failed> {
        self.open.as_ref().ok_or_else(|| Failed::of_errno(libc::ESTALE))
    }

    fn refused<R>(&self, default: R, read: impl FnOnce(&CError) -> R) -> R {
        self.refused.as_ref().map_or(default, read)
    }
}

/// # Safety
/// `at` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_begin(at: *const c_char, flags: c_uint) -> *mut Handle {
    ffi_call(ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let tx = Tx::begin(unsafe { required_path(at) }?, flags)?;
        let id = tx.id();
        Ok(Box::into_raw(Box::new(Handle { open: Some(tx), id, refused: None })))
    })
}

/// # Safety
/// As for [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_dir(tx: *mut Handle) -> c_int {
    // SAFETY: as the caller promises.
    ffi_call(-1, || Ok(unsafe { handle(tx) }?.tx()?.dir().as_raw_fd()))
}

/// # Safety
/// As for [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_id(tx: *mut Handle) -> u64 {
    // SAFETY: as the caller promises.
    ffi_call(0, || Ok(unsafe { handle(tx) }?.id))
}

/// # Safety
/// As for [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_status(tx: *mut Handle) -> c_int {
    // SAFETY: as the caller promises.
    ffi_call(-1, || Ok(unsafe { handle(tx) }?.open.is_some().into()))
}

/// # Safety
/// As for [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_doomed(tx: *mut Handle) -> c_int {
    ffi_call(-1, || {
        // SAFETY: as the caller promises.
        let doomed = unsafe { handle(tx) }?.tx()?.is_doomed();
        doomed.map(c_int::from).map_err(|e| Failed::of_io(&e))
    })
}

/// # Safety
/// As for [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_commit(tx: *mut Handle, flags: c_uint) -> c_int {
    ffi_call(-1, || {
        // SAFETY: as the caller promises.
        let handle = unsafe { handle(tx) }?;
        check_commit_flags(flags)?;
        let open = handle.open.take().ok_or_else(|| Failed::of_errno(libc::ESTALE))?;
        handle.refused = None;
        match open.commit(flags) {
            Ok(()) => Ok(0),
            Err((retained, failed)) => {
                handle.open = retained;
                handle.refused = Some(CError::of(&failed));
                Err(failed)
            }
        }
    })
}

/// # Safety
/// As for [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_abort(tx: *mut Handle) -> c_int {
    ffi_call(-1, || {
        // SAFETY: as the caller promises.
        let open = unsafe { handle(tx) }?.open.take().ok_or_else(|| Failed::of_errno(libc::ESTALE))?;
        open.abort().map(|()| 0).map_err(|e| Failed::of_io(&e))
    })
}

/// # Safety
/// As for [`handle`]; `number` is null or points to a writable `u64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_savepoint(tx: *mut Handle, number: *mut u64) -> c_int {
    ffi_call(-1, || {
        // SAFETY: as the caller promises.
        let (tx, number) = unsafe { (handle(tx)?.tx()?, number.as_mut().ok_or_else(Failed::null_argument)?) };
        *number = tx.savepoint().map_err(|e| Failed::of_io(&e))?;
        Ok(0)
    })
}

/// # Safety
/// As for [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_rollback(tx: *mut Handle, number: u64) -> c_int {
    ffi_call(-1, || {
        // SAFETY: as the caller promises.
        let rolled_back = unsafe { handle(tx) }?.tx()?.roll_back(number);
        rolled_back.map(|()| 0).map_err(|e| Failed::of_io(&e))
    })
}

/// # Safety
/// As for [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_release(tx: *mut Handle, number: u64) -> c_int {
    ffi_call(-1, || {
        // SAFETY: as the caller promises.
        let released = unsafe { handle(tx) }?.tx()?.release(number);
        released.map(|()| 0).map_err(|e| Failed::of_io(&e))
    })
}

/// # Safety
/// As for [`handle`]; the string is used before the next commit of the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_errmsg(tx: *mut Handle) -> *const c_char {
    if tx.is_null() {
        return xact_errmsg();
    }
    // SAFETY: as the caller promises.
    ffi_call(ptr::null(), || Ok(unsafe { handle(tx) }?.refused(ptr::null(), |error| error.message.as_ptr())))
}

/// # Safety
/// As for [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_reason(tx: *mut Handle) -> c_int {
    // SAFETY: as the caller promises.
    ffi_call(-1, || Ok(unsafe { handle(tx) }?.refused(0, |error| error.reason as c_int)))
}

/// # Safety
/// As for [`xact_tx_errmsg`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_conflict_path(tx: *mut Handle) -> *const c_char {
    ffi_call(ptr::null(), || {
        let path = |error: &CError| error.path.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: as the caller promises.
        Ok(unsafe { handle(tx) }?.refused(ptr::null(), path))
    })
}

/// # Safety
/// As for [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_conflicting_tx(tx: *mut Handle) -> u64 {
    // SAFETY: as the caller promises.
    ffi_call(0, || Ok(unsafe { handle(tx) }?.refused(0, |error| error.conflicting_tx)))
}

/// # Safety
/// As for [`handle`], and it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_free(tx: *mut Handle) {
    if tx.is_null() {
        return;
    }
    ffi_call((), || {
        // SAFETY: made by `Box::into_raw`, and freed once.
        let handle = unsafe { Box::from_raw(tx) };
        match handle.open {
            Some(open) => open.abort().map_err(|e| Failed::of_io(&e)),
            None => Ok(()),
        }
    });
}
