//! Images that are made and examined with the real e2fsprogs. A missing tool fails the test with a
//! message.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use tempfile::TempDir;
use xact_consistency::{Engine, EngineOptions, open_journal};
use xact_device::{BlockDevice, FileDevice, MemoryDevice, OpenMode};

/// Runs a tool and returns its output. A tool that is missing or fails fails the test.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = try_run(program, args);
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?} failed: {text}");
    text
}

pub fn try_run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("this test needs the program {program:?}, which cannot be run: {e}"))
}

/// An image file in a folder of its own. Both are deleted with the value.
pub struct Image {
    folder: TempDir,
    pub path: PathBuf,
}

impl Image {
    /// `mke2fs` with `options` on a file of `size_mib`.
    pub fn make(size_mib: u64, options: &[&str]) -> Image {
        let folder = tempfile::tempdir().expect("a folder for the test's image");
        let path = folder.path().join("image");
        let file = std::fs::File::create(&path).expect("an image file");
        file.set_len(size_mib << 20).expect("its size");
        let mut args = vec!["-q", "-F"];
        args.extend(options);
        args.push(path.to_str().expect("a plain path"));
        run("mke2fs", &args);
        Image { folder, path }
    }

    pub fn of_bytes(bytes: &[u8]) -> Image {
        let folder = tempfile::tempdir().expect("a folder for the test's image");
        let path = folder.path().join("image");
        std::fs::write(&path, bytes).expect("an image file");
        Image { folder, path }
    }

    pub fn str(&self) -> &str {
        self.path.to_str().expect("a plain path")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn copy(&self) -> Image {
        Image::of_bytes(&self.bytes())
    }

    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).expect("reading the image")
    }

    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::new(FileDevice::open(&self.path, OpenMode::ReadWrite).expect("opening the image"))
    }

    pub fn memory(&self) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::from_bytes(self.bytes()))
    }

    /// Fails the test unless e2fsck accepts the image.
    pub fn fsck(&self) {
        run("e2fsck", &["-fn", self.str()]);
    }

    pub fn debugfs(&self, command: &str) -> String {
        // Its version goes to the error output.
        let output = try_run("debugfs", &["-R", command, self.str()]);
        assert!(output.status.success(), "debugfs {command:?} failed");
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }

    /// Byte offsets of the journal's blocks, on a volume whose journal has an extent tree without
    /// inner nodes.
    pub fn journal_blocks(&self, block_size: usize) -> Vec<usize> {
        let blocks = self.debugfs("blocks <8>");
        blocks.split_whitespace().map(|b| b.parse::<usize>().expect("a block number") * block_size).collect()
    }

    /// Replays the log with debugfs.
    pub fn debugfs_replay(&self) {
        run("debugfs", &["-w", "-R", "jr", self.str()]);
    }
}

pub fn open(device: Arc<dyn BlockDevice>) -> Arc<Engine> {
    open_journal(device, quiet()).expect("opening the journal")
}

/// Options without any automatic work.
pub fn quiet() -> EngineOptions {
    EngineOptions { commit_interval: std::time::Duration::from_secs(3600), ..EngineOptions::default() }
}

/// Whether this crate was built with the ordering rules that can be left out.
pub const HAS_FAULTS: bool = cfg!(feature = "faults");
