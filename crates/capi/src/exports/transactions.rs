//! `xact_tx_list_new` and so on: the open transactions of a mounted volume.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::time::Duration;

use xact_control::TxInfo;
use xact_control::client::Channel;

use super::list::{self, Info, List};
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

/// A transaction with the string that its `info` points to. It is on the heap, and stays there when
/// the entry is moved.
pub struct Entry {
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

impl Info for Entry {
    type Info = TransactionInfo;

    fn info(&self) -> &TransactionInfo {
        &self.info
    }
}

/// # Safety
/// `at` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_list_new(at: *const c_char) -> *mut List<Entry> {
    ffi_call(ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let mount = unsafe { mount_argument(at) }?;
        if mount.is_view() {
            let text = "other transactions cannot be reached from inside a transaction";
            return Err(Failed::new(libc::EINVAL, text));
        }
        let wrong = |e| Failed::of_channel(&mount.point, &e);
        let found = Channel::open(&mount.point).and_then(|channel| channel.list()).map_err(wrong)?;
        Ok(List::new(found.into_iter().map(Entry::new)))
    })
}

/// # Safety
/// `list` is null, or a list that was not freed and that no other thread uses now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_list_next(list: *mut List<Entry>) -> *const TransactionInfo {
    // SAFETY: as the caller promises.
    unsafe { list::next(list) }
}

/// # Safety
/// As for [`xact_tx_list_next`], and it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_tx_list_free(list: *mut List<Entry>) {
    // SAFETY: as the caller promises.
    unsafe { list::free(list) }
}
