//! Volumes of mke2fs, which the modules under test change and e2fsck checks.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod mount;
pub mod volume;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use xact_device::{BlockDevice, FileDevice, OpenMode};
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};

/// Runs a tool of e2fsprogs; the test fails if it is missing or `ok` rejects its status.
pub fn tool(name: &str, args: &[&str], ok: impl FnOnce(i32) -> bool) -> String {
    let output = Command::new(name)
        .args(args)
        .env("LC_ALL", "C")
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .output()
        .unwrap_or_else(|error| panic!("{name} is needed for this test (package e2fsprogs): {error}"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let code = output.status.code().unwrap_or(-1);
    assert!(ok(code), "{name} {} ended with {code}:\n{text}", args.join(" "));
    text
}

/// An image file in a directory of its own.
pub struct Image {
    pub dir: tempfile::TempDir,
    pub path: PathBuf,
}

impl Image {
    /// A sparse file of `size_bytes` zeros.
    pub fn empty(size_bytes: u64) -> Image {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(size_bytes).unwrap();
        Image { dir, path }
    }

    /// An image on which `mke2fs -t ext4` ran with further options.
    pub fn mke2fs(size_bytes: u64, options: &[&str]) -> Image {
        let image = Image::empty(size_bytes);
        let mut args = vec!["-q", "-F", "-t", "ext4"];
        args.extend_from_slice(options);
        args.push(image.path_str());
        tool("mke2fs", &args, |code| code == 0);
        image
    }

    pub fn path_str(&self) -> &str {
        self.path.to_str().unwrap()
    }

    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::new(FileDevice::open(&self.path, OpenMode::ReadWrite).unwrap())
    }

    pub fn superblock(&self) -> Superblock {
        read_superblock(&*self.device())
    }

    /// Asserts that e2fsck finds no problem: status 0 and no complaint in its output.
    pub fn assert_clean(&self) {
        assert_clean(&self.path);
    }
}

/// As [`Image::assert_clean`]. Its advice on extent trees with few entries does not count: the
/// kernel's trees get it, too.
pub fn assert_clean(path: &Path) {
    let args = ["-fn", "-E", "no_optimize_extents", path.to_str().unwrap()];
    let text = tool("e2fsck", &args, |_| true);
    let complaint = text.lines().any(|line| {
        !(line.starts_with("e2fsck ")
            || line.starts_with("Pass ")
            || line.contains(" files (") && line.contains(" blocks"))
    });
    assert!(!complaint, "e2fsck complains:\n{text}");
    tool("e2fsck", &args, |code| code == 0);
}

pub fn read_superblock(device: &dyn BlockDevice) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET).unwrap();
    Superblock::decode(&bytes).unwrap()
}
