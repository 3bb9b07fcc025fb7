//! Splits a path at the mount that contains it.

use std::io;
use std::path::{Path, PathBuf};

use xact_namespace::file_identity::FileIdentity;
use xact_namespace::long_path::real_path;

/// Bytes of the longest path that a call accepts, with the zero byte at its end.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The mount point above a path, and the path below it.
pub struct MountPath {
    pub mount: PathBuf,
    pub below: PathBuf,
}

impl MountPath {
    /// The topmost folder above `path` on the same file system.
    pub fn of(path: &Path) -> io::Result<MountPath> {
        let path = absolute(path)?;
        // A mount point has a path that calls accept.
        let mut above = path.ancestors().skip_while(|folder| folder.as_os_str().len() >= PATH_MAX);
        let device = above.clone().next().map(FileIdentity::of_path).transpose()?.map(|first| first.device);
        let same =
            |folder: &&Path| FileIdentity::of_path(folder).is_ok_and(|found| Some(found.device) == device);
        let mount = above.by_ref().take_while(same).last().unwrap_or(&path);
        let below = path.strip_prefix(mount).expect("one of its ancestors").to_path_buf();
        Ok(MountPath { mount: mount.to_path_buf(), below })
    }
}

/// A path without symbolic links. realpath(3) fails where the result is longer than a call accepts;
/// getcwd(3) does not.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(e) if e.raw_os_error() == Some(libc::ENAMETOOLONG) => real_path(&std::env::current_dir()?, path),
        found => found,
    }
}
