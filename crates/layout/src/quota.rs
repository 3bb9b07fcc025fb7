//! Quota files (`vfsv1`, kernel `fs/quota/quotaio_v2.h` and `quota_tree.h`): the usage of each id.
//!
//! ```text
//! piece 0        header: magic, version      info: grace times, pieces in use, heads of two lists
//! piece 1        root of a radix tree over 32-bit ids: 256 piece numbers for each byte of the id
//! pieces 2..     nodes of the tree, and of its leaves: a header and 14 entries of 72 bytes
//! ```
//! A file is counted in pieces of 1 KiB, whatever the volume's block size. It has no checksums.

use xact_types::{Error, Result, Site};

use crate::bytes::fields;
use crate::superblock::Superblock;
use crate::{get_u16, get_u32, put_u16, put_u32};

/// Bytes of a piece (`V2_DQBLKSIZE`).
pub const PIECE_BYTES: usize = 1024;
/// Piece that holds the tree's root (`QT_TREEOFF`).
pub const ROOT_PIECE: u32 = 1;
/// Levels of nodes above the leaves: a byte of the id for each.
pub const LEVELS: u32 = 4;
/// Bytes of an entry (`struct v2r1_disk_dqblk`).
pub const ENTRY_BYTES: usize = 72;
/// Bytes of a leaf's header (`struct qt_disk_dqdbheader`).
const LEAF_HEADER_BYTES: usize = 16;
/// Entries of a leaf.
pub const LEAF_ENTRIES: usize = (PIECE_BYTES - LEAF_HEADER_BYTES) / ENTRY_BYTES;
/// Bytes of header and info.
pub const INFO_BYTES: usize = 32;
/// Version 1 has 64-bit limits.
const VERSION: u32 = 1;
/// Unit of the limits on space, in bytes (`QIF_DQBLKSIZE`).
pub const LIMIT_UNIT: u64 = 1024;

/// The kinds of ids that a quota file counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuotaKind {
    User,
    Group,
    Project,
}

impl QuotaKind {
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    fn magic(self) -> u32 {
        match self {
            QuotaKind::User => 0xd9c0_1f11,
            QuotaKind::Group => 0xd9c0_1927,
            QuotaKind::Project => 0xd9c0_3f14,
        }
    }

    /// The inode of the quota file; 0 for none.
    pub fn inode(self, sb: &Superblock) -> u32 {
        match self {
            QuotaKind::User => sb.usr_quota_inum(),
            QuotaKind::Group => sb.grp_quota_inum(),
            QuotaKind::Project => sb.prj_quota_inum(),
        }
    }
}

/// Header and info, the first [`INFO_BYTES`] of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    bytes: [u8; INFO_BYTES],
}

impl Info {
    /// Errors: `Corrupt` for another magic number or version.
    pub fn decode(bytes: &[u8], kind: QuotaKind, site: Site) -> Result<Info> {
        let bytes: [u8; INFO_BYTES] = bytes[..INFO_BYTES].try_into().expect("32 bytes");
        if get_u32(&bytes, 0) != kind.magic() || get_u32(&bytes, 4) != VERSION {
            return Err(Error::corrupt(site, "is not a quota file of this kind"));
        }
        Ok(Info { bytes })
    }

    pub fn as_bytes(&self) -> &[u8; INFO_BYTES] {
        &self.bytes
    }

    fields! {
        /// Seconds that space may stay above its soft limit.
        bgrace, set_bgrace: u32 @ 8;
        /// Seconds that the number of inodes may stay above its soft limit.
        igrace, set_igrace: u32 @ 12;
        /// Pieces in the file.
        blocks, set_blocks: u32 @ 20;
        /// First piece that is free; 0 for none.
        free_blk, set_free_blk: u32 @ 24;
        /// First leaf with a free entry; 0 for none.
        free_entry, set_free_entry: u32 @ 28;
    }
}

/// The index of an id's child in a node; `level` 0 is the root.
pub fn slot(id: u32, level: u32) -> usize {
    4 * (id >> (8 * (LEVELS - 1 - level)) & 0xFF) as usize
}

/// Next and previous leaf in the list of those with free entries, and the number of entries in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafHeader {
    pub next_free: u32,
    pub previous_free: u32,
    pub entries: u16,
}

impl LeafHeader {
    pub fn decode(leaf: &[u8]) -> LeafHeader {
        LeafHeader { next_free: get_u32(leaf, 0), previous_free: get_u32(leaf, 4), entries: get_u16(leaf, 8) }
    }

    pub fn encode(&self, leaf: &mut [u8]) {
        put_u32(leaf, 0, self.next_free);
        put_u32(leaf, 4, self.previous_free);
        put_u16(leaf, 8, self.entries);
    }
}

/// The offset of entry `index` of a leaf.
pub fn entry_at(index: usize) -> usize {
    LEAF_HEADER_BYTES + index * ENTRY_BYTES
}

/// The usage and limits of one id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaEntry {
    bytes: [u8; ENTRY_BYTES],
}

impl QuotaEntry {
    /// An entry without usage and limits. With id 0 it would look like a free one, so it has the
    /// grace time that the kernel gives it.
    pub fn new(id: u32) -> QuotaEntry {
        let mut entry = QuotaEntry { bytes: [0; ENTRY_BYTES] };
        entry.set_id(id);
        entry.set_itime(u64::from(id == 0));
        entry
    }

    /// The entry in these bytes; `None` for a free one.
    pub fn decode(bytes: &[u8]) -> Option<QuotaEntry> {
        let bytes: [u8; ENTRY_BYTES] = bytes[..ENTRY_BYTES].try_into().expect("72 bytes");
        bytes.iter().any(|&byte| byte != 0).then_some(QuotaEntry { bytes })
    }

    /// The entry in its form on disk; see [`QuotaEntry::new`] for id 0.
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut entry = self.clone();
        if entry.bytes.iter().all(|&byte| byte == 0) {
            entry.set_itime(1);
        }
        entry.bytes
    }

    fields! {
        id, set_id: u32 @ 0;
        ihardlimit, set_ihardlimit: u64 @ 8;
        isoftlimit, set_isoftlimit: u64 @ 16;
        curinodes, set_curinodes: u64 @ 24;
        /// In units of [`LIMIT_UNIT`].
        bhardlimit, set_bhardlimit: u64 @ 32;
        bsoftlimit, set_bsoftlimit: u64 @ 40;
        /// In bytes.
        curspace, set_curspace: u64 @ 48;
        /// The time when space has to be below its soft limit again, in seconds since 1970; 0: it
        /// is below.
        btime, set_btime: u64 @ 56;
        itime, set_itime: u64 @ 64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_through_its_bytes() {
        assert_eq!([0, 1, 2, 3].map(|level| slot(0x0102_03FF, level)), [4, 8, 12, 4 * 255]);
    }

    #[test]
    fn an_entry_of_root_without_usage_is_no_free_one() {
        let entry = QuotaEntry::new(0);
        assert_eq!(QuotaEntry::decode(&entry.encode()), Some(entry.clone()));
        let mut used = entry;
        used.set_itime(0);
        assert!(QuotaEntry::decode(&used.encode()).is_some());
        assert_eq!(QuotaEntry::decode(&[0; ENTRY_BYTES]), None);
        assert_eq!(entry_at(LEAF_ENTRIES), PIECE_BYTES);
    }
}
