//! Where on which mount a path lies.

use std::io;
use std::path::{Path, PathBuf};

use xact_namespace::about::About;

/// The mount point above a path, and the path below it.
pub struct Place {
    pub mount: PathBuf,
    pub below: PathBuf,
}

impl Place {
    /// The topmost folder above `path` on the same file system.
    pub fn of(path: &Path) -> io::Result<Place> {
        let path = path.canonicalize()?;
        let device = About::of_path(&path)?.device;
        let same = |folder: &&Path| About::of_path(folder).is_ok_and(|about| about.device == device);
        let mount = path.ancestors().take_while(same).last().unwrap_or(&path);
        let below = path.strip_prefix(mount).expect("one of its ancestors").to_path_buf();
        Ok(Place { mount: mount.to_path_buf(), below })
    }
}
