//! `xact_tx_list_new` and so on: the open transactions of a mounted volume.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::time::Duration;

use xact_control::TxInfo;
use xact_control::client::Channel;

use super::mount_argument;
use crate::failure::{Failed, ffi_call};

/// `struct xact_tx_info`. Its label is in the [`Entry`] that contains it.
#[repr(C)]
pub struct TransactionInfo {
    id: u64,
    label: *const c_char,
    age_ms: u64,
    left_ms: u64,
    status: u32,
    uid: u32,
    persistent: c_int,
}

/// `struct xact_tx_list`.
pub struct TransactionList {
    entries: Vec<Entry>,
    next: usize,
}

/// A transaction with the string that its `info` points to. It is on the heap, and stays there when
/// the entry is moved.
struct Entry {
    _label: CString,
    info: TransactionInfo,
}

impl Entry {
    fn new(tx: TxInfo) -> Entry {
        let TxInfo { id, status, uid, label, age, left, persistent } = tx;
        // Another program wrote the label, which may contain a NUL: it ends there.
        let label = label.split(|&byte| byte == 0).next().unwrap_or_default();
        let label = CString::new(label).unwrap_or_default();
        let ms = |duration: Duration| duration.as_millis() as u64;
        let info = TransactionInfo {
            id,
            label: label.as_ptr(),
            age_ms: ms(age),
            left_ms: left.map_or(0, ms),
            status: status as u32,
            uid,
            persistent: persistent.into(),
        };
        Entry { _label: label, info }
    }
}

/// # Safety
/// `at` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_list_new(at: *const c_char) -> *mut TransactionList {
    ffi_call(ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let mount = unsafe { mount_argument(at) }?;
        if mount.is_view() {
            let text = "other transactions cannot be reached from inside a transaction";
            return Err(Failed::new(libc::EINVAL, text));
        }
        let wrong = |e| Failed::of_channel(&mount.point, &e);
        let found = Channel::open(&mount.point).and_then(|channel| channel.list()).map_err(wrong)?;
        let entries = found.into_iter().map(Entry::new).collect();
        Ok(Box::into_raw(Box::new(TransactionList { entries, next: 0 })))
    })
}

/// # Safety
/// `list` is null, or a list that was not freed and that no other thread uses now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_list_next(list: *mut TransactionList) -> *const TransactionInfo {
    ffi_call(ptr::null(), || {
        // SAFETY: as the caller promises.
        let list = unsafe { list.as_mut() }.ok_or_else(Failed::null_argument)?;
        let Some(entry) = list.entries.get(list.next) else { return Ok(ptr::null()) };
        list.next += 1;
        Ok(&raw const entry.info)
    })
}

/// # Safety
/// As for [`xact_tx_list_next`], and it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_list_free(list: *mut TransactionList) {
    if !list.is_null() {
        // SAFETY: made by `Box::into_raw`, and freed once.
        ffi_call((), || {
            drop(unsafe { Box::from_raw(list) });
            Ok(())
        });
    }
}
