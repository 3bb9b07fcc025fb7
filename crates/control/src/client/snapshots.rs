//! Snapshots of a mounted volume.

use std::io;
use std::path::Path;

use super::volume::{snapshot, snapshot_paths};
use crate::abi::{
    SNAPSHOT_CREATE, SNAPSHOT_DELETE, SNAPSHOT_GET, SNAPSHOT_NAME_MAX, SNAPSHOT_PATHS_MAX, Snapshot,
    SnapshotPaths,
};

/// An error, with the reason that the daemon gave for it; empty if it gave none.
pub type WithReason = (io::Error, String);

/// A snapshot in the list of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotEntry {
    pub name: String,
    /// The generation that it keeps.
    pub generation: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// Bytes of the pool that deleting it alone would free.
    pub own_bytes: u64,
    /// Relative to the volume's root; empty for a snapshot of the whole volume.
    pub paths: Vec<Vec<u8>>,
}

/// Creates a snapshot of the volume of `mount`, or of chosen paths relative to its root.
pub fn create_snapshot(mount: &Path, name: &str, paths: &[Vec<u8>]) -> Result<(), WithReason> {
    if paths.is_empty() {
        return snapshot(mount, &mut request(SNAPSHOT_CREATE, name)?);
    }
    let text: Vec<u8> = paths.iter().flat_map(|path| path.iter().copied().chain([0])).collect();
    snapshot_paths(mount, &mut *paths_request(SNAPSHOT_CREATE, name, &text)?)
}

/// Deletes a snapshot of the volume of `mount`.
pub fn delete_snapshot(mount: &Path, name: &str) -> Result<(), WithReason> {
    snapshot(mount, &mut request(SNAPSHOT_DELETE, name)?)
}

/// Attempts to read a list that does not change while it is read.
const ATTEMPTS: u32 = 10;

/// The snapshots of the volume of `mount`, from the oldest on.
///
/// The daemon is asked for one at a time, by index, and a snapshot that is deleted in between moves
/// the others. So the list is read until it was the same twice, for a limited number of attempts.
pub fn list_snapshots(mount: &Path) -> Result<Vec<SnapshotEntry>, WithReason> {
    let generations = |list: &[Snapshot]| list.iter().map(|snapshot| snapshot.generation).collect::<Vec<_>>();
    let mut found = read_list(mount)?;
    for attempt in 1.. {
        let again = read_list(mount)?;
        let is_last = attempt == ATTEMPTS;
        if is_last || generations(&found) == generations(&again) {
            match again.iter().map(|snapshot| entry(mount, snapshot)).collect() {
                // One was deleted before its paths were read.
                Err((error, _)) if error.raw_os_error() == Some(libc::EINVAL) && !is_last => {}
                entries => return entries,
            }
        }
        found = again;
    }
    unreachable!("the last attempt returns")
}

fn read_list(mount: &Path) -> Result<Vec<Snapshot>, WithReason> {
    let mut list = Vec::new();
    loop {
        let mut next = request(SNAPSHOT_GET, "")?;
        next.index = list.len() as u32;
        match snapshot(mount, &mut next) {
            Ok(()) => list.push(next),
            Err((e, _)) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(list),
            Err(error) => return Err(error),
        }
    }
}

fn entry(mount: &Path, found: &Snapshot) -> Result<SnapshotEntry, WithReason> {
    let len = (found.name_len as usize).min(found.name.len());
    let name = String::from_utf8_lossy(&found.name[..len]).into_owned();
    let mut paths = Vec::new();
    if found.paths_len != 0 {
        let mut reply = paths_request(SNAPSHOT_GET, &name, &[])?;
        snapshot_paths(mount, &mut reply)?;
        let split = reply.text().split(|&byte| byte == 0);
        paths.extend(split.filter(|path| !path.is_empty()).map(<[u8]>::to_vec));
    }
    let Snapshot { generation, time, own_bytes, .. } = *found;
    Ok(SnapshotEntry { name, generation, time, own_bytes, paths })
}

fn request(action: u32, name: &str) -> Result<Snapshot, WithReason> {
    let text = || format!("a snapshot's name has at most {SNAPSHOT_NAME_MAX} bytes");
    Snapshot::new(action, name).ok_or_else(|| (io::Error::from_raw_os_error(libc::EINVAL), text()))
}

fn paths_request(action: u32, name: &str, paths: &[u8]) -> Result<Box<SnapshotPaths>, WithReason> {
    let text = || {
        format!(
            "the snapshot's name or paths are too long: at most {SNAPSHOT_NAME_MAX} bytes for the name, \
             {SNAPSHOT_PATHS_MAX} for all paths together"
        )
    };
    SnapshotPaths::new(action, name, paths)
        .ok_or_else(|| (io::Error::from_raw_os_error(libc::EINVAL), text()))
}
