//! The interface of SQLite in `abi` is that of its headers: sizes, offsets, places in the table of
//! functions, and constants. A C compiler evaluates the headers.

use std::collections::BTreeMap;
use std::fs;
use std::mem::offset_of;
use std::process::Command;

use crate::abi::{self, File, IoMethods, Vfs};

type Values = BTreeMap<&'static str, usize>;

fn ours() -> Values {
    let mut values = Values::new();
    macro_rules! fields {
        ($c:literal $kind:ident: $($c_field:literal = $field:ident),*) => {
            values.insert(concat!("sizeof(", $c, ")"), size_of::<$kind>());
            $(values.insert(concat!("offsetof(", $c, ", ", $c_field, ")"), offset_of!($kind, $field));)*
        };
    }
    fields!("sqlite3_file" File: "pMethods" = methods);
    fields!("sqlite3_io_methods" IoMethods: "iVersion" = version, "xClose" = close, "xRead" = read,
        "xWrite" = write, "xTruncate" = truncate, "xSync" = sync, "xFileSize" = file_size, "xLock" = lock,
        "xUnlock" = unlock, "xCheckReservedLock" = check_reserved_lock, "xFileControl" = file_control,
        "xSectorSize" = sector_size, "xDeviceCharacteristics" = device_characteristics,
        "xShmMap" = shm_map, "xShmLock" = shm_lock, "xShmBarrier" = shm_barrier,
        "xShmUnmap" = shm_unmap, "xFetch" = fetch, "xUnfetch" = unfetch);
    fields!("sqlite3_vfs" Vfs: "iVersion" = version, "szOsFile" = file_bytes, "mxPathname" = path_max,
        "pNext" = next, "zName" = name, "pAppData" = app_data, "xOpen" = open, "xDelete" = delete,
        "xAccess" = access, "xFullPathname" = full_pathname, "xDlOpen" = dl_open, "xDlError" = dl_error,
        "xDlSym" = dl_sym, "xDlClose" = dl_close, "xRandomness" = randomness, "xSleep" = sleep,
        "xCurrentTime" = current_time, "xGetLastError" = last_error,
        "xCurrentTimeInt64" = current_time_i64, "xSetSystemCall" = set_system_call,
        "xGetSystemCall" = system_call, "xNextSystemCall" = next_system_call);
    macro_rules! places {
        ($($c:literal = $place:ident),*) => {
            $(values.insert(
                concat!("offsetof(sqlite3_api_routines, ", $c, ")"),
                abi::$place * size_of::<usize>(),
            );)*
        };
    }
    places!(
        "libversion_number" = LIBVERSION_NUMBER,
        "mprintf" = MPRINTF,
        "vfs_find" = VFS_FIND,
        "vfs_register" = VFS_REGISTER,
        "uri_int64" = URI_INT64,
        "database_file_object" = DATABASE_FILE_OBJECT
    );
    macro_rules! constants {
        ($($c:literal = $value:ident),*) => { $(values.insert($c, abi::$value as usize);)* };
    }
    constants!(
        "SQLITE_OK" = OK,
        "SQLITE_ERROR" = ERROR,
        "SQLITE_IOERR" = IOERR,
        "SQLITE_NOTFOUND" = NOTFOUND,
        "SQLITE_FULL" = FULL,
        "SQLITE_CANTOPEN" = CANTOPEN,
        "SQLITE_IOERR_SHORT_READ" = IOERR_SHORT_READ,
        "SQLITE_IOERR_FSYNC" = IOERR_FSYNC,
        "SQLITE_OK_LOAD_PERMANENTLY" = OK_LOAD_PERMANENTLY,
        "SQLITE_OPEN_READWRITE" = OPEN_READWRITE,
        "SQLITE_OPEN_CREATE" = OPEN_CREATE,
        "SQLITE_OPEN_EXCLUSIVE" = OPEN_EXCLUSIVE,
        "SQLITE_OPEN_MAIN_DB" = OPEN_MAIN_DB,
        "SQLITE_OPEN_MAIN_JOURNAL" = OPEN_MAIN_JOURNAL,
        "SQLITE_OPEN_SUPER_JOURNAL" = OPEN_SUPER_JOURNAL,
        "SQLITE_OPEN_WAL" = OPEN_WAL,
        "SQLITE_LOCK_SHARED" = LOCK_SHARED,
        "SQLITE_LOCK_RESERVED" = LOCK_RESERVED,
        "SQLITE_LOCK_EXCLUSIVE" = LOCK_EXCLUSIVE,
        "SQLITE_ACCESS_EXISTS" = ACCESS_EXISTS,
        "SQLITE_SYNC_NORMAL" = SYNC_NORMAL,
        "SQLITE_FCNTL_SIZE_HINT" = FCNTL_SIZE_HINT,
        "SQLITE_FCNTL_VFSNAME" = FCNTL_VFSNAME,
        "SQLITE_FCNTL_PRAGMA" = FCNTL_PRAGMA,
        "SQLITE_FCNTL_HAS_MOVED" = FCNTL_HAS_MOVED,
        "SQLITE_READONLY_DBMOVED" = READONLY_DBMOVED,
        "SQLITE_FCNTL_SYNC" = FCNTL_SYNC,
        "SQLITE_FCNTL_COMMIT_PHASETWO" = FCNTL_COMMIT_PHASETWO,
        "SQLITE_FCNTL_CKPT_DONE" = FCNTL_CKPT_DONE,
        "SQLITE_FCNTL_CKPT_START" = FCNTL_CKPT_START,
        "SQLITE_IOCAP_BATCH_ATOMIC" = IOCAP_BATCH_ATOMIC
    );
    values
}

#[test]
fn the_interface_is_that_of_the_headers() {
    let ours = ours();
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("values.c"), folder.path().join("values"));
    let mut text =
        String::from("#include <stddef.h>\n#include <stdio.h>\n#include <sqlite3ext.h>\nint main(void) {\n");
    for name in ours.keys() {
        text += &format!("printf(\"%s=%zu\\n\", \"{name}\", (size_t)({name}));\n");
    }
    text += "return 0; }\n";
    fs::write(&source, text).unwrap();
    let built = Command::new("cc").arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(built.success(), "cc needs sqlite3ext.h: run 'make deps'");
    let output = Command::new(&program).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let theirs: BTreeMap<&str, usize> = output
        .lines()
        .map(|line| line.rsplit_once('=').unwrap())
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect();
    assert_eq!(theirs.len(), ours.len());
    for (name, value) in ours {
        assert_eq!(theirs[name], value, "{name}");
    }
}
