//! Volumes mounted by the kernel, for comparisons with xact.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Image, tool};

/// An image that the kernel has mounted; the drop unmounts it, also after a failed test.
pub struct Mount {
    dir: tempfile::TempDir,
}

impl Mount {
    pub fn new(image: &Image) -> Mount {
        let dir = tempfile::tempdir().unwrap();
        tool("mount", &["-o", "loop", image.path_str(), dir.path().to_str().unwrap()], |code| code == 0);
        Mount { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn unmount(self) {}
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(self.dir.path());
    }
}

/// Unmounts, and retries for a while if busy: a process that another test's thread starts has our
/// descriptors open until its exec.
fn unmount(path: &Path) {
    for _ in 0..100 {
        let output = Command::new("umount").arg(path).output().expect("umount is needed for this test");
        if output.status.success() {
            return;
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if !text.contains("busy") {
            eprintln!("{text}");
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // A failed test must not end in a second panic.
    assert!(std::thread::panicking(), "{} cannot be unmounted", path.display());
}
