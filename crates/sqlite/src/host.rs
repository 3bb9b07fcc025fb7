//! The SQLite that has loaded the extension: its functions, and the VFS that was the default one
//! before. Files of it are opened, read and written here.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::abi::{self, ApiRoutines, File, IoMethods, Vfs};

pub struct Host {
    pub base: *mut Vfs,
    pub api: &'static ApiRoutines,
}

// SAFETY: SQLite never frees or changes either, and its functions may be called from any thread.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

static HOST: OnceLock<Host> = OnceLock::new();

/// Notes the host. The first one counts.
pub fn set(host: Host) -> &'static Host {
    HOST.get_or_init(|| host)
}

/// # Panics
/// Before `set`: SQLite cannot call the VFS before it is registered.
pub fn host() -> &'static Host {
    HOST.get().expect("the VFS is registered after this is set")
}

/// Runs what SQLite has called. A panic must not unwind into C.
pub fn guard(on_panic: c_int, action: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(action)).unwrap_or(on_panic)
}

/// An error code of SQLite, never `OK`.
pub type Code = c_int;

/// The result of a call of SQLite's interface.
pub fn checked(code: c_int) -> Result<(), Code> {
    if code == abi::OK { Ok(()) } else { Err(code) }
}

/// An open file of the VFS below.
#[derive(Clone, Copy)]
pub struct Real(*mut File);

// SAFETY: SQLite uses a file from one thread at a time; so do the locks around each use here.
unsafe impl Send for Real {}

impl Real {
    /// # Safety
    /// `file` is an open file of the host's VFS as long as this is used, and no other thread uses
    /// it at the same time.
    pub unsafe fn new(file: *mut File) -> Real {
        Real(file)
    }

    pub fn pointer(self) -> *mut File {
        self.0
    }

    pub fn methods(self) -> &'static IoMethods {
        // SAFETY: the methods of an open file are a static table.
        unsafe { &*(*self.0).methods }
    }

    /// Fills `out` from the file, with zeros behind its end.
    pub fn read(self, offset: u64, out: &mut [u8]) -> Result<(), Code> {
        // SAFETY: the file is open, and the buffer has this length.
        let code = unsafe {
            (self.methods().read)(
                self.0,
                out.as_mut_ptr().cast::<c_void>(),
                out.len() as c_int,
                offset as i64,
            )
        };
        // SQLite fills the rest with zeros.
        if code == abi::IOERR_SHORT_READ { Ok(()) } else { checked(code) }
    }

    /// The same, with an error if the file ends before.
    pub fn read_exact(self, offset: u64, out: &mut [u8]) -> Result<(), Code> {
        // SAFETY: as in `read`.
        checked(unsafe {
            (self.methods().read)(
                self.0,
                out.as_mut_ptr().cast::<c_void>(),
                out.len() as c_int,
                offset as i64,
            )
        })
    }

    /// Whether the file was renamed or deleted since it was opened.
    pub fn has_moved(self) -> Result<bool, Code> {
        let mut moved: c_int = 0;
        // SAFETY: the file is open, and the argument of this operation is a place for a number.
        let code = unsafe {
            (self.methods().file_control)(self.0, abi::FCNTL_HAS_MOVED, (&raw mut moved).cast::<c_void>())
        };
        if code == abi::NOTFOUND { Ok(false) } else { checked(code).map(|()| moved != 0) }
    }

    pub fn write(self, offset: u64, bytes: &[u8]) -> Result<(), Code> {
        // SAFETY: as in `read`.
        checked(unsafe {
            (self.methods().write)(
                self.0,
                bytes.as_ptr().cast::<c_void>(),
                bytes.len() as c_int,
                offset as i64,
            )
        })
    }

    pub fn truncate(self, size: u64) -> Result<(), Code> {
        // SAFETY: the file is open.
        checked(unsafe { (self.methods().truncate)(self.0, size as i64) })
    }

    pub fn sync(self) -> Result<(), Code> {
        // SAFETY: the file is open.
        checked(unsafe { (self.methods().sync)(self.0, abi::SYNC_NORMAL) })
    }

    pub fn size(self) -> Result<u64, Code> {
        let mut size = 0;
        // SAFETY: the file is open, and the result has a place.
        checked(unsafe { (self.methods().file_size)(self.0, &mut size) })?;
        Ok(size as u64)
    }
}

/// A file of the VFS below that the extension has opened itself. Dropping it closes it.
pub struct OwnedFile(Box<[u64]>);

impl OwnedFile {
    /// # Safety
    /// `name` stays valid until the file is closed.
    pub unsafe fn open(name: *const c_char, flags: c_int) -> Result<OwnedFile, Code> {
        let base = host().base;
        // SAFETY: the VFS is valid.
        let bytes = unsafe { (*base).file_bytes } as usize;
        let mut memory = OwnedFile(vec![0; bytes.div_ceil(8)].into());
        // SAFETY: the memory has the size and alignment of a file object; the name is as promised.
        checked(unsafe { ((*base).open)(base, name, memory.pointer(), flags, std::ptr::null_mut()) })?;
        Ok(memory)
    }

    fn pointer(&mut self) -> *mut File {
        self.0.as_mut_ptr().cast()
    }

    pub fn real(&mut self) -> Real {
        Real(self.pointer())
    }
}

impl Drop for OwnedFile {
    fn drop(&mut self) {
        let file = self.pointer();
        // SAFETY: the methods of a file that is not open are null.
        unsafe {
            if let Some(methods) = (*file).methods.as_ref() {
                (methods.close)(file);
            }
        }
    }
}

impl Host {
    pub fn exists(&self, name: &CStr) -> bool {
        let mut found = 0;
        // SAFETY: the VFS and the name are valid.
        let code = unsafe { ((*self.base).access)(self.base, name.as_ptr(), abi::ACCESS_EXISTS, &mut found) };
        code == abi::OK && found != 0
    }

    pub fn delete(&self, name: &CStr, sync_folder: bool) -> c_int {
        // SAFETY: the VFS and the name are valid.
        unsafe { ((*self.base).delete)(self.base, name.as_ptr(), sync_folder.into()) }
    }
}
