//! Gives the changes of one or more databases to the volume, in one atomic write.

use std::io;

use xact_control::abi::{WRITE_ABORT, WRITE_COMMIT, WRITE_ORDERED};
use xact_control::client::{PART_MAX, WriteRequest};

use crate::abi;
use crate::host::Code;
use crate::overlay::{Change, Overlay};
use crate::volume::Volume;

/// Why the volume has none of the changes.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// SQLite's own way may succeed: the file is in a transaction's view by now, or another user's.
    Refused,
    /// The error for SQLite.
    Code(Code),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Failure::Code(abi::FULL),
            Some(
                libc::EIO
                | libc::ENOTCONN
                | libc::ECONNABORTED
                | libc::ESHUTDOWN
                | libc::EROFS
                | libc::EUCLEAN,
            ) => Failure::Code(abi::IOERR_FSYNC),
            Some(libc::ENOENT) => Failure::Code(abi::READONLY_DBMOVED),
            _ => Failure::Refused,
        }
    }
}

/// Commits the changes of databases on one volume. Returns when all of them are visible, and
/// durable if asked for. After a failure the volume has none of them, or, if the daemon died,
/// perhaps all.
pub fn commit(all: &[(&Volume, &Overlay)], durable: bool) -> Result<(), Failure> {
    loop {
        match send(all, durable) {
            // A request that a signal takes back has not reached the daemon.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            sent => return Ok(sent?),
        }
    }
}

fn send(all: &[(&Volume, &Overlay)], durable: bool) -> io::Result<()> {
    let Some((first, _)) = all.first() else { return Ok(()) };
    let mut request = WriteRequest::new(first.key);
    // The rest of a commit that a signal has ended, or an error, is discarded first.
    let mut flags = WRITE_ABORT;
    let mut last = None;
    for (volume, overlay) in all {
        if let Some(before) = last.take() {
            let before: &Volume = before;
            request.send(before.file(), std::mem::take(&mut flags))?;
        }
        overlay.changes(PART_MAX, |change| {
            let add = |request: &mut WriteRequest| match change {
                Change::Bytes(offset, bytes) => request.add_bytes(offset, bytes),
                Change::Truncate(size) => request.add_truncate(size),
            };
            if !add(&mut request) {
                request.send(volume.file(), std::mem::take(&mut flags))?;
                assert!(add(&mut request), "a change fits into an empty request");
            }
            last = Some(*volume);
            Ok::<(), io::Error>(())
        })?;
    }
    match last {
        Some(volume) => {
            let ordered = if durable { 0 } else { WRITE_ORDERED };
            request.send(volume.file(), flags | WRITE_COMMIT | ordered)
        }
        // There is nothing to commit.
        None if flags == WRITE_ABORT => Ok(()),
        None => request.send(first.file(), WRITE_COMMIT | if durable { 0 } else { WRITE_ORDERED }),
    }
}
