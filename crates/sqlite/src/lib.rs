//! An extension for an unmodified SQLite: on a mounted volume each of its transactions is one of
//! the volume's, and no journal file is written. Elsewhere SQLite works as it does without it.
//!
//! ```text
//!   SQLite's pager ── xOpen, xWrite, xSync, xDelete ──▶ vfs          what is opened how
//!                                                        │
//!             database_file ◀────────────────────────────┼──▶ memory_file
//!             calls on a database                        │    calls on journals
//!                  │                                     ▼
//!                  ├──▶ database ──▶ overlay          registry: names that are in memory
//!                  │    states         originals      super_journal: several databases
//!                  ▼         │
//!        the VFS below       └──▶ batch ──▶ one atomic write of the volume (xact_ioctl.h)
//! ```
//! The extension knows SQLite by its documented interface (`abi`), and by the order in which its
//! pager calls it. Locks stay SQLite's own: it takes and checks them in the VFS below.
//!
//! `unsafe` is at SQLite's border: calls from it, its functions, and file objects, whose memory
//! SQLite provides.

mod abi;
mod batch;
mod database;
mod database_file;
mod host;
mod memory_file;
mod originals;
mod overlay;
mod registry;
mod super_journal;
#[cfg(test)]
mod tests;
mod vfs;
mod volume;

use std::ffi::{c_char, c_int, c_void};

use abi::ApiRoutines;
use host::{Host, guard};

/// Called by SQLite when it has loaded the library: the VFS `xact` is the default one from then on.
///
/// # Safety
/// SQLite gives a connection, a place for a message, and its functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_xactsqlite_init(
    _connection: *mut c_void,
    message: *mut *mut c_char,
    api: *const ApiRoutines,
) -> c_int {
    guard(abi::ERROR, || {
        // SAFETY: the table has more entries than are used, and stays.
        let Some(api) = (unsafe { api.as_ref() }) else { return abi::ERROR };
        // The table of an older version is shorter.
        if api.libversion_number() < abi::VERSION_MIN {
            // SAFETY: SQLite gives a place for the message, and frees it.
            unsafe { *message = api.copy_of(c"libxact_sqlite needs SQLite 3.32 or later") };
            return abi::ERROR;
        }
        if !api.vfs_find(Some(vfs::NAME)).is_null() {
            return abi::OK_LOAD_PERMANENTLY;
        }
        let base = api.vfs_find(None);
        if base.is_null() {
            return abi::ERROR;
        }
        let host = host::set(Host { base, api });
        // SAFETY: the VFS below is registered.
        let vfs = Box::leak(Box::new(unsafe { vfs::over(host.base) }));
        // SAFETY: it is never freed.
        match unsafe { api.vfs_register(vfs, true) } {
            abi::OK => abi::OK_LOAD_PERMANENTLY,
            code => code,
        }
    })
}

/// The same, by the name that SQLite looks for first.
///
/// # Safety
/// As [`sqlite3_xactsqlite_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    connection: *mut c_void,
    message: *mut *mut c_char,
    api: *const ApiRoutines,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { sqlite3_xactsqlite_init(connection, message, api) }
}
