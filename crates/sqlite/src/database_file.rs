//! The file object of a database: SQLite's calls on it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use xact_control::client::{Channel, WriteRequest};
use xact_namespace::mounts;

use crate::abi::{self, File, IoMethods};
use crate::database::Database;
use crate::host::{Real, guard, host};
use crate::registry;
use crate::volume::Volume;

/// The file object. SQLite provides its memory, and that of the file of the VFS below behind it.
#[repr(C)]
pub struct DatabaseFile {
    file: File,
    database: *const Database,
}

/// Bytes of the file object without the file of the VFS below.
pub const OWN_BYTES: usize = size_of::<DatabaseFile>();

/// Bytes of journal and pages that a transaction may have in memory, unless the database's URI says
/// otherwise (`xact_memory`).
const MEMORY_MAX: i64 = 256 << 20;

/// The type of file systems in `statfs`.
const FUSE: i64 = 0x6573_5546;

/// The file of the VFS below.
fn real_place(file: *mut File) -> *mut File {
    file.cast::<DatabaseFile>().wrapping_add(1).cast()
}

/// The database of a file object, if it is one of these.
///
/// # Safety
/// `file` is an open file object.
pub unsafe fn database_of(file: *mut File) -> Option<Arc<Database>> {
    // SAFETY: as the caller promises; the methods say what kind of file it is.
    unsafe {
        if !std::ptr::eq((*file).methods, &METHODS) {
            return None;
        }
        let database = (*file.cast::<DatabaseFile>()).database;
        Arc::increment_strong_count(database);
        Some(Arc::from_raw(database))
    }
}

/// # Safety
/// `file` is an open `DatabaseFile` that no other thread uses.
unsafe fn database<'a>(file: *mut File) -> &'a Database {
    // SAFETY: as the caller promises.
    unsafe { &*(*file.cast::<DatabaseFile>()).database }
}

/// The file of the VFS below.
///
/// # Safety
/// `file` is an open `DatabaseFile` that no other thread uses.
unsafe fn real(file: *mut File) -> Real {
    // SAFETY: it is open as long as the database is.
    unsafe { Real::new(real_place(file)) }
}

/// A control channel of the volume that a database is on, or will be. `None`: it is on another file
/// system, or the process runs in a transaction of the volume, where journals cost no I/O.
pub fn channel_for(name: &CStr) -> Option<Channel> {
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    let path = if path.exists() { path } else { path.parent()? };
    let kind = rustix::fs::statfs(path).ok()?.f_type;
    if kind as i64 != FUSE {
        return None;
    }
    let mount = mounts::serving(Some(path)).ok()?;
    if mount.is_view() { None } else { Channel::open(&mount.point).ok() }
}

/// Opens a database. A file that cannot be committed in this way is opened as by the VFS below.
///
/// # Safety
/// As for `xOpen`, with a name.
pub unsafe fn open(
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
    channel: Channel,
) -> c_int {
    let base = host().base;
    let place = real_place(file);
    // SAFETY: the memory behind the own file object has the size of a file of the VFS below.
    let code = unsafe {
        (*place).methods = std::ptr::null();
        ((*base).open)(base, name, place, flags, out_flags)
    };
    if code != abi::OK {
        return code;
    }
    // SAFETY: the file is open, and SQLite has given the name.
    let opened = unsafe { CStr::from_ptr(name) };
    let volume = unsafe { descriptor(place, opened) }.and_then(|(fd, device)| volume(fd, device, channel));
    let Some(volume) = volume else {
        // SAFETY: the file is open. It is opened again where SQLite expects it; it exists by now.
        return unsafe {
            ((*(*place).methods).close)(place);
            ((*base).open)(base, name, file, flags & !abi::OPEN_EXCLUSIVE, out_flags)
        };
    };
    let journal = [opened.to_bytes(), b"-journal"].concat();
    // SAFETY: the name is that of a main database.
    let memory_max = unsafe { host().api.uri_int64(name, c"xact_memory", MEMORY_MAX) };
    // SAFETY: the file is open until `close`, which ends the database.
    let real = unsafe { Real::new(place) };
    let journal = CString::new(journal).expect("made from C strings");
    let memory_max = usize::try_from(memory_max).unwrap_or(0);
    let database = Arc::new(Database::new(journal, volume, real, memory_max));
    registry::add(&database);
    let opened = DatabaseFile { file: File { methods: &METHODS }, database: Arc::into_raw(database) };
    // SAFETY: the memory is that of a file object that is not open.
    unsafe { file.cast::<DatabaseFile>().write(opened) };
    abi::OK
}

/// The descriptor of an open file of SQLite's VFS for Unix, and its device. The object begins with
/// methods, VFS, a pointer, and the descriptor (`struct unixFile`). That is not part of SQLite's
/// interface, so `None` unless the VFS is at its place, and the descriptor is of this file and
/// writable.
///
/// # Safety
/// `file` is an open file object of the VFS below.
unsafe fn descriptor(file: *mut File, name: &CStr) -> Option<(RawFd, u64)> {
    let base = host().base;
    // SAFETY: the object has this size; all of it was allocated by SQLite.
    if (unsafe { (*base).file_bytes } as usize) < 32 {
        return None;
    }
    // SAFETY: as above, the words are within the object.
    let (vfs, fd) = unsafe { (*file.cast::<usize>().add(1), *file.cast::<c_int>().add(6)) };
    if vfs != base as usize || fd < 0 {
        return None;
    }
    // SAFETY: if the number is not that of an open descriptor, the calls fail.
    let open = unsafe { BorrowedFd::borrow_raw(fd) };
    let (found, named) = (rustix::fs::fstat(open).ok()?, rustix::fs::stat(name).ok()?);
    let mode = rustix::fs::fcntl_getfl(open).ok()? & rustix::fs::OFlags::RWMODE;
    let is_it = (found.st_dev, found.st_ino) == (named.st_dev, named.st_ino);
    (is_it && mode == rustix::fs::OFlags::RDWR).then_some((fd, found.st_dev))
}

/// `None`: the daemon does not take atomic writes of this file from this user.
fn volume(fd: RawFd, device: u64, channel: Channel) -> Option<Volume> {
    if rustix::fs::fstat(channel.as_fd()).ok()?.st_dev != device {
        return None;
    }
    let key = channel.key().ok()?;
    let volume = Volume { device, fd, key, _channel: channel };
    WriteRequest::new(key).send(volume.file(), 0).ok()?;
    Some(volume)
}

fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(abi::OK)
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite closes an open file once.
        let database = unsafe { Arc::from_raw((*file.cast::<DatabaseFile>()).database) };
        database.unlock(0);
        registry::remove(&database);
        // SAFETY: as above.
        let real = unsafe { real(file) };
        // SAFETY: the file of the VFS below is open.
        unsafe {
            let code = (real.methods().close)(real.pointer());
            (*file).methods = std::ptr::null();
            code
        }
    })
}

unsafe extern "C" fn read(file: *mut File, to: *mut c_void, len: c_int, offset: i64) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives an open file and a buffer of this length.
        let (database, out) =
            unsafe { (database(file), slice::from_raw_parts_mut(to.cast::<u8>(), len as usize)) };
        code(database.read(offset as u64, out))
    })
}

unsafe extern "C" fn write(file: *mut File, from: *const c_void, len: c_int, offset: i64) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives an open file and a buffer of this length.
        let (database, from) =
            unsafe { (database(file), slice::from_raw_parts(from.cast::<u8>(), len as usize)) };
        code(database.write(offset as u64, from))
    })
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    // SAFETY: SQLite gives an open file.
    guard(abi::IOERR, || code(unsafe { database(file) }.truncate(size as u64)))
}

unsafe extern "C" fn sync(file: *mut File, flags: c_int) -> c_int {
    // SAFETY: SQLite gives an open file.
    guard(abi::IOERR, || code(unsafe { database(file) }.sync(flags)))
}

unsafe extern "C" fn file_size(file: *mut File, size: *mut i64) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives an open file.
        match unsafe { database(file) }.state.lock().size() {
            Ok(found) => {
                // SAFETY: SQLite gives a place for the result.
                unsafe { *size = found as i64 };
                abi::OK
            }
            Err(code) => code,
        }
    })
}

unsafe extern "C" fn lock(file: *mut File, level: c_int) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives an open file.
        let (database, real) = unsafe { (database(file), real(file)) };
        // SAFETY: as above.
        let code = unsafe { (real.methods().lock)(real.pointer(), level) };
        if code == abi::OK {
            database.locked(level);
        }
        code
    })
}

unsafe extern "C" fn unlock(file: *mut File, level: c_int) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives an open file.
        let (database, real) = unsafe { (database(file), real(file)) };
        database.unlock(level);
        // SAFETY: as above.
        unsafe { (real.methods().unlock)(real.pointer(), level) }
    })
}

unsafe extern "C" fn check_reserved_lock(file: *mut File, found: *mut c_int) -> c_int {
    // SAFETY: SQLite gives an open file and a place for the result.
    unsafe {
        let real = real(file);
        (real.methods().check_reserved_lock)(real.pointer(), found)
    }
}

unsafe extern "C" fn file_control(file: *mut File, operation: c_int, argument: *mut c_void) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives an open file.
        let real = unsafe { real(file) };
        // SAFETY: as above, with the operation's own argument.
        let below = || unsafe { (real.methods().file_control)(real.pointer(), operation, argument) };
        // SAFETY: SQLite gives an open file.
        let Some(database) = (unsafe { database_of(file) }) else { return abi::IOERR };
        match operation {
            abi::FCNTL_SYNC => {
                // SAFETY: the argument is the name of a super-journal, or null.
                let super_journal = unsafe { argument.cast::<c_char>().as_ref() }
                    .and_then(|name| registry::super_journal(unsafe { CStr::from_ptr(name) }));
                let is_super = !argument.is_null();
                match sync_control(&database, is_super, super_journal) {
                    Ok(true) => abi::OK,
                    Ok(false) => below(),
                    Err(code) => code,
                }
            }
            abi::FCNTL_COMMIT_PHASETWO => match database.after_commit() {
                Ok(()) => below(),
                Err(code) => code,
            },
            // The file grows with the commit.
            abi::FCNTL_SIZE_HINT if database.buffers() => abi::OK,
            // SQLite asks before it makes a journal. One in memory needs no name, and the daemon
            // refuses writes to a deleted file.
            abi::FCNTL_HAS_MOVED if database.is_atomic() => {
                // SAFETY: the argument is a place for a number.
                unsafe { *argument.cast::<c_int>() = 0 };
                abi::OK
            }
            abi::FCNTL_CKPT_START | abi::FCNTL_CKPT_DONE => {
                database.note_wal();
                below()
            }
            abi::FCNTL_VFSNAME => {
                let code = below();
                if code == abi::OK {
                    let name = argument.cast::<*mut c_char>();
                    // SAFETY: the argument is the place of a text that SQLite frees.
                    unsafe { *name = host().api.vfs_name(*name) };
                }
                code
            }
            abi::FCNTL_PRAGMA => {
                // SAFETY: the argument is an array: a place for the result, the name, and a value.
                let (result, pragma) = unsafe {
                    let all = argument.cast::<*mut c_char>();
                    (all, CStr::from_ptr(*all.add(1)))
                };
                if pragma != c"xact_status" {
                    return below();
                }
                let text = CString::new(database.status()).expect("no zero byte in it");
                // SAFETY: as above; SQLite frees the text.
                unsafe { *result = host().api.copy_of(&text) };
                abi::OK
            }
            _ => below(),
        }
    })
}

/// `SQLITE_FCNTL_SYNC`. False: the VFS below is to be asked too.
fn sync_control(
    database: &Arc<Database>,
    is_super: bool,
    journal: Option<Arc<crate::super_journal::SuperJournal>>,
) -> Result<bool, c_int> {
    if !is_super {
        return database.before_sync();
    }
    match journal {
        Some(journal) if journal.stays_in_memory()? => database.hold_for(journal),
        // The super-journal is a file, perhaps of another VFS.
        _ => database.become_plain().map(|()| false),
    }
}

unsafe extern "C" fn sector_size(file: *mut File) -> c_int {
    // SAFETY: SQLite gives an open file.
    unsafe {
        let real = real(file);
        (real.methods().sector_size)(real.pointer())
    }
}

unsafe extern "C" fn device_characteristics(file: *mut File) -> c_int {
    // SAFETY: SQLite gives an open file.
    unsafe {
        let real = real(file);
        (real.methods().device_characteristics)(real.pointer()) & !abi::IOCAP_BATCH_ATOMIC
    }
}

unsafe extern "C" fn shm_map(
    file: *mut File,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    to: *mut *mut c_void,
) -> c_int {
    // SAFETY: SQLite gives an open file.
    let real = unsafe { real(file) };
    match real.methods().shm_map {
        // SAFETY: as above.
        Some(map) => unsafe { map(real.pointer(), region, bytes, extend, to) },
        None => abi::IOERR,
    }
}

unsafe extern "C" fn shm_lock(file: *mut File, offset: c_int, count: c_int, flags: c_int) -> c_int {
    // SAFETY: SQLite gives an open file.
    let real = unsafe { real(file) };
    match real.methods().shm_lock {
        // SAFETY: as above.
        Some(lock) => unsafe { lock(real.pointer(), offset, count, flags) },
        None => abi::IOERR,
    }
}

unsafe extern "C" fn shm_barrier(file: *mut File) {
    // SAFETY: SQLite gives an open file.
    let real = unsafe { real(file) };
    if let Some(barrier) = real.methods().shm_barrier {
        // SAFETY: as above.
        unsafe { barrier(real.pointer()) }
    }
}

unsafe extern "C" fn shm_unmap(file: *mut File, delete: c_int) -> c_int {
    // SAFETY: SQLite gives an open file.
    let real = unsafe { real(file) };
    match real.methods().shm_unmap {
        // SAFETY: as above.
        Some(unmap) => unsafe { unmap(real.pointer(), delete) },
        None => abi::OK,
    }
}

unsafe extern "C" fn fetch(file: *mut File, offset: i64, len: c_int, to: *mut *mut c_void) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives an open file and a place for the result.
        let (database, real) = unsafe {
            *to = std::ptr::null_mut();
            (database(file), real(file))
        };
        let is_changed = database.state.lock().overlay.is_some();
        match real.methods().fetch {
            // SAFETY: as above.
            Some(fetch) if !is_changed => unsafe { fetch(real.pointer(), offset, len, to) },
            // Without a mapping SQLite reads the page.
            _ => abi::OK,
        }
    })
}

unsafe extern "C" fn unfetch(file: *mut File, offset: i64, page: *mut c_void) -> c_int {
    // SAFETY: SQLite gives an open file.
    let real = unsafe { real(file) };
    match real.methods().unfetch {
        // SAFETY: as above.
        Some(unfetch) => unsafe { unfetch(real.pointer(), offset, page) },
        None => abi::OK,
    }
}

static METHODS: IoMethods = IoMethods {
    version: 3,
    close,
    read,
    write,
    truncate,
    sync,
    file_size,
    lock,
    unlock,
    check_reserved_lock,
    file_control,
    sector_size,
    device_characteristics,
    shm_map: Some(shm_map),
    shm_lock: Some(shm_lock),
    shm_barrier: Some(shm_barrier),
    shm_unmap: Some(shm_unmap),
    fetch: Some(fetch),
    unfetch: Some(unfetch),
};
