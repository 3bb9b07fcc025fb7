//! The identity and position of a file, from the kernel's own knowledge: the daemon is not asked.
//! So it also works for a view that has ended, or after the daemon's end.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, RawMode, StatxFlags, statx};
use rustix::io::Errno;

/// All of it is constant while the file is open, except for `links`: the kernel may not know yet
/// that a commit deleted the file.
pub struct FileIdentity {
    /// Major and minor number of the file system, as in mountinfo.
    pub device: (u32, u32),
    /// The mount through which it was opened.
    pub mount: u64,
    pub inode: u64,
    pub kind: FileType,
    pub links: u32,
}

/// Whether a file belongs to a view that has ended. The only call here that asks the daemon.
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
