//! Open files that were deleted, and unfinished truncations, on a volume that is checked as of a
//! moment of its use: their blocks and inodes are in use, though no name leads to them.

use xact_layout::feature::compat;
use xact_layout::orphan;
use xact_types::{Ino, Result, Site};

use super::Checker;

impl Checker<'_> {
    /// Finds those on the list and in the orphan file. Damage in that file is reported later.
    pub(crate) fn find_orphans(&mut self) -> Result<()> {
        let sb = &self.volume.sb;
        let mut next = Ino(sb.last_orphan());
        while next.0 != 0 {
            let Some(inode) = self.volume.inode(next)? else {
                let what = format!("the orphan list names {}, which is not an inode of this volume", next.0);
                self.report.problem(Site::Superblock, what);
                break;
            };
            if !self.orphans.insert(next) {
                self.report.problem(Site::Inode(next), "is on the orphan list twice");
                break;
            }
            // On the list, the deletion time is the number of the next inode.
            next = Ino(inode.dtime());
        }
        if sb.has_compat(compat::ORPHAN_FILE)
            && let Some(inode) = self.volume.inode(Ino(sb.orphan_file_inum()))?
        {
            let ino = Ino(sb.orphan_file_inum());
            let blocks = (inode.size() / u64::from(sb.block_size())).min(1 << 13) as u32;
            let mapped = self.mapped_again(ino, &inode)?;
            for at in 0..blocks {
                let Ok((_, bytes)) = self.file_block(ino, &mapped, at) else { break };
                let entries = 0..orphan::entries_per_block(bytes.len());
                self.orphans.extend(entries.filter_map(|i| orphan::entry(&bytes, i)));
            }
        }
        if !self.orphans.is_empty() {
            let waiting = match self.orphans.len() {
                1 => "one inode waits for its".to_owned(),
                count => format!("{count} inodes wait for their"),
            };
            self.report.remark(format!("{waiting} deletion or truncation"));
        }
        Ok(())
    }
}
