//! Group descriptors (`struct ext4_group_desc`, 32 or 64 bytes) and their checksums.

use xact_types::{BlockNr, GroupNr};

use crate::checksum::{crc16, crc32c};
use crate::feature::{incompat, ro_compat};
use crate::superblock::Superblock;
use crate::{get_u16, get_u32, put_u16, put_u32};

/// `bg_flags`: the inode bitmap and table were never written (`EXT4_BG_INODE_UNINIT`).
pub const INODE_UNINIT: u16 = 1;
/// `bg_flags`: the block bitmap was never written (`EXT4_BG_BLOCK_UNINIT`).
pub const BLOCK_UNINIT: u16 = 2;
/// `bg_flags`: the unused part of the inode table holds zeros (`EXT4_BG_INODE_ZEROED`).
pub const INODE_ZEROED: u16 = 4;

const CHECKSUM_AT: usize = 0x1E;

/// A group descriptor's bytes with accessors; in 32-byte descriptors the fields of the second half
/// read as 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDesc {
    bytes: Vec<u8>,
}

macro_rules! wide {
    ($($(#[$doc:meta])* $get:ident, $set:ident: $lo:literal, $hi:literal;)*) => {
        $(
            $(#[$doc])*
            pub fn $get(&self) -> u32 {
                let low = u32::from(get_u16(&self.bytes, $lo));
                if self.is_wide() { low | u32::from(get_u16(&self.bytes, $hi)) << 16 } else { low }
            }
            pub fn $set(&mut self, value: u32) {
                put_u16(&mut self.bytes, $lo, value as u16);
                if self.is_wide() {
                    put_u16(&mut self.bytes, $hi, (value >> 16) as u16);
                }
            }
        )*
    };
}

macro_rules! block {
    ($($get:ident, $set:ident: $lo:literal, $hi:literal;)*) => {
        $(
            pub fn $get(&self) -> BlockNr {
                let low = u64::from(get_u32(&self.bytes, $lo));
                BlockNr(if self.is_wide() { low | u64::from(get_u32(&self.bytes, $hi)) << 32 } else { low })
            }
            pub fn $set(&mut self, block: BlockNr) {
                put_u32(&mut self.bytes, $lo, block.0 as u32);
                if self.is_wide() {
                    put_u32(&mut self.bytes, $hi, (block.0 >> 32) as u32);
                }
            }
        )*
    };
}

impl GroupDesc {
    /// `bytes` is one descriptor: `desc_size` bytes of the superblock.
    pub fn new(bytes: &[u8]) -> GroupDesc {
        assert!(bytes.len() >= 32, "a group descriptor has at least 32 bytes");
        GroupDesc { bytes: bytes.to_vec() }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn is_wide(&self) -> bool {
        self.bytes.len() >= 64
    }

    block! {
        block_bitmap, set_block_bitmap: 0x00, 0x20;
        inode_bitmap, set_inode_bitmap: 0x04, 0x24;
        inode_table, set_inode_table: 0x08, 0x28;
    }

    wide! {
        free_blocks, set_free_blocks: 0x0C, 0x2C;
        free_inodes, set_free_inodes: 0x0E, 0x2E;
        used_dirs, set_used_dirs: 0x10, 0x30;
        block_bitmap_csum, set_block_bitmap_csum: 0x18, 0x38;
        inode_bitmap_csum, set_inode_bitmap_csum: 0x1A, 0x3A;
        /// Inodes at the end of the table that were never used (`bg_itable_unused`).
        itable_unused, set_itable_unused: 0x1C, 0x32;
    }

    pub fn flags(&self) -> u16 {
        get_u16(&self.bytes, 0x12)
    }

    pub fn set_flags(&mut self, flags: u16) {
        put_u16(&mut self.bytes, 0x12, flags);
    }

    pub fn has_flag(&self, flag: u16) -> bool {
        self.flags() & flag != 0
    }

    /// The value of `bg_checksum`; `None` on volumes without checksums.
    fn checksum(&self, sb: &Superblock, group: GroupNr) -> Option<u16> {
        let number = group.0.to_le_bytes();
        let rest = &self.bytes[CHECKSUM_AT + 2..];
        if sb.has_metadata_csum() {
            let crc = crc32c(sb.checksum_seed(), &number);
            let crc = crc32c(crc, &self.bytes[..CHECKSUM_AT]);
            let crc = crc32c(crc, &[0, 0]);
            return Some(crc32c(crc, rest) as u16);
        }
        if sb.has_ro_compat(ro_compat::GDT_CSUM) {
            let crc = crc16(!0, &sb.uuid());
            let crc = crc16(crc, &number);
            let crc = crc16(crc, &self.bytes[..CHECKSUM_AT]);
            let with_rest = sb.has_incompat(incompat::SIXTY_FOUR_BIT) && !rest.is_empty();
            return Some(if with_rest { crc16(crc, rest) } else { crc });
        }
        None
    }

    /// Stores the checksum; to be called after the last change.
    pub fn seal(&mut self, sb: &Superblock, group: GroupNr) {
        let sum = self.checksum(sb, group).unwrap_or(0);
        put_u16(&mut self.bytes, CHECKSUM_AT, sum);
    }

    pub fn checksum_matches(&self, sb: &Superblock, group: GroupNr) -> bool {
        self.checksum(sb, group).is_none_or(|sum| sum == get_u16(&self.bytes, CHECKSUM_AT))
    }
}

/// Checksum of a block or inode bitmap for the group descriptor, over the first `len_bytes` of the
/// bitmap block (`clusters_per_group / 8`, `inodes_per_group / 8`). A 32-byte descriptor keeps its
/// low half, which `set_…_bitmap_csum` and `bitmap_csum_matches` take into account.
pub fn bitmap_checksum(sb: &Superblock, bitmap: &[u8], len_bytes: usize) -> u32 {
    crc32c(sb.checksum_seed(), &bitmap[..len_bytes])
}

/// Compares a stored bitmap checksum with a computed one in the descriptor's width.
pub fn bitmap_csum_matches(sb: &Superblock, stored: u32, computed: u32) -> bool {
    if sb.desc_size() >= 64 { stored == computed } else { stored == computed & 0xFFFF }
}
