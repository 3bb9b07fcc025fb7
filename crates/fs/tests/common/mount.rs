//! Volumes mounted by the kernel, for comparing what it does with what xact does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Image, tool};

/// An image that the kernel has mounted; unmounted when dropped, whatever the test came to.
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

/// A process that another test's thread is just starting has our descriptors open until its exec:
/// "busy" is tried again for a while.
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
    // A test that has failed already must not end in a second panic.
    assert!(std::thread::panicking(), "{} cannot be unmounted", path.display());
}
