//! Files of SQLite that are in memory: rollback journals and super-journals.

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::Arc;

use crate::abi::{self, File, IoMethods};
use crate::database::{Database, Journal};
use crate::host::guard;
use crate::super_journal::SuperJournal;

/// The file object. SQLite provides its memory.
#[repr(C)]
pub struct MemoryFile {
    file: File,
    contents: *mut Contents,
}

pub enum Contents {
    Journal(Arc<Database>),
    SuperJournal(Arc<SuperJournal>),
    /// A copy, for a rollback of several databases.
    Copy(Vec<u8>),
}

impl MemoryFile {
    /// Makes SQLite's file object one of these.
    ///
    /// # Safety
    /// `file` is the memory of a file object that is not open.
    pub unsafe fn open(file: *mut File, contents: Contents) {
        let opened =
            MemoryFile { file: File { methods: &METHODS }, contents: Box::into_raw(Box::new(contents)) };
        // SAFETY: the memory has the size that the VFS asks for, which is that of a database.
        unsafe { file.cast::<MemoryFile>().write(opened) }
    }
}

/// # Safety
/// `file` was opened by `MemoryFile::open` and is not closed; no other thread uses it.
unsafe fn contents<'a>(file: *mut File) -> &'a mut Contents {
    // SAFETY: as the caller promises.
    unsafe { &mut *(*file.cast::<MemoryFile>()).contents }
}

/// Runs `action` on the bytes, or on the file that the journal has become.
fn on<R>(
    contents: &mut Contents,
    memory: impl FnOnce(&mut Vec<u8>) -> R,
    real: impl FnOnce(crate::host::Real) -> R,
) -> R {
    match contents {
        Contents::Journal(database) => match &mut database.state.lock().journal {
            Journal::Memory { bytes, .. } => memory(bytes),
            Journal::File(file) => real(file.real()),
            Journal::None => memory(&mut Vec::new()),
        },
        Contents::SuperJournal(journal) => memory(&mut journal.bytes()),
        Contents::Copy(bytes) => memory(bytes),
    }
}

fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(abi::OK)
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite closes an open file once.
        let contents = unsafe { Box::from_raw((*file.cast::<MemoryFile>()).contents) };
        // SAFETY: as above.
        unsafe { (*file).methods = std::ptr::null() };
        if let Contents::Journal(database) = *contents {
            database.close_journal();
        }
        abi::OK
    })
}

unsafe extern "C" fn read(file: *mut File, to: *mut c_void, len: c_int, offset: i64) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives an open file and a buffer of this length.
        let (contents, out) =
            unsafe { (contents(file), slice::from_raw_parts_mut(to.cast::<u8>(), len as usize)) };
        if let Contents::Journal(database) = contents
            && let Journal::Memory { is_read, .. } = &mut database.state.lock().journal
        {
            *is_read = true;
        }
        let offset = offset as usize;
        let real = |real: crate::host::Real| {
            // SAFETY: the file is open, and the buffer is as above.
            unsafe { (real.methods().read)(real.pointer(), to, len, offset as i64) }
        };
        let memory = |bytes: &mut Vec<u8>| {
            let found = bytes.get(offset..).unwrap_or_default();
            let found = &found[..found.len().min(out.len())];
            out[..found.len()].copy_from_slice(found);
            out[found.len()..].fill(0);
            if found.len() < out.len() { abi::IOERR_SHORT_READ } else { abi::OK }
        };
        on(contents, memory, real)
    })
}

unsafe extern "C" fn write(file: *mut File, from: *const c_void, len: c_int, offset: i64) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives an open file and a buffer of this length.
        let (contents, from) =
            unsafe { (contents(file), slice::from_raw_parts(from.cast::<u8>(), len as usize)) };
        match contents {
            Contents::Journal(database) => match &mut database.state.lock().journal {
                Journal::Memory { bytes, is_synced, .. } => {
                    *is_synced = false;
                    put(bytes, offset as usize, from);
                    abi::OK
                }
                Journal::File(file) => code(file.real().write(offset as u64, from)),
                Journal::None => abi::IOERR,
            },
            Contents::SuperJournal(journal) => {
                journal.write(offset as usize, from);
                abi::OK
            }
            Contents::Copy(_) => abi::IOERR,
        }
    })
}

/// Bytes of the header that SQLite overwrites with zeros at the end of a transaction, and most
/// bytes of it that it changes within one.
const ZEROED: usize = 28;

/// Writes to a journal. What is there of an earlier transaction is dropped.
fn put(journal: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if offset == 0 && (bytes.len() > ZEROED || bytes.len() == ZEROED && bytes.iter().all(|&byte| byte == 0)) {
        journal.clear();
    }
    let end = offset + bytes.len();
    journal.resize(journal.len().max(end), 0);
    journal[offset..end].copy_from_slice(bytes);
}

unsafe extern "C" fn truncate(file: *mut File, size: i64) -> c_int {
    guard(abi::IOERR, || {
        let memory = |bytes: &mut Vec<u8>| {
            bytes.resize(size as usize, 0);
            Ok(())
        };
        // SAFETY: SQLite gives an open file.
        code(on(unsafe { contents(file) }, memory, |real| real.truncate(size as u64)))
    })
}

unsafe extern "C" fn sync(file: *mut File, _flags: c_int) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives an open file.
        let contents = unsafe { contents(file) };
        if let Contents::Journal(database) = contents {
            match &mut database.state.lock().journal {
                Journal::Memory { is_synced, .. } => *is_synced = true,
                Journal::File(file) => return code(file.real().sync()),
                Journal::None => {}
            }
        }
        abi::OK
    })
}

unsafe extern "C" fn file_size(file: *mut File, size: *mut i64) -> c_int {
    guard(abi::IOERR, || {
        // SAFETY: SQLite gives an open file.
        let contents = unsafe { contents(file) };
        match on(contents, |bytes| Ok(bytes.len() as u64), |real| real.size()) {
            Ok(found) => {
                // SAFETY: SQLite gives a place for the result.
                unsafe { *size = found as i64 };
                abi::OK
            }
            Err(code) => code,
        }
    })
}

unsafe extern "C" fn lock(_: *mut File, _: c_int) -> c_int {
    abi::OK
}

unsafe extern "C" fn check_reserved_lock(_: *mut File, found: *mut c_int) -> c_int {
    // SAFETY: SQLite gives a place for the result.
    unsafe { *found = 0 };
    abi::OK
}

unsafe extern "C" fn file_control(_: *mut File, _: c_int, _: *mut c_void) -> c_int {
    abi::NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut File) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_: *mut File) -> c_int {
    0
}

static METHODS: IoMethods = IoMethods {
    version: 1,
    close,
    read,
    write,
    truncate,
    sync,
    file_size,
    lock,
    unlock: lock,
    check_reserved_lock,
    file_control,
    sector_size,
    device_characteristics,
    shm_map: None,
    shm_lock: None,
    shm_barrier: None,
    shm_unmap: None,
    fetch: None,
    unfetch: None,
};

#[cfg(test)]
mod tests {
    use super::put;

    #[test]
    fn a_new_transaction_begins_with_an_empty_journal() {
        let mut journal = Vec::new();
        put(&mut journal, 0, &[1; 512]);
        put(&mut journal, 512, &[2; 1032]);
        // The number of records, at the sync.
        put(&mut journal, 0, &[3; 12]);
        assert_eq!((journal.len(), journal[11], journal[12]), (1544, 3, 1));
        put(&mut journal, 0, &[0; 28]);
        assert_eq!(journal, [0; 28]);
        put(&mut journal, 512, &[2; 1032]);
        put(&mut journal, 0, &[1; 512]);
        assert_eq!(journal.len(), 512);
    }
}
