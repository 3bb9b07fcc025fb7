//! The check of one ext4 volume: the state that its steps share, and their order. Each step is one
//! file.

mod bitmaps;
mod contents;
mod dirs;
mod fields;
mod fixed;
mod found;
mod inodes;
mod journal;
mod map;
mod missing;
mod orphans;
mod quotas;
mod reserved;
mod special;
mod tree;
mod xattrs;

use xact_layout::feature::incompat;
use xact_types::{Ino, Result};

use self::found::FoundInodes;
pub use self::missing::{Missing, MissingPart, MissingReport, missing};
use crate::report::{Progress, Report};
use crate::used::UsedBlocks;
use crate::volume::Volume;

/// The state that the steps share.
pub(crate) struct Checker<'a> {
    volume: &'a Volume,
    pub(crate) report: Report,
    pub(crate) in_use: bool,
    /// The journal is damaged, which is reported already.
    pub(crate) without_journal: bool,
    /// Inodes in use without a name, on a volume that is checked as of a moment of its use.
    orphans: std::collections::BTreeSet<Ino>,
    used: UsedBlocks,
    seen: FoundInodes,
    /// Blocks that a map leads to though they were claimed before, and that are read all the same:
    /// in all not more than the volume has, so that a crafted volume ends the check.
    shared_blocks: u64,
    /// The first file that needs `large_file`.
    large_file: Option<Ino>,
    directories: Vec<dirs::Directory>,
    /// For each directory with a name, the directory that has the name.
    parents: std::collections::BTreeMap<Ino, Ino>,
    /// Attribute blocks met so far.
    xattr_blocks: std::collections::BTreeMap<u64, xattrs::SharedBlock>,
    /// Attributes whose value is in an inode, by that inode.
    value_users: std::collections::BTreeMap<u32, u64>,
    /// The number of these attributes, according to that inode.
    value_counts: std::collections::BTreeMap<u32, u64>,
    /// The usage of each user, group and project.
    usage: quotas::SeenUsage,
    progress: Progress<'a>,
}

impl<'a> Checker<'a> {
    pub(crate) fn new(volume: &'a Volume, report: Report, progress: Progress<'a>) -> Checker<'a> {
        Checker {
            used: UsedBlocks::new(volume.sb.blocks_count()),
            seen: FoundInodes::new(&volume.sb),
            shared_blocks: 0,
            large_file: None,
            volume,
            report,
            in_use: false,
            without_journal: false,
            orphans: Default::default(),
            directories: Vec::new(),
            parents: Default::default(),
            xattr_blocks: Default::default(),
            value_users: Default::default(),
            value_counts: Default::default(),
            usage: Default::default(),
            progress,
        }
    }
}

impl Checker<'_> {
    /// Whether files may be without a name: open, or partly deleted, at that moment.
    fn was_in_use(&self) -> bool {
        self.in_use || self.report.is_replayed
    }

    pub(crate) fn run(&mut self) -> Result<()> {
        (self.progress)("superblock and groups", 0.0);
        self.check_fixed()?;
        if self.was_in_use() {
            self.find_orphans()?;
        }
        self.check_inodes()?;
        self.check_special()?;
        self.check_journal()?;
        self.check_shared_xattrs();
        self.check_directories()?;
        (self.progress)("tree", 0.0);
        self.check_tree();
        self.check_bitmaps()?;
        self.check_quotas()?;
        if self.volume.sb.has_incompat(incompat::RECOVER) {
            self.report.remark("the superblock says that the journal needs recovery".into());
        }
        Ok(())
    }
}
