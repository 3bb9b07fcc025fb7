//! Folders whose path is longer than a call accepts. getcwd(3) returns such a path.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, open, openat, readlinkat};
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

/// Symbolic links that the kernel follows in one path.
const LINKS_MAX: usize = 40;

/// The path of `path` without symbolic links, as by realpath(3), which fails where the result is
/// too long for a call. `folder`: the path of the current folder without symbolic links.
///
/// # Errors
/// Those of open(2).
pub fn real_path(folder: &Path, path: &Path) -> io::Result<PathBuf> {
    const NAME: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    let mut real = folder.to_path_buf();
    let mut at = open_with(folder, OFlags::PATH)?;
    let (mut left, mut links): (Vec<OsString>, usize) = (path.iter().rev().map(OsString::from).collect(), 0);
    while let Some(name) = left.pop() {
        let next = openat(&at, &name, NAME, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&next)?.st_mode) == FileType::Symlink {
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            let target = OsString::from_vec(readlinkat(&next, "", Vec::new())?.into_bytes());
            left.extend(Path::new(&target).iter().rev().map(OsString::from));
            continue;
        }
        at = next;
        match name.as_encoded_bytes() {
            b"." => {}
            b".." => _ = real.pop(),
            // An absolute path replaces what was before.
            _ => real.push(name),
        }
    }
    Ok(real)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{mkdirat, symlinkat};

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

        mkdirat(&at, "sub", Mode::RWXU).unwrap();
        symlinkat("sub/..", &at, "link").unwrap();
        symlinkat("loop", &at, "loop").unwrap();
        symlinkat(dir.path(), &at, "absolute").unwrap();
        let real = |text: &str| real_path(&path, Path::new(text));
        assert_eq!(real("sub").unwrap(), path.join("sub"));
        assert_eq!(real("./link/sub/../..").unwrap(), path.parent().unwrap());
        assert_eq!(real("absolute/..").unwrap(), dir.path().parent().unwrap());
        assert_eq!(real("/").unwrap(), Path::new("/"));
        let errno = |text: &str| real(text).unwrap_err().raw_os_error();
        assert_eq!(errno("loop"), Some(Errno::LOOP.raw_os_error()));
        assert_eq!(errno("none"), Some(Errno::NOENT.raw_os_error()));
    }
}
