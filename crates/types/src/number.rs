//! Newtypes for the numbers of ext4, so that none is mistaken for another.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $repr:ty, $label:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($label, " {}"), self.0)
            }
        }
    };
}

number!(
    /// Number of a block on the volume (physical block).
    BlockNr, u64, "block"
);
number!(
    /// Number of a block within a file (logical block). ext4 files end below 2^32 blocks.
    FileBlock, u32, "file block"
);
number!(
    /// Number of a block group.
    GroupNr, u32, "group"
);
number!(
    /// Inode number. 0 is "none" on disk and never a valid inode.
    Ino, u32, "inode"
);
number!(
    /// Names one commit of a consistency engine: a jbd2 transaction or a generation.
    /// Grows by one from commit to commit while the volume is open; it is not the 32-bit
    /// sequence number of jbd2, which wraps.
    CommitId, u64, "commit"
);

impl Ino {
    /// Inode of the root directory (`EXT4_ROOT_INO`).
    pub const ROOT: Ino = Ino(2);
    /// Inode of the resize file (`EXT4_RESIZE_INO`).
    pub const RESIZE: Ino = Ino(7);
    /// Inode of the journal (`EXT4_JOURNAL_INO`).
    pub const JOURNAL: Ino = Ino(8);
}

impl BlockNr {
    /// The block `count` blocks further on.
    pub fn offset(self, count: u64) -> BlockNr {
        BlockNr(self.0 + count)
    }
}

impl FileBlock {
    /// The file block `count` blocks further on.
    pub fn offset(self, count: u32) -> FileBlock {
        FileBlock(self.0 + count)
    }
}

/// Adjacent blocks of the volume; `len` counts blocks and is not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first block.
    pub start: BlockNr,
    /// Number of blocks.
    pub len: u32,
}

impl Run {
    /// The block after the last one.
    pub fn end(self) -> BlockNr {
        self.start.offset(u64::from(self.len))
    }
}
