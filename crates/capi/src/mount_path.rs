//! Splits a path at the mount that contains it.

use std::io;
use std::path::{Path, PathBuf};

use xact_namespace::file_identity::FileIdentity;

/// The mount point above a path, and the path below it.
pub struct MountPath {
    pub mount: PathBuf,
    pub below: PathBuf,
}

impl MountPath {
    /// The topmost folder above `path` on the same file system.
    pub fn of(path: &Path) -> io::Result<MountPath> {
        let path = path.canonicalize()?;
        let device = FileIdentity::of_path(&path)?.device;
        let same =
            |folder: &&Path| FileIdentity::of_path(folder).is_ok_and(|identity| identity.device == device);
        let mount = path.ancestors().take_while(same).last().unwrap_or(&path);
        let below = path.strip_prefix(mount).expect("one of its ancestors").to_path_buf();
        Ok(MountPath { mount: mount.to_path_buf(), below })
    }
}
