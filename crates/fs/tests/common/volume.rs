//! A volume opened with the modules under test, and closed for a check by other programs.

use std::sync::Arc;
use std::time::Duration;

use xact_consistency::{Engine, EngineOptions, Handle};
use xact_fs::alloc::Allocator;
use xact_fs::inode_table::InodeTable;
use xact_layout::inode::Inode;
use xact_layout::superblock::Superblock;
use xact_types::Ino;

use super::{Image, read_superblock, tool};

pub struct Volume {
    pub image: Image,
    pub engine: Arc<Engine>,
    pub alloc: Allocator,
    pub inodes: InodeTable,
}

impl Volume {
    /// Opens the volume with its engine. Only the test commits.
    pub fn open(image: Image) -> Volume {
        let options = EngineOptions { commit_interval: Duration::from_secs(3600), ..Default::default() };
        let device = image.device();
        let engine = xact_consistency::open(device.clone(), options).unwrap();
        let sb = read_superblock(&*device);
        let alloc = xact_fs::fixed_blocks::open_allocator(engine.clone(), sb).unwrap();
        let inodes = InodeTable::new(&alloc);
        Volume { image, engine, alloc, inodes }
    }

    pub fn sb(&self) -> &Superblock {
        self.alloc.superblock()
    }

    pub fn begin(&self, credits: u32) -> Handle {
        Handle::begin(&self.engine, credits).unwrap()
    }

    pub fn write_inode(&self, ino: Ino, inode: &Inode) {
        self.inodes.write(&mut self.begin(InodeTable::CREDITS), ino, inode).unwrap();
    }

    /// Writes everything, closes, and checks the volume with e2fsck.
    pub fn close(self) -> Image {
        self.alloc.write_counts(&mut self.begin(1)).unwrap();
        let image = self.close_unchecked();
        image.assert_clean();
        image
    }

    /// Writes everything and closes.
    pub fn close_unchecked(self) -> Image {
        self.engine.close().unwrap();
        let Volume { image, .. } = self;
        image
    }
}

/// Runs commands of debugfs on an image.
pub fn debugfs(image: &Image, commands: &[&str]) -> String {
    let script = image.dir.path().join("debugfs");
    std::fs::write(&script, commands.join("\n")).unwrap();
    tool("debugfs", &["-w", "-f", script.to_str().unwrap(), image.path_str()], |code| code == 0)
}

/// The inode of a file in an image.
pub fn ino_of(image: &Image, path: &str) -> Ino {
    let text = debugfs(image, &[&format!("stat {path}")]);
    let number = text.split("Inode: ").nth(1).unwrap_or_else(|| panic!("no inode of {path}:\n{text}"));
    Ino(number.split_whitespace().next().unwrap().parse().unwrap())
}
