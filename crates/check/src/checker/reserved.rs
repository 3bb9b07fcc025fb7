//! Inodes with reserved numbers, and those that the superblock names: the list of bad blocks, quota
//! files, the boot loader's, the journal, the orphan file.

use xact_layout::feature::compat;
use xact_layout::get_u32;
use xact_layout::inode::{Inode, flag};
use xact_types::{BlockNr, Ino, Result, Run, Site};

use super::Checker;
use crate::owners::{Use, fixed_use};
use crate::used::UsedBlocks;

/// The list of bad blocks (`EXT4_BAD_INO`).
pub(crate) const BAD_BLOCKS: Ino = Ino(1);
const USER_QUOTA: Ino = Ino(3);
const GROUP_QUOTA: Ino = Ino(4);
const BOOT_LOADER: Ino = Ino(5);

/// The use of an inode that the volume itself owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Journal,
    QuotaFile,
    OrphanFile,
    /// For one of these, on a volume that does not use it.
    Unused(&'static str),
    BootLoader,
    Resize,
    /// Reserved, without a use.
    Reserved,
}

impl Checker<'_> {
    /// The role of an inode; `None` for files, the root included, and the list of bad blocks.
    pub(crate) fn role(&self, ino: Ino) -> Option<Role> {
        let sb = &self.volume.sb;
        let of = |is_used, role, unused| Some(if is_used { role } else { Role::Unused(unused) });
        match ino {
            BAD_BLOCKS | Ino::ROOT => None,
            Ino::JOURNAL => of(sb.journal_inum() == ino.0, Role::Journal, "journal"),
            USER_QUOTA | GROUP_QUOTA => of(self.is_quota_file(ino), Role::QuotaFile, "quota file"),
            BOOT_LOADER => Some(Role::BootLoader),
            Ino::RESIZE => Some(Role::Resize),
            _ if ino.0 == sb.prj_quota_inum() => {
                of(self.is_quota_file(ino), Role::QuotaFile, "quota file of projects")
            }
            _ if ino.0 == sb.orphan_file_inum() => {
                of(sb.has_compat(compat::ORPHAN_FILE), Role::OrphanFile, "orphan file")
            }
            _ if sb.has_compat(compat::HAS_JOURNAL) && ino.0 == sb.journal_inum() => Some(Role::Journal),
            _ if self.is_quota_file(ino) => Some(Role::QuotaFile),
            _ => (ino < sb.first_inode()).then_some(Role::Reserved),
        }
    }

    /// Reports what does not fit the inode's role. False if nothing else of it is to be checked.
    pub(crate) fn check_role(&mut self, ino: Ino, inode: &Inode, role: Role) -> bool {
        let site = Site::Inode(ino);
        let has_mode = inode.mode() != 0;
        let wrong = match role {
            Role::Unused(name) => {
                let is_clear =
                    inode.links_count() == 0 && inode.blocks_lo() == 0 && get_u32(inode.block_area(), 0) == 0;
                if !is_clear {
                    let what =
                        format!("is reserved for a {name}, which the volume does not have, and is not empty");
                    self.report.problem(site, what);
                }
                return false;
            }
            Role::Journal => !inode.is_regular() || inode.flags() & flag::ENCRYPT != 0,
            Role::QuotaFile => !inode.is_regular(),
            Role::OrphanFile => !inode.is_regular() || inode.links_count() == 0,
            Role::BootLoader => inode.is_directory(),
            Role::Resize => has_mode && !inode.is_regular(),
            Role::Reserved => has_mode,
        };
        if wrong {
            let (mode, flags) = (inode.mode(), inode.flags());
            let what = format!(
                "has the mode {mode:o} and the flags {flags:#x}, one of which does not fit its number"
            );
            self.report.problem(site, what);
        }
        true
    }

    /// Claims the blocks of the list of bad blocks, before any file. Inodes that lie in one of them
    /// are in use, whatever they hold: nothing may be stored there.
    pub(crate) fn check_bad_blocks(&mut self) -> Result<()> {
        let site = Site::Inode(BAD_BLOCKS);
        let Some(inode) = self.volume.inode(BAD_BLOCKS)? else { return Ok(()) };
        if inode.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        if !inode.checksum_matches(&self.volume.sb, BAD_BLOCKS) {
            self.report.problem(site, "checksum does not match");
        }
        let is_file = inode.mode() != 0
            || inode.uid_lo() != 0
            || inode.gid_lo() != 0
            || inode.links_count() != 0
            || inode.file_acl_lo() != 0
            || inode.flags() & flag::INLINE_DATA != 0;
        if is_file {
            self.report
                .problem(site, "is the list of bad blocks, and has an owner, links or attributes as a file");
        }
        if self.is_list_link(inode.dtime()) {
            self.report.problem(site, "is part of an orphan list, and the list is not");
        }
        self.check_flags_of_all(BAD_BLOCKS, &inode);
        if inode.block_area().iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        // With no claims but its own: bad blocks may be blocks of the fixed metadata.
        let fixed = std::mem::replace(&mut self.used, UsedBlocks::new(self.volume.sb.blocks_count()));
        let mapped = self.walk_map(BAD_BLOCKS, &inode, true);
        self.used = fixed;
        let Some(mapped) = mapped? else { return Ok(()) };
        for &node in &mapped.nodes {
            self.claim_run(BAD_BLOCKS, Run { start: node, len: 1 });
        }
        for extent in &mapped.extents {
            for block in (extent.run.start.0..extent.run.end().0).map(BlockNr) {
                self.claim_bad_block(block);
            }
        }
        Ok(())
    }

    fn claim_bad_block(&mut self, block: BlockNr) {
        let Some(block) = self.used.claim(Run { start: block, len: 1 }) else { return };
        let site = Site::Inode(BAD_BLOCKS);
        match fixed_use(self.volume, block) {
            Some(Use::Inodes(first, last)) => {
                self.report.remark(format!("{block} is bad, with {first} to {last}"));
                if first == BAD_BLOCKS {
                    self.report.problem(
                        site,
                        format!("{block}, which holds the list of bad blocks, is in the list"),
                    );
                }
                for number in first.0..=last.0 {
                    let seen = self.seen.entry(Ino(number));
                    (seen.used, seen.internal) = (true, true);
                }
            }
            Some(used) => {
                let what = format!("{block} is in the list of bad blocks and in use ({used:?})");
                self.report.problem(site, what);
            }
            None => self.report.problem(site, format!("{block} is in the list of bad blocks and in use")),
        }
    }
}
