//! What a file is and where it lies, as the kernel knows it already: nothing is asked of the
//! daemon. Of a view that has ended, or a daemon that is gone, it is told all the same.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, RawMode, StatxFlags, statx};
use rustix::io::Errno;

/// All of it stays what it was as long as the file is open, but for `links`: the deletion of a file
/// by a commit may not be known yet.
pub struct FileIdentity {
    /// Major and minor number of the file system, as in mountinfo.
    pub device: (u32, u32),
    /// Of the mount that it is reached through.
    pub mount: u64,
    pub inode: u64,
    pub kind: FileType,
    pub links: u32,
}

/// Whether a file is of a view that has ended. The one question here that the daemon is asked.
pub fn is_stale(file: impl AsFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    matches!(statx(file, "", flags, StatxFlags::BASIC_STATS), Err(Errno::STALE))
}

impl FileIdentity {
    pub fn of(file: impl AsFd) -> rustix::io::Result<FileIdentity> {
        FileIdentity::at(file, Path::new(""), AtFlags::EMPTY_PATH)
    }

    pub fn of_path(path: &Path) -> rustix::io::Result<FileIdentity> {
        FileIdentity::at(CWD, path, AtFlags::empty())
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    fn at(dir: impl AsFd, path: &Path, flags: AtFlags) -> rustix::io::Result<FileIdentity> {
        let flags = flags | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let found = statx(dir, path, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
        Ok(FileIdentity {
            device: (found.stx_dev_major, found.stx_dev_minor),
            mount: found.stx_mnt_id,
            inode: found.stx_ino,
            kind: FileType::from_raw_mode(found.stx_mode as RawMode),
            links: found.stx_nlink,
        })
    }
}
