//! How much one step of a long piece of work takes.
//!
//! Between two steps other threads work, and a crash may find the work half done. Small volumes
//! would never have a second step, so crash tests lower these numbers until each border is crossed.
//! No caller needs other values than the defaults.

use std::time::Duration;

/// The sizes of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Pages of one inode that are written back together; a writer of the file may have to wait for
    /// all of them.
    pub batch_pages: usize,
    /// Inodes that are written back together; a writer to one of them may have to wait for all.
    pub group_inodes: usize,
    /// Pages of all inodes that are written back together, beyond which no inode is added.
    pub group_pages: usize,
    /// Consecutive pages that go through the journal in one handle.
    pub journaled_pages: u32,
    /// Blocks of directories and symbolic links that one handle removes without a credit for each.
    /// Each may need a revoke record in the journal: the smallest log of mke2fs takes 15,000 in a
    /// commit.
    pub forgotten_blocks: u32,
    /// Old versions of file data that are written to the volume together.
    pub spilled_blocks: usize,
    /// Blocks that a checkpoint writes home between two checks for blocks that were freed.
    pub checkpoint_blocks: usize,
    /// With generations: data blocks that are moved to the pool in one handle.
    pub moved_blocks: usize,
    /// With generations: changed blocks of the running commit from which on an fsync of one file
    /// does not write all of them.
    pub ahead_blocks: usize,
    /// With generations: blocks that a commit without other changes writes home. They are in memory
    /// until then.
    pub home_blocks: usize,
    /// Bytes of copies in the log that recovery holds before it writes them home.
    pub replay_bytes: usize,
    /// Time for which a file is not written back after a part of a write, while the rest of the
    /// write is expected.
    pub next_part: Duration,
}

impl Default for Steps {
    fn default() -> Steps {
        Steps {
            batch_pages: 2048,
            group_inodes: 256,
            group_pages: 256,
            journaled_pages: 32,
            forgotten_blocks: 64,
            spilled_blocks: 256,
            checkpoint_blocks: 512,
            moved_blocks: 64,
            ahead_blocks: 16,
            home_blocks: 1024,
            replay_bytes: 16 << 20,
            next_part: Duration::from_millis(100),
        }
    }
}

impl Steps {
    /// Steps so small that every volume of a test crosses their borders.
    pub const SMALL: Steps = Steps {
        batch_pages: 3,
        group_inodes: 2,
        group_pages: 4,
        journaled_pages: 2,
        forgotten_blocks: 1,
        spilled_blocks: 2,
        checkpoint_blocks: 3,
        moved_blocks: 2,
        ahead_blocks: 1,
        home_blocks: 3,
        replay_bytes: 2048,
        next_part: Duration::from_millis(100),
    };
}
