//! The journal: the superblock names the right inode, and the journal's own superblock is sound.
//! The log in it was replayed, or is empty.

use xact_layout::feature::{compat, incompat};
use xact_layout::jbd2::{JournalSuperblock, MIN_JOURNAL_BLOCKS};
use xact_types::{Ino, Result, Site};

use super::Checker;
use super::map::Mapped;

impl Checker<'_> {
    pub(crate) fn check_journal(&mut self) -> Result<()> {
        let sb = &self.volume.sb;
        let needs_recovery = sb.has_incompat(incompat::RECOVER);
        let on_device = sb.journal_dev() != 0 || sb.journal_uuid() != [0; 16];
        if !sb.has_compat(compat::HAS_JOURNAL) {
            if sb.journal_inum() != 0 || on_device || needs_recovery {
                let what = "names a journal or its recovery without the feature has_journal";
                self.report.problem(Site::Superblock, what);
            }
            return Ok(());
        }
        match (sb.journal_inum() != 0, on_device) {
            (true, false) => {}
            (false, true) => {
                self.report.remark("the journal is on another device, and is not checked".into())
            }
            (false, false) => self.report.problem(Site::Superblock, "names no journal"),
            (true, true) => {
                self.report.problem(Site::Superblock, "names a journal in an inode and one on a device");
            }
        }
        if self.volume.sb.journal_inum() == 0 || self.without_journal {
            return Ok(());
        }
        let sb = &self.volume.sb;
        let ino = Ino(sb.journal_inum());
        let site = Site::Inode(ino);
        let Some(inode) = self.volume.inode(ino)? else {
            self.report.problem(Site::Superblock, "the journal's inode is out of range");
            return Ok(());
        };
        if !inode.is_regular() || inode.links_count() == 0 {
            self.report.problem(site, "the journal's inode is not a file");
            return Ok(());
        }
        let blocks = (inode.size() / u64::from(sb.block_size())) as u32;
        if blocks < MIN_JOURNAL_BLOCKS || !inode.size().is_multiple_of(sb.block_size().into()) {
            self.report.problem(site, "the journal's size is not possible");
            return Ok(());
        }
        let mapped = self.mapped_again(ino, &inode)?;
        if (0..blocks).any(|at| Self::place(&mapped, at).is_none()) {
            self.report.problem(site, "the journal has holes");
            return Ok(());
        }
        let (_, bytes) = self.file_block(ino, &mapped, 0)?;
        let fields = match JournalSuperblock::decode(&bytes) {
            Err(error @ xact_types::Error::Unsupported(_)) => {
                self.report.problem(Site::JournalSuperblock, error.to_string());
                return Ok(());
            }
            result => self.report.note(result)?,
        };
        let Some(fields) = fields else { return Ok(()) };
        if fields.block_size != self.volume.sb.block_size() {
            self.report.problem(Site::JournalSuperblock, "block size is not the volume's");
        }
        if fields.maxlen > blocks {
            self.report.problem(Site::JournalSuperblock, "the journal is longer than its inode");
        }
        if fields.start != 0 && !needs_recovery && !self.in_use {
            let what = "has changes that are not in their places, and the superblock says that it has none";
            self.report.problem(Site::JournalSuperblock, what);
        }
        if fields.errno != 0 {
            self.report.problem(Site::JournalSuperblock, "the journal was aborted after an error");
        }
        Ok(())
    }

    /// The extents of an inode whose blocks are claimed already. Its damage was reported then.
    pub(crate) fn mapped_again(&mut self, ino: Ino, inode: &xact_layout::inode::Inode) -> Result<Mapped> {
        let before = (self.report.problems.len(), self.report.problem_count);
        let used =
            std::mem::replace(&mut self.used, crate::used::UsedBlocks::new(self.volume.sb.blocks_count()));
        let mapped = self.walk_map(ino, inode, true);
        self.used = used;
        self.report.problems.truncate(before.0);
        self.report.problem_count = before.1;
        Ok(mapped?.unwrap_or_default())
    }
}
