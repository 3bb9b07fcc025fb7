//! Where on which mount a path lies.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The mount point above a path, and the path below it.
pub struct Place {
    pub mount: PathBuf,
    pub below: PathBuf,
}

impl Place {
    /// The topmost folder above `path` on the same file system.
    pub fn of(path: &Path) -> io::Result<Place> {
        let path = path.canonicalize()?;
        let device = path.metadata()?.dev();
        let same = |folder: &&Path| folder.metadata().is_ok_and(|about| about.dev() == device);
        let mount = path.ancestors().take_while(same).last().unwrap_or(&path);
        let below = path.strip_prefix(mount).expect("one of its ancestors").to_path_buf();
        Ok(Place { mount: mount.to_path_buf(), below })
    }
}
