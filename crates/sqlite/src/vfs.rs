//! The VFS: opens files in the way that is right for them, and passes everything else to the VFS
//! that was the default one before.
//!
//! | file | where | opened as |
//! |---|---|---|
//! | main database, read-write | on a mounted volume | [`database_file`] |
//! | its rollback journal, while SQLite has a lock | | [`memory_file`](crate::memory_file) |
//! | super-journal | | [`memory_file`](crate::memory_file) |
//! | all else, all files elsewhere | | by the VFS below, in SQLite's own memory |
//!
//! No call on a file of the last kind comes here.

use std::ffi::{CStr, c_char, c_double, c_int, c_void};
use std::sync::Arc;

use crate::abi::{self, File, Symbol, Vfs};
use crate::database::{Database, Journal};
use crate::database_file::{self, OWN_BYTES};
use crate::host::{guard, host};
use crate::memory_file::{Contents, MemoryFile};
use crate::registry;
use crate::super_journal::SuperJournal;

pub const NAME: &CStr = c"xact";

/// Makes the VFS over another one.
///
/// # Safety
/// `base` is a registered VFS.
pub unsafe fn over(base: *mut Vfs) -> Vfs {
    // SAFETY: as the caller promises.
    let (bytes, path_max) = unsafe { ((*base).file_bytes, (*base).path_max) };
    Vfs {
        version: 3,
        file_bytes: bytes + OWN_BYTES as c_int,
        path_max,
        next: std::ptr::null_mut(),
        name: NAME.as_ptr(),
        app_data: std::ptr::null_mut(),
        open,
        delete,
        access,
        full_pathname,
        dl_open,
        dl_error,
        dl_sym,
        dl_close,
        randomness,
        sleep,
        current_time,
        last_error,
        current_time_i64: Some(current_time_i64),
        set_system_call: Some(set_system_call),
        system_call: Some(system_call),
        next_system_call: Some(next_system_call),
    }
}

/// The database that has this journal or WAL.
///
/// # Safety
/// `name` is what the pager has given to `xOpen` for it.
unsafe fn owner(name: *const c_char, journal: &CStr) -> Option<Arc<Database>> {
    if !registry::knows_journal(journal) {
        return None;
    }
    // SAFETY: as the caller promises.
    let file = unsafe { host().api.database_file_object(name) };
    // SAFETY: the pager has opened the database before.
    unsafe { file.as_ref() }.and_then(|_| unsafe { database_file::database_of(file) })
}

unsafe extern "C" fn open(
    _: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    guard(abi::CANTOPEN, || {
        let base = host().base;
        // SAFETY: the arguments are those that SQLite has given.
        let below = || unsafe { ((*base).open)(base, name, file, flags, out_flags) };
        // SAFETY: SQLite gives the memory of a file object, and a name or null.
        let path = unsafe {
            (*file).methods = std::ptr::null();
            if name.is_null() {
                return below();
            }
            CStr::from_ptr(name)
        };
        // SAFETY: the memory is that of a file object that is not open.
        let in_memory = |contents: Contents| unsafe {
            MemoryFile::open(file, contents);
            if let Some(out) = out_flags.as_mut() {
                *out = flags;
            }
            abi::OK
        };
        let makes = flags & abi::OPEN_CREATE != 0;
        match flags & (abi::OPEN_MAIN_DB | abi::OPEN_MAIN_JOURNAL | abi::OPEN_SUPER_JOURNAL | abi::OPEN_WAL) {
            abi::OPEN_MAIN_DB if flags & abi::OPEN_READWRITE != 0 => match database_file::channel_for(path) {
                // SAFETY: the arguments are those that SQLite has given.
                Some(channel) => unsafe { database_file::open(name, file, flags, out_flags, channel) },
                None => below(),
            },
            abi::OPEN_MAIN_JOURNAL if makes => {
                // SAFETY: only the pager makes journals.
                match unsafe { owner(name, path) } {
                    // SAFETY: the pager's name is valid as long as its journal is open.
                    Some(database) if unsafe { database.open_journal(name, flags) } => {
                        in_memory(Contents::Journal(database))
                    }
                    _ => below(),
                }
            }
            // A rollback of several databases looks whose journals name the super-journal.
            abi::OPEN_MAIN_JOURNAL if registry::any_super_journal() => {
                match registry::with_journal(path.to_bytes()) {
                    Some(database) => match &database.state.lock().journal {
                        Journal::Memory { bytes, .. } => in_memory(Contents::Copy(bytes.clone())),
                        _ => below(),
                    },
                    None => below(),
                }
            }
            abi::OPEN_SUPER_JOURNAL if makes && registry::any() => {
                let journal = registry::add_super_journal(SuperJournal::new(path.into(), flags));
                in_memory(Contents::SuperJournal(journal))
            }
            abi::OPEN_SUPER_JOURNAL => match registry::super_journal(path) {
                Some(journal) => in_memory(Contents::Copy(journal.bytes())),
                None => below(),
            },
            abi::OPEN_WAL => {
                let journal =
                    [path.to_bytes().strip_suffix(b"-wal").unwrap_or_default(), b"-journal\0"].concat();
                if let Ok(journal) = CStr::from_bytes_with_nul(&journal)
                    // SAFETY: only the pager opens these.
                    && let Some(database) = unsafe { owner(name, journal) }
                {
                    database.note_wal();
                }
                below()
            }
            _ => below(),
        }
    })
}

unsafe extern "C" fn delete(_: *mut Vfs, name: *const c_char, sync_folder: c_int) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives a name.
        let path = unsafe { CStr::from_ptr(name) };
        if let Some(journal) = registry::super_journal(path) {
            return journal.delete(sync_folder != 0);
        }
        // A journal that was in memory has no file.
        if registry::knows_journal(path) && !host().exists(path) {
            return abi::OK;
        }
        host().delete(path, sync_folder != 0)
    })
}

unsafe extern "C" fn access(_: *mut Vfs, name: *const c_char, flags: c_int, found: *mut c_int) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives a name.
        let path = unsafe { CStr::from_ptr(name) };
        let is_known = registry::any_super_journal()
            && (registry::super_journal(path).is_some() || registry::with_journal(path.to_bytes()).is_some());
        if flags == abi::ACCESS_EXISTS && is_known {
            // SAFETY: SQLite gives a place for the result.
            unsafe { *found = 1 };
            return abi::OK;
        }
        let base = host().base;
        // SAFETY: the arguments are those that SQLite has given.
        unsafe { ((*base).access)(base, name, flags, found) }
    })
}

/// Functions that call the one of the VFS below.
macro_rules! forward {
    ($($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {$(
        unsafe extern "C" fn $name(_: *mut Vfs $(, $argument: $kind)*) $(-> $result)? {
            let base = host().base;
            // SAFETY: the arguments are those that SQLite has given.
            unsafe { ((*base).$name)(base $(, $argument)*) }
        }
    )*};
}

forward! {
    full_pathname(name: *const c_char, len: c_int, to: *mut c_char) -> c_int;
    dl_open(name: *const c_char) -> *mut c_void;
    dl_error(len: c_int, to: *mut c_char);
    dl_sym(library: *mut c_void, name: *const c_char) -> Symbol;
    dl_close(library: *mut c_void);
    randomness(len: c_int, to: *mut c_char) -> c_int;
    sleep(microseconds: c_int) -> c_int;
    current_time(to: *mut c_double) -> c_int;
    last_error(len: c_int, to: *mut c_char) -> c_int;
}

/// The same for functions that a VFS may lack.
macro_rules! forward_if {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty, else $otherwise:expr;)*) => {$(
        unsafe extern "C" fn $name(_: *mut Vfs, $($argument: $kind),*) -> $result {
            let base = host().base;
            // SAFETY: the VFS is valid.
            match unsafe { (*base).$name } {
                // SAFETY: the arguments are those that SQLite has given.
                Some(function) => unsafe { function(base, $($argument),*) },
                None => $otherwise,
            }
        }
    )*};
}

forward_if! {
    current_time_i64(to: *mut i64) -> c_int, else abi::ERROR;
    set_system_call(name: *const c_char, function: Symbol) -> c_int, else abi::NOTFOUND;
    system_call(name: *const c_char) -> Symbol, else None;
    next_system_call(name: *const c_char) -> *const c_char, else std::ptr::null();
}
