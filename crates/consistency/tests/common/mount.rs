//! Mounts by the kernel on loop devices, which are undone when the value is dropped, also after a
//! failed test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::common::run;

/// A loop device over an image.
pub struct Loop {
    pub device: String,
}

impl Loop {
    pub fn attach(image: &Path) -> Loop {
        let device = run("losetup", &["-f", "--show", image.to_str().expect("a plain path")]);
        Loop { device: device.trim().into() }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
    }
}

/// A mounted volume.
pub struct Mount {
    pub path: PathBuf,
    _device: Loop,
}

impl Mount {
    /// Mounts `image` on a new folder in `folder`. Without root and loop devices the test fails.
    pub fn new(image: &Path, folder: &Path, options: &str) -> Mount {
        let device = Loop::attach(image);
        let path = folder.join("mounted");
        std::fs::create_dir_all(&path).expect("a folder to mount on");
        run("mount", &["-t", "ext4", "-o", options, &device.device, path.to_str().expect("a plain path")]);
        Mount { path, _device: device }
    }
}

impl Drop for Mount {
    /// A process that another test's thread is just starting has our descriptors open until it
    /// executes its program, which keeps the mount busy.
    fn drop(&mut self) {
        const TRIES: usize = 200;
        let unmounted = (0..TRIES).any(|_| {
            let done = Command::new("umount").arg(&self.path).status().is_ok_and(|status| status.success());
            if !done {
                std::thread::sleep(Duration::from_millis(50));
            }
            done
        });
        assert!(unmounted || std::thread::panicking(), "cannot unmount {}", self.path.display());
    }
}
