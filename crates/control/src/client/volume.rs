//! Requests about a mounted volume, by its mount point.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{ioctl, with_reason};
use crate::abi::{self, Counters, Version};

/// Makes everything done so far on the volume of `mount` durable (`XACT_IOC_SYNC`); works on
/// read-only mounts too. `ENOTTY`: it is not an xact volume.
pub fn sync(mount: &Path) -> io::Result<()> {
    ioctl(&File::open(mount)?, abi::IOC_SYNC, &mut [])
}

/// A call about the snapshots of the volume of `mount` (`XACT_IOC_SNAPSHOT`). An error comes with
/// its reason, if the daemon gave one.
pub(super) fn snapshot(mount: &Path, request: &mut abi::Snapshot) -> Result<(), (io::Error, String)> {
    let file = File::open(mount).map_err(|e| (e, String::new()))?;
    ioctl(&file, abi::IOC_SNAPSHOT, request.as_mut_bytes())
        .map_err(|e| with_reason(e, &request.errmsg, request.errmsg_len))
}

/// As [`snapshot`], for chosen paths (`XACT_IOC_SNAPSHOT_PATHS`).
pub(super) fn snapshot_paths(
    mount: &Path,
    request: &mut abi::SnapshotPaths,
) -> Result<(), (io::Error, String)> {
    let file = File::open(mount).map_err(|e| (e, String::new()))?;
    ioctl(&file, abi::IOC_SNAPSHOT_PATHS, request.as_mut_bytes())
        .map_err(|e| with_reason(e, &request.errmsg, request.errmsg_len))
}

/// Version of the interface of the daemon of `mount`; `ENOTTY`: it is not an xact volume.
pub fn version(mount: &Path) -> io::Result<u32> {
    let mut bytes = [0; size_of::<Version>()];
    ioctl(&File::open(mount)?, abi::IOC_VERSION, &mut bytes)?;
    Ok(Version::read_from_bytes(&bytes).map_or(0, |v| v.abi))
}

/// Statistics of the volume at `mount`; `ENOTTY`: it is not an xact volume.
pub fn counters(mount: &Path) -> io::Result<Counters> {
    let mut counters = Counters::default();
    ioctl(&File::open(mount)?, abi::IOC_COUNTERS, counters.as_mut_bytes())?;
    Ok(counters)
}

/// The fill level of the pool of the volume at `mount`; all 0 if it has none.
pub fn pool(mount: &Path) -> io::Result<abi::Pool> {
    let mut pool = abi::Pool::default();
    ioctl(&File::open(mount)?, abi::IOC_POOL, pool.as_mut_bytes())?;
    Ok(pool)
}

/// The resources that each user holds in the daemon of `mount`, as far as the caller may see them,
/// and the limits of one user.
pub fn users(mount: &Path) -> io::Result<(Vec<abi::UserUse>, abi::UserUse)> {
    let file = File::open(mount)?;
    let (mut all, mut users) = (Vec::new(), Box::new(abi::Users::new_zeroed()));
    loop {
        ioctl(&file, abi::IOC_USERS, users.as_mut_bytes())?;
        all.extend_from_slice(&users.users[..(users.len as usize).min(abi::USERS_MAX)]);
        if users.done != 0 {
            return Ok((all, users.limits));
        }
    }
}

/// Files by their written blocks, and all others together; `EPERM`: the caller is neither root nor
/// has mounted the volume at `mount`.
pub fn files(mount: &Path) -> io::Result<(Vec<abi::FileUse>, abi::FileUse)> {
    let file = File::open(mount)?;
    let (mut all, mut files) = (Vec::new(), Box::new(abi::FileUses::new_zeroed()));
    loop {
        ioctl(&file, abi::IOC_FILES, files.as_mut_bytes())?;
        all.extend_from_slice(&files.files[..(files.len as usize).min(abi::FILES_MAX)]);
        if files.done != 0 {
            return Ok((all, files.others));
        }
    }
}

/// The durations of syncs and commits on the volume at `mount`.
pub fn latencies(mount: &Path) -> io::Result<abi::Latencies> {
    let mut latencies = abi::Latencies::new_zeroed();
    ioctl(&File::open(mount)?, abi::IOC_LATENCIES, latencies.as_mut_bytes())?;
    Ok(latencies)
}

/// A call about the modes of the volume of `mount` (`XACT_IOC_MODES`). An error comes with its
/// reason, if the daemon gave one.
pub fn modes(mount: &Path, request: &mut abi::Modes) -> Result<(), (io::Error, String)> {
    let file = File::open(mount).map_err(|e| (e, String::new()))?;
    ioctl(&file, abi::IOC_MODES, request.as_mut_bytes())
        .map_err(|e| with_reason(e, &request.errmsg, request.errmsg_len))
}

/// A call about the data mode of one file (`XACT_IOC_FILE_MODE`). An error comes with its reason,
/// if the daemon gave one.
pub fn file_mode(path: &Path, request: &mut abi::FileMode) -> Result<(), (io::Error, String)> {
    // A FIFO would block.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|e| (e, String::new()))?;
    ioctl(&file, abi::IOC_FILE_MODE, request.as_mut_bytes())
        .map_err(|e| with_reason(e, &request.errmsg, request.errmsg_len))
}

/// How the volume of `mount` is mounted (`XACT_IOC_MOUNT`). An error comes with its reason, if the
/// daemon gave one.
pub fn mount_info(mount: &Path, request: &mut abi::MountInfo) -> Result<(), (io::Error, String)> {
    let file = File::open(mount).map_err(|e| (e, String::new()))?;
    ioctl(&file, abi::IOC_MOUNT, request.as_mut_bytes())
        .map_err(|e| with_reason(e, &request.errmsg, request.errmsg_len))
}

/// The name of the abstract Unix socket at which the daemon of `mount` reports how it ended; `None`
/// if it has none. `ENOTTY`: an older daemon, or not an xact volume.
pub fn outcome_socket(mount: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut outcome = abi::Outcome::new_zeroed();
    ioctl(&File::open(mount)?, abi::IOC_OUTCOME, outcome.as_mut_bytes())?;
    let name = outcome.socket.get(..outcome.len as usize).unwrap_or(&[]);
    Ok((!name.is_empty()).then(|| name.to_vec()))
}
