//! Folders whose path is longer than a call accepts. getcwd(3) returns such a path.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, open, openat};
use rustix::io::{Errno, Result};
use rustix::process::{chdir, fchdir};

/// Opens a folder.
///
/// # Errors
/// Those of open(2).
pub fn open_folder(path: &Path) -> io::Result<File> {
    Ok(open_with(path, OFlags::RDONLY)?.into())
}

/// Opens a folder with these flags, name by name if its path is too long.
fn open_with(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
    match open(path, flags | FOLDER, Mode::empty()) {
        Err(Errno::NAMETOOLONG) => {}
        opened => return opened,
    }
    let step = |dir: BorrowedFd<'_>, name: &OsStr, flags| openat(dir, name, flags | FOLDER, Mode::empty());
    let (parent, last) = (path.parent().unwrap_or(path), path.file_name().unwrap_or(OsStr::new(".")));
    let mut parts = parent.iter();
    let mut at = step(CWD, parts.next().unwrap_or(OsStr::new(".")), OFlags::PATH)?;
    for name in parts {
        at = step(at.as_fd(), name, OFlags::PATH)?;
    }
    step(at.as_fd(), last, flags)
}

/// Makes a folder the current one.
///
/// # Errors
/// Those of chdir(2).
pub fn enter(path: &Path) -> Result<()> {
    match chdir(path) {
        Err(Errno::NAMETOOLONG) => fchdir(open_with(path, OFlags::PATH)?),
        entered => entered,
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::mkdirat;

    use super::*;
    use crate::file_identity::FileIdentity;

    #[test]
    fn a_folder_of_a_long_path_is_opened() {
        let name = "n".repeat(100);
        let dir = tempfile::tempdir().unwrap();
        let mut path = dir.path().to_path_buf();
        let mut at = open_with(&path, OFlags::RDONLY).unwrap();
        for _ in 0..100 {
            mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = openat(&at, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
            path.push(&name);
        }
        assert_eq!(open(&path, OFlags::PATH, Mode::empty()).unwrap_err(), Errno::NAMETOOLONG);
        let opened = open_folder(&path).unwrap();
        assert_eq!(FileIdentity::of(&opened).unwrap().inode, FileIdentity::of(&at).unwrap().inode);
        assert_eq!(open_with(&path.join("none"), OFlags::PATH).unwrap_err(), Errno::NOENT);
    }
}
