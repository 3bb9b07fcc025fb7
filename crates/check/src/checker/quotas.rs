//! Quota files: compares the recorded usage of users, groups and projects with the findings.

use std::collections::{BTreeMap, BTreeSet};

use xact_layout::feature::ro_compat;
use xact_layout::get_u32;
use xact_layout::inode::{Inode, flag};
use xact_layout::quota::{
    Info, LEAF_ENTRIES, LEVELS, PIECE_BYTES, QuotaEntry, QuotaKind, ROOT_PIECE, entry_at,
};
use xact_types::{Error, Ino, Result, Site};

use super::Checker;
use super::map::Mapped;

/// Bytes and inodes.
type Usage = (u64, u64);

/// The usage found, by kind and id.
#[derive(Default)]
pub(crate) struct SeenUsage {
    by_id: BTreeMap<(QuotaKind, u32), Usage>,
}

impl Checker<'_> {
    /// Whether an inode is one of the quota files.
    pub(crate) fn is_quota_file(&self, ino: Ino) -> bool {
        let sb = &self.volume.sb;
        sb.has_ro_compat(ro_compat::QUOTA) && QuotaKind::ALL.iter().any(|kind| kind.inode(sb) == ino.0)
    }

    /// Counts an inode in use, with the blocks and inodes that belong to its owner.
    pub(crate) fn count_usage(&mut self, ino: Ino, inode: &Inode, blocks: u64, inodes: u64) {
        let sb = &self.volume.sb;
        let counts = sb.has_ro_compat(ro_compat::QUOTA)
            && (ino == Ino::ROOT || ino >= sb.first_inode())
            && inode.flags() & flag::EA_INODE == 0
            && !self.is_internal(ino);
        if !counts {
            return;
        }
        let bytes = blocks * u64::from(sb.block_size());
        let project = inode.project();
        for (kind, id) in
            [(QuotaKind::User, inode.uid()), (QuotaKind::Group, inode.gid()), (QuotaKind::Project, project)]
        {
            let usage = self.usage.by_id.entry((kind, id)).or_default();
            usage.0 += bytes;
            usage.1 += inodes;
        }
    }

    /// Numbers of quota files that cannot be: those of other special inodes, and larger ones than
    /// there are (`e2fsck_validate_quota_inodes`).
    fn check_quota_numbers(&mut self) {
        /// Bad blocks, root, boot loader, undelete, resize, journal, and two that are not in use.
        const SPECIAL: [u32; 8] = [1, 2, 5, 6, 7, 8, 9, 10];
        let sb = &self.volume.sb;
        for kind in QuotaKind::ALL {
            let number = kind.inode(sb);
            if SPECIAL.contains(&number) || number > sb.inodes_count() {
                self.report.problem(Site::Superblock, format!("inode {number} cannot be a quota file"));
            }
        }
    }

    pub(crate) fn check_quotas(&mut self) -> Result<()> {
        self.check_quota_numbers();
        if !self.volume.sb.has_ro_compat(ro_compat::QUOTA) {
            return Ok(());
        }
        for kind in QuotaKind::ALL {
            let ino = Ino(kind.inode(&self.volume.sb));
            if ino.0 == 0 {
                continue;
            }
            let Some(inode) = self.volume.inode(ino)? else { continue };
            let entries = self.read_quota_file(kind, ino, &inode);
            if let Some(entries) = self.report.note(entries)? {
                self.compare_usage(kind, ino, &entries);
            }
        }
        Ok(())
    }

    fn compare_usage(&mut self, kind: QuotaKind, ino: Ino, entries: &BTreeMap<u32, Usage>) {
        let seen: BTreeMap<u32, Usage> = (self.usage.by_id.range((kind, 0)..=(kind, u32::MAX)))
            .map(|((_, id), usage)| (*id, *usage))
            .collect();
        let ids: BTreeSet<u32> = entries.keys().chain(seen.keys()).copied().collect();
        for id in ids {
            let used = seen.get(&id).copied().unwrap_or_default();
            let says = match entries.get(&id) {
                Some(says) if *says == used => continue,
                Some((bytes, inodes)) => format!("says {bytes} bytes and {inodes} inodes"),
                None => "has no entry".into(),
            };
            let what = format!("of id {id} it {says}, and there are {} bytes and {} inodes", used.0, used.1);
            self.report.problem(Site::Inode(ino), what);
        }
    }

    fn read_quota_file(&mut self, kind: QuotaKind, ino: Ino, inode: &Inode) -> Result<BTreeMap<u32, Usage>> {
        let corrupt = |what| Err(Error::corrupt(Site::Inode(ino), what));
        if !inode.is_regular() {
            return corrupt("is not a quota file");
        }
        let mapped = self.mapped_again(ino, inode)?;
        let first = self.quota_piece(ino, &mapped, 0)?;
        let decode = |kind| Info::decode(&first, kind, Site::Inode(ino));
        let info = match decode(kind) {
            Ok(info) => info,
            // Linux does not use such a file; e2fsck accepts it.
            Err(error) => match QuotaKind::ALL.into_iter().find_map(|other| decode(other).ok()) {
                Some(info) => {
                    self.report.remark(format!("{ino} has the header of a quota file of another kind"));
                    info
                }
                None => return Err(error),
            },
        };
        let pieces = info.blocks();
        if u64::from(pieces) * PIECE_BYTES as u64 > mapped.end * u64::from(self.volume.sb.block_size()) {
            return corrupt("counts more than it holds");
        }
        let mut entries = BTreeMap::new();
        let mut met = BTreeSet::new();
        let mut waiting = vec![(ROOT_PIECE, 0)];
        while let Some((piece, level)) = waiting.pop() {
            if piece < ROOT_PIECE || piece >= pieces {
                return corrupt("its tree leads astray");
            }
            if !met.insert(piece) {
                continue;
            }
            let bytes = self.quota_piece(ino, &mapped, piece)?;
            if level == LEVELS {
                for index in 0..LEAF_ENTRIES {
                    if let Some(entry) = QuotaEntry::decode(&bytes[entry_at(index)..]) {
                        entries.insert(entry.id(), (entry.curspace(), entry.curinodes()));
                    }
                }
                continue;
            }
            let below = bytes.chunks_exact(4).map(|word| get_u32(word, 0)).filter(|&piece| piece != 0);
            waiting.extend(below.map(|piece| (piece, level + 1)));
        }
        Ok(entries)
    }

    fn quota_piece(&self, ino: Ino, mapped: &Mapped, piece: u32) -> Result<Vec<u8>> {
        let byte = piece as usize * PIECE_BYTES;
        let block_size = self.volume.block_size();
        let (_, bytes) = self.file_block(ino, mapped, (byte / block_size) as u32)?;
        Ok(bytes[byte % block_size..][..PIECE_BYTES].to_vec())
    }
}
