//! SQLite's own interface, as far as the extension uses it: `sqlite3_file`, `sqlite3_io_methods`,
//! `sqlite3_vfs` and `sqlite3_api_routines` of `sqlite3.h` and `sqlite3ext.h`, and their constants.
//! `tests.rs` compares all of it with the headers.

use std::ffi::{c_char, c_double, c_int, c_void};

/// `sqlite3_file`: the first field of each file object.
#[repr(C)]
pub struct File {
    /// Null while the file is not open.
    pub methods: *const IoMethods,
}

/// `sqlite3_io_methods`, version 3.
#[repr(C)]
pub struct IoMethods {
    pub version: c_int,
    pub close: unsafe extern "C" fn(*mut File) -> c_int,
    pub read: unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> c_int,
    pub write: unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> c_int,
    pub truncate: unsafe extern "C" fn(*mut File, i64) -> c_int,
    pub sync: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub file_size: unsafe extern "C" fn(*mut File, *mut i64) -> c_int,
    pub lock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub unlock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub check_reserved_lock: unsafe extern "C" fn(*mut File, *mut c_int) -> c_int,
    pub file_control: unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> c_int,
    pub sector_size: unsafe extern "C" fn(*mut File) -> c_int,
    pub device_characteristics: unsafe extern "C" fn(*mut File) -> c_int,
    pub shm_map: Option<unsafe extern "C" fn(*mut File, c_int, c_int, c_int, *mut *mut c_void) -> c_int>,
    pub shm_lock: Option<unsafe extern "C" fn(*mut File, c_int, c_int, c_int) -> c_int>,
    pub shm_barrier: Option<unsafe extern "C" fn(*mut File)>,
    pub shm_unmap: Option<unsafe extern "C" fn(*mut File, c_int) -> c_int>,
    pub fetch: Option<unsafe extern "C" fn(*mut File, i64, c_int, *mut *mut c_void) -> c_int>,
    pub unfetch: Option<unsafe extern "C" fn(*mut File, i64, *mut c_void) -> c_int>,
}

/// A function of a library that SQLite loads, or a system call.
pub type Symbol = Option<unsafe extern "C" fn()>;

/// `sqlite3_vfs`, version 3.
#[repr(C)]
pub struct Vfs {
    pub version: c_int,
    pub file_bytes: c_int,
    pub path_max: c_int,
    pub next: *mut Vfs,
    pub name: *const c_char,
    pub app_data: *mut c_void,
    pub open: unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int,
    pub delete: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> c_int,
    pub access: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> c_int,
    pub full_pathname: unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> c_int,
    pub dl_open: unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void,
    pub dl_error: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char),
    pub dl_sym: unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> Symbol,
    pub dl_close: unsafe extern "C" fn(*mut Vfs, *mut c_void),
    pub randomness: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub sleep: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int,
    pub current_time: unsafe extern "C" fn(*mut Vfs, *mut c_double) -> c_int,
    pub last_error: unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int,
    pub current_time_i64: Option<unsafe extern "C" fn(*mut Vfs, *mut i64) -> c_int>,
    pub set_system_call: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, Symbol) -> c_int>,
    pub system_call: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> Symbol>,
    pub next_system_call: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> *const c_char>,
}

/// `sqlite3_api_routines`: a table of function pointers, of which the extension uses a few.
#[repr(C)]
pub struct ApiRoutines([*const c_void; ROUTINES]);

/// Places in the table.
pub const LIBVERSION_NUMBER: usize = 67;
pub const MPRINTF: usize = 69;
pub const VFS_FIND: usize = 141;
pub const VFS_REGISTER: usize = 142;
pub const URI_INT64: usize = 188;
pub const DATABASE_FILE_OBJECT: usize = 251;
/// Entries up to the last one that is used.
const ROUTINES: usize = DATABASE_FILE_OBJECT + 1;

/// The first version of SQLite with all of these.
pub const VERSION_MIN: c_int = 3_032_000;

pub const OK: c_int = 0;
pub const ERROR: c_int = 1;
pub const IOERR: c_int = 10;
pub const NOTFOUND: c_int = 12;
pub const FULL: c_int = 13;
pub const CANTOPEN: c_int = 14;
pub const READONLY_DBMOVED: c_int = 8 | 4 << 8;
pub const IOERR_SHORT_READ: c_int = IOERR | 2 << 8;
pub const IOERR_FSYNC: c_int = IOERR | 4 << 8;
/// The library stays loaded when its connection is closed.
pub const OK_LOAD_PERMANENTLY: c_int = 1 << 8;

pub const OPEN_READWRITE: c_int = 0x2;
pub const OPEN_CREATE: c_int = 0x4;
pub const OPEN_EXCLUSIVE: c_int = 0x10;
pub const OPEN_MAIN_DB: c_int = 0x100;
pub const OPEN_MAIN_JOURNAL: c_int = 0x800;
pub const OPEN_SUPER_JOURNAL: c_int = 0x4000;
pub const OPEN_WAL: c_int = 0x80000;

pub const LOCK_SHARED: c_int = 1;
pub const LOCK_RESERVED: c_int = 2;
pub const LOCK_EXCLUSIVE: c_int = 4;

pub const ACCESS_EXISTS: c_int = 0;
pub const SYNC_NORMAL: c_int = 2;

pub const FCNTL_SIZE_HINT: c_int = 5;
pub const FCNTL_VFSNAME: c_int = 12;
pub const FCNTL_PRAGMA: c_int = 14;
pub const FCNTL_HAS_MOVED: c_int = 20;
pub const FCNTL_SYNC: c_int = 21;
pub const FCNTL_COMMIT_PHASETWO: c_int = 22;
pub const FCNTL_CKPT_DONE: c_int = 37;
pub const FCNTL_CKPT_START: c_int = 39;

pub const IOCAP_BATCH_ATOMIC: c_int = 0x4000;

impl ApiRoutines {
    /// # Safety
    /// `T` is the type of the function at this place.
    unsafe fn at<T: Copy>(&self, place: usize) -> T {
        const { assert!(size_of::<T>() == size_of::<*const c_void>()) };
        // SAFETY: as the caller promises; function pointers have the size of the entry.
        unsafe { std::mem::transmute_copy(&self.0[place]) }
    }

    pub fn libversion_number(&self) -> c_int {
        // SAFETY: the type is that of sqlite3_libversion_number.
        unsafe { self.at::<unsafe extern "C" fn() -> c_int>(LIBVERSION_NUMBER)() }
    }

    /// Memory that SQLite frees.
    pub fn copy_of(&self, text: &std::ffi::CStr) -> *mut c_char {
        // SAFETY: the type is that of sqlite3_mprintf, and the argument is the one that %s takes.
        unsafe {
            let mprintf: unsafe extern "C" fn(*const c_char, ...) -> *mut c_char = self.at(MPRINTF);
            mprintf(c"%s".as_ptr(), text.as_ptr())
        }
    }

    /// The name of a VFS, of one below it. Frees that.
    ///
    /// # Safety
    /// `below` is text that SQLite has allocated.
    pub unsafe fn vfs_name(&self, below: *mut c_char) -> *mut c_char {
        // SAFETY: as in `copy_of`; %z frees its argument.
        unsafe {
            let mprintf: unsafe extern "C" fn(*const c_char, ...) -> *mut c_char = self.at(MPRINTF);
            mprintf(c"xact/%z".as_ptr(), below)
        }
    }

    pub fn vfs_find(&self, name: Option<&std::ffi::CStr>) -> *mut Vfs {
        let name = name.map_or(std::ptr::null(), std::ffi::CStr::as_ptr);
        // SAFETY: the type is that of sqlite3_vfs_find.
        unsafe { self.at::<unsafe extern "C" fn(*const c_char) -> *mut Vfs>(VFS_FIND)(name) }
    }

    /// # Safety
    /// The VFS is valid as long as the process lives.
    pub unsafe fn vfs_register(&self, vfs: *mut Vfs, is_default: bool) -> c_int {
        // SAFETY: the type is that of sqlite3_vfs_register.
        let register: unsafe extern "C" fn(*mut Vfs, c_int) -> c_int = unsafe { self.at(VFS_REGISTER) };
        // SAFETY: as the caller promises.
        unsafe { register(vfs, is_default.into()) }
    }

    /// A parameter of the URI of a database.
    ///
    /// # Safety
    /// `name` is the name that SQLite gave to `xOpen` of a main database.
    pub unsafe fn uri_int64(&self, name: *const c_char, parameter: &std::ffi::CStr, default: i64) -> i64 {
        type UriInt64 = unsafe extern "C" fn(*const c_char, *const c_char, i64) -> i64;
        // SAFETY: the type is that of sqlite3_uri_int64; the name is as the caller promises.
        unsafe { self.at::<UriInt64>(URI_INT64)(name, parameter.as_ptr(), default) }
    }

    /// The file object of the database that has this journal or WAL.
    ///
    /// # Safety
    /// `name` is the name of a journal or WAL that SQLite's pager gave to `xOpen`.
    pub unsafe fn database_file_object(&self, name: *const c_char) -> *mut File {
        // SAFETY: the type is that of sqlite3_database_file_object; the name is as promised.
        unsafe { self.at::<unsafe extern "C" fn(*const c_char) -> *mut File>(DATABASE_FILE_OBJECT)(name) }
    }
}
