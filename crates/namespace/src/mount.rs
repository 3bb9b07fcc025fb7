//! One mount, from the table of mounts or `statmount`.

use std::path::{Path, PathBuf};

use xact_control::abi::FOLDER;

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// The folder of the file system that is mounted; `/` unless it is a bind mount.
    pub root: PathBuf,
    pub point: PathBuf,
    pub fs_type: String,
    /// For an xact mount: the image.
    pub source: PathBuf,
}

impl Mount {
    /// Whether this is (part of) the private view of a transaction.
    pub fn is_view(&self) -> bool {
        self.root.starts_with(Path::new("/").join(FOLDER))
    }

    /// Whether it is a mount of xact whose source is a block device.
    pub fn is_block(&self) -> bool {
        self.fs_type == "fuseblk.xact"
    }

    /// Whether its type is xact's own.
    pub fn has_our_type(&self) -> bool {
        matches!(self.fs_type.as_str(), "fuse.xact" | "fuseblk.xact")
    }

    /// Whether it may be a mount of xact. Mounts of older versions have the type `fuse`, and some
    /// kernels do not report the subtype.
    pub fn is_fuse(&self) -> bool {
        matches!(self.fs_type.as_str(), "fuse" | "fuse.xact" | "fuseblk" | "fuseblk.xact")
    }
}
