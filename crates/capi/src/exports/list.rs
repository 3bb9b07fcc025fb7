//! The lists that C reads entry by entry.

use std::ptr;

use crate::failure::{Failed, ffi_call};

/// An entry, and the struct of C that is in it.
pub trait Info {
    type Info;
    fn info(&self) -> &Self::Info;
}

/// `struct xact_snapshot_list` and `struct xact_tx_list`.
pub struct List<E> {
    entries: Vec<E>,
    next: usize,
}

impl<E> List<E> {
    /// A list for C, which [`free`] ends.
    pub fn new(entries: impl Iterator<Item = E>) -> *mut List<E> {
        Box::into_raw(Box::new(List { entries: entries.collect(), next: 0 }))
    }
}

/// The next entry; null after the last one.
///
/// # Safety
/// `list` is null, or a list that was not freed and that no other thread uses now.
pub unsafe fn next<E: Info>(list: *mut List<E>) -> *const E::Info {
    ffi_call(ptr::null(), || {
        // SAFETY: as the caller promises.
        let list = unsafe { list.as_mut() }.ok_or_else(Failed::null_argument)?;
        let Some(entry) = list.entries.get(list.next) else { return Ok(ptr::null()) };
        list.next += 1;
        Ok(ptr::from_ref(entry.info()))
    })
}

/// Frees a list.
///
/// # Safety
/// As for [`next`], and the list is not used afterwards.
pub unsafe fn free<E>(list: *mut List<E>) {
    if !list.is_null() {
        ffi_call((), || {
            // SAFETY: made by `Box::into_raw`, and freed once.
            drop(unsafe { Box::from_raw(list) });
            Ok(())
        });
    }
}
