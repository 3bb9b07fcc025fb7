//! `xact_snapshot_create` and so on: snapshots of a mounted volume.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use xact_control::client::{self, SnapshotEntry, WithReason};
use xact_types::selection::outermost;

use super::list::{self, Info, List};
use super::mount_argument;
use crate::failure::{Failed, ffi_call};

/// `struct xact_snapshot_info`. Its pointers lead into the [`Entry`] that contains it.
#[repr(C)]
pub struct SnapshotInfo {
    name: *const c_char,
    generation: u64,
    time: u64,
    own_bytes: u64,
    paths: *const *const c_char,
}

/// A snapshot with the strings that its `info` points to. They are on the heap, and stay there when
/// the entry is moved.
pub struct Entry {
    _name: CString,
    _paths: Vec<CString>,
    _path_pointers: Vec<*const c_char>,
    info: SnapshotInfo,
}

impl Entry {
    fn new(snapshot: SnapshotEntry) -> Entry {
        let SnapshotEntry { name, generation, time, own_bytes, paths } = snapshot;
        // Neither names nor paths contain a NUL.
        let name = CString::new(name).unwrap_or_default();
        let paths: Vec<CString> = paths.into_iter().filter_map(|path| CString::new(path).ok()).collect();
        let pointers: Vec<*const c_char> =
            paths.iter().map(|path| path.as_ptr()).chain([ptr::null()]).collect();
        let info = SnapshotInfo {
            name: name.as_ptr(),
            generation,
            time,
            own_bytes,
            paths: if paths.is_empty() { ptr::null() } else { pointers.as_ptr() },
        };
        Entry { _name: name, _paths: paths, _path_pointers: pointers, info }
    }
}

impl Info for Entry {
    type Info = SnapshotInfo;

    fn info(&self) -> &SnapshotInfo {
        &self.info
    }
}

fn failed(at: &Path, (error, reason): WithReason) -> Failed {
    let failed = Failed::of_channel(at, &error);
    match failed.errno {
        _ if !reason.is_empty() => Failed::new(failed.errno, reason),
        libc::EPERM => {
            Failed::new(libc::EPERM, "only root and the user who mounted the volume may use its snapshots")
        }
        _ => failed,
    }
}

/// # Safety
/// `name` is null or a C string that stays unchanged for `'a`.
unsafe fn name_argument<'a>(name: *const c_char) -> Result<&'a str, Failed> {
    if name.is_null() {
        return Err(Failed::null_argument());
    }
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_err(|_| Failed::new(libc::EINVAL, "a snapshot's name is text in UTF-8"))
}

/// The paths of a null-terminated array, as the daemon expects them: relative to the root, none
/// below another one.
///
/// # Safety
/// `paths` is null, or points to C strings and a null pointer after them.
unsafe fn paths_argument(mut paths: *const *const c_char) -> Result<Vec<Vec<u8>>, Failed> {
    let mut found: Vec<PathBuf> = Vec::new();
    // SAFETY: as the caller promises: `paths` does not move past the null pointer.
    while let Some(path) = unsafe { paths.as_ref() }.filter(|path| !path.is_null()) {
        // SAFETY: as the caller promises.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(*path) }.to_bytes()));
        found.push(path.to_path_buf());
        // SAFETY: the array continues at least to its null pointer.
        paths = unsafe { paths.add(1) };
    }
    outermost(&found).map_err(|e| Failed::new(e.errno().0, e.to_string()))
}

/// # Safety
/// `at` is null or a C string, `name` is a C string, and `paths` is null or a null-terminated array
/// of C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_snapshot_create(
    at: *const c_char,
    name: *const c_char,
    paths: *const *const c_char,
) -> c_int {
    ffi_call(-1, || {
        // SAFETY: as the caller promises.
        let (mount, name) = unsafe { (mount_argument(at)?, name_argument(name)?) };
        let is_partial = !paths.is_null();
        // SAFETY: as the caller promises.
        let paths = unsafe { paths_argument(paths) }?;
        if is_partial && paths.is_empty() {
            return Err(Failed::new(
                libc::EINVAL,
                "the list of paths is empty: pass NULL for the whole volume",
            ));
        }
        client::create_snapshot(&mount.point, name, &paths).map(|()| 0).map_err(|e| failed(&mount.point, e))
    })
}

/// # Safety
/// `at` is null or a C string, `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_snapshot_delete(at: *const c_char, name: *const c_char) -> c_int {
    ffi_call(-1, || {
        // SAFETY: as the caller promises.
        let (mount, name) = unsafe { (mount_argument(at)?, name_argument(name)?) };
        client::delete_snapshot(&mount.point, name).map(|()| 0).map_err(|e| failed(&mount.point, e))
    })
}

/// # Safety
/// `at` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_snapshot_list_new(at: *const c_char) -> *mut List<Entry> {
    ffi_call(ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let mount = unsafe { mount_argument(at) }?;
        let found = client::list_snapshots(&mount.point).map_err(|e| failed(&mount.point, e))?;
        Ok(List::new(found.into_iter().map(Entry::new)))
    })
}

/// # Safety
/// `list` is null, or a list that was not freed and that no other thread uses now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_snapshot_list_next(list: *mut List<Entry>) -> *const SnapshotInfo {
    // SAFETY: as the caller promises.
    unsafe { list::next(list) }
}

/// # Safety
/// As for [`xact_snapshot_list_next`], and it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xact_snapshot_list_free(list: *mut List<Entry>) {
    // SAFETY: as the caller promises.
    unsafe { list::free(list) }
}
