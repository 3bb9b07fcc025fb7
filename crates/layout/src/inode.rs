//! Inodes (`struct ext4_inode`, 128 bytes and more).

use xact_types::{Ino, Timestamp};

use crate::bytes::fields;
use crate::checksum::crc32c;
use crate::feature::ro_compat;
use crate::superblock::Superblock;
use crate::{get_u16, get_u32, put_u16, put_u32};

/// `i_mode` file types.
pub mod mode {
    pub const TYPE_MASK: u16 = 0xF000;
    pub const FIFO: u16 = 0x1000;
    pub const CHARACTER: u16 = 0x2000;
    pub const DIRECTORY: u16 = 0x4000;
    pub const BLOCK: u16 = 0x6000;
    pub const REGULAR: u16 = 0x8000;
    pub const SYMLINK: u16 = 0xA000;
    pub const SOCKET: u16 = 0xC000;
}

/// `i_flags`.
pub mod flag {
    pub const SYNC: u32 = 0x8;
    pub const IMMUTABLE: u32 = 0x10;
    pub const APPEND: u32 = 0x20;
    pub const NODUMP: u32 = 0x40;
    pub const NOATIME: u32 = 0x80;
    pub const ENCRYPT: u32 = 0x800;
    /// The directory has a hash index.
    pub const INDEX: u32 = 0x1000;
    /// Used by the AFS file system directly, without a name.
    pub const IMAGIC: u32 = 0x2000;
    pub const JOURNAL_DATA: u32 = 0x4000;
    pub const DIRSYNC: u32 = 0x10000;
    pub const TOPDIR: u32 = 0x20000;
    /// `i_blocks` counts file-system blocks instead of sectors.
    pub const HUGE_FILE: u32 = 0x40000;
    /// `i_block` is the root of an extent tree.
    pub const EXTENTS: u32 = 0x80000;
    pub const VERITY: u32 = 0x100000;
    pub const EA_INODE: u32 = 0x200000;
    pub const INLINE_DATA: u32 = 0x1000_0000;
    pub const PROJECT_INHERIT: u32 = 0x2000_0000;
    pub const CASEFOLD: u32 = 0x4000_0000;
    /// Flags that `chattr` may change (`EXT4_FL_USER_MODIFIABLE`, as far as xact knows them).
    pub const USER_MODIFIABLE: u32 = 0x1
        | 0x2
        | 0x4
        | SYNC
        | IMMUTABLE
        | APPEND
        | NODUMP
        | NOATIME
        | JOURNAL_DATA
        | 0x8000
        | DIRSYNC
        | TOPDIR
        | PROJECT_INHERIT;
    /// Flags that `lsattr` shows (`EXT4_FL_USER_VISIBLE`).
    pub const USER_VISIBLE: u32 = 0x705B_DFFF;
    /// Flags that a new inode inherits from its folder (`EXT4_FL_INHERITED`).
    pub const INHERITED: u32 =
        0x1 | 0x2 | 0x4 | SYNC | NODUMP | NOATIME | JOURNAL_DATA | 0x8000 | DIRSYNC | PROJECT_INHERIT;
}

/// Bytes of `i_block`: 15 block pointers, an extent root, or a short symbolic link.
pub const BLOCK_AREA_BYTES: usize = 60;
pub const BLOCK_AREA_AT: usize = 0x28;
/// Size of the part that every inode has.
pub const GOOD_OLD_BYTES: usize = 128;
/// `i_extra_isize` that covers every field known here.
pub const EXTRA_ISIZE: u16 = 32;

const CHECKSUM_LO_AT: usize = 0x7C;
const CHECKSUM_HI_AT: usize = 0x82;

/// An inode's bytes (`inode_size` of the superblock) with an accessor for each field.
#[derive(Clone, PartialEq, Eq)]
pub struct Inode {
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inode {{ mode: {:o}, links: {}, size: {} }}", self.mode(), self.links_count(), self.size())
    }
}

impl Inode {
    pub fn new(bytes: &[u8]) -> Inode {
        assert!(bytes.len() >= GOOD_OLD_BYTES, "an inode has at least 128 bytes");
        Inode { bytes: bytes.to_vec() }
    }

    pub fn zeroed(inode_size: u16) -> Inode {
        Inode { bytes: vec![0; usize::from(inode_size)] }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fields! {
        mode, set_mode: u16 @ 0x00;
        uid_lo, set_uid_lo: u16 @ 0x02;
        size_lo, set_size_lo: u32 @ 0x04;
        atime_lo, set_atime_lo: u32 @ 0x08;
        ctime_lo, set_ctime_lo: u32 @ 0x0C;
        mtime_lo, set_mtime_lo: u32 @ 0x10;
        /// Deletion time, or the next inode of the orphan list.
        dtime, set_dtime: u32 @ 0x14;
        gid_lo, set_gid_lo: u16 @ 0x18;
        links_count, set_links_count: u16 @ 0x1A;
        blocks_lo, set_blocks_lo: u32 @ 0x1C;
        flags, set_flags: u32 @ 0x20;
        generation, set_generation: u32 @ 0x64;
        file_acl_lo, set_file_acl_lo: u32 @ 0x68;
        size_hi, set_size_hi: u32 @ 0x6C;
        /// Block of a fragment, which no version of ext4 has (`i_obso_faddr`).
        faddr, set_faddr: u32 @ 0x70;
        blocks_hi, set_blocks_hi: u16 @ 0x74;
        file_acl_hi, set_file_acl_hi: u16 @ 0x76;
        uid_hi, set_uid_hi: u16 @ 0x78;
        gid_hi, set_gid_hi: u16 @ 0x7A;
    }

    pub fn uid(&self) -> u32 {
        u32::from(self.uid_lo()) | u32::from(self.uid_hi()) << 16
    }

    pub fn set_uid(&mut self, uid: u32) {
        self.set_uid_lo(uid as u16);
        self.set_uid_hi((uid >> 16) as u16);
    }

    pub fn gid(&self) -> u32 {
        u32::from(self.gid_lo()) | u32::from(self.gid_hi()) << 16
    }

    pub fn set_gid(&mut self, gid: u32) {
        self.set_gid_lo(gid as u16);
        self.set_gid_hi((gid >> 16) as u16);
    }

    /// The high half is a directory's `i_dir_acl` on old volumes; ext4 uses it for all kinds.
    pub fn size(&self) -> u64 {
        u64::from(self.size_lo()) | u64::from(self.size_hi()) << 32
    }

    pub fn set_size(&mut self, size: u64) {
        self.set_size_lo(size as u32);
        self.set_size_hi((size >> 32) as u32);
    }

    /// Space used, in 512-byte sectors (`ext4_inode_blocks`).
    pub fn sectors(&self, sb: &Superblock) -> u64 {
        if !sb.has_ro_compat(ro_compat::HUGE_FILE) {
            return self.blocks_lo().into();
        }
        let count = u64::from(self.blocks_lo()) | u64::from(self.blocks_hi()) << 32;
        if self.flags() & flag::HUGE_FILE != 0 { count * u64::from(sb.block_size() / 512) } else { count }
    }

    /// `sectors` is a multiple of the block size. Beyond 2^48 sectors the inode counts blocks.
    pub fn set_sectors(&mut self, sb: &Superblock, sectors: u64) {
        let count = if sectors < 1 << 48 {
            self.set_flags(self.flags() & !flag::HUGE_FILE);
            sectors
        } else {
            self.set_flags(self.flags() | flag::HUGE_FILE);
            sectors / u64::from(sb.block_size() / 512)
        };
        self.set_blocks_lo(count as u32);
        self.set_blocks_hi((count >> 32) as u16);
    }

    /// Block of extended attributes; 0 when there is none (`i_file_acl`).
    pub fn xattr_block(&self) -> u64 {
        u64::from(self.file_acl_lo()) | u64::from(self.file_acl_hi()) << 32
    }

    pub fn set_xattr_block(&mut self, block: u64) {
        self.set_file_acl_lo(block as u32);
        self.set_file_acl_hi((block >> 32) as u16);
    }

    pub fn block_area(&self) -> &[u8; BLOCK_AREA_BYTES] {
        self.bytes[BLOCK_AREA_AT..BLOCK_AREA_AT + BLOCK_AREA_BYTES].try_into().expect("60 bytes")
    }

    pub fn set_block_area(&mut self, area: &[u8; BLOCK_AREA_BYTES]) {
        self.bytes[BLOCK_AREA_AT..BLOCK_AREA_AT + BLOCK_AREA_BYTES].copy_from_slice(area);
    }

    /// Bytes of fields after the first 128; 0 in 128-byte inodes, and at most those that fit.
    pub fn extra_isize(&self) -> u16 {
        if self.bytes.len() <= GOOD_OLD_BYTES + 2 {
            return 0;
        }
        get_u16(&self.bytes, 0x80).min((self.bytes.len() - GOOD_OLD_BYTES) as u16)
    }

    pub fn set_extra_isize(&mut self, size: u16) {
        if self.bytes.len() > GOOD_OLD_BYTES {
            put_u16(&mut self.bytes, 0x80, size);
        }
    }

    /// Whether the extra part reaches over the four bytes at `at`.
    fn has_extra(&self, at: usize) -> bool {
        GOOD_OLD_BYTES + usize::from(self.extra_isize()) >= at + 4
    }

    /// The area behind the extra fields, for extended attributes in the inode.
    pub fn xattr_area(&self) -> &[u8] {
        match self.extra_isize() {
            0 => &[],
            extra => &self.bytes[GOOD_OLD_BYTES + usize::from(extra)..],
        }
    }

    pub fn xattr_area_mut(&mut self) -> &mut [u8] {
        match self.extra_isize() {
            0 => &mut [],
            extra => &mut self.bytes[GOOD_OLD_BYTES + usize::from(extra)..],
        }
    }

    pub fn atime(&self) -> Timestamp {
        self.time(0x08, 0x8C)
    }

    pub fn set_atime(&mut self, time: Timestamp) {
        self.set_time(0x08, 0x8C, time);
    }

    pub fn ctime(&self) -> Timestamp {
        self.time(0x0C, 0x84)
    }

    pub fn set_ctime(&mut self, time: Timestamp) {
        self.set_time(0x0C, 0x84, time);
    }

    /// The number of attributes whose value this inode holds. Linux keeps it in the fields for the
    /// time of change and the version. `None` for an inode of Lustre, which has no such count
    /// (`ext2fs_get_ea_inode_ref`).
    pub fn value_users(&self) -> Option<u64> {
        let (atime, ctime) = (get_u32(&self.bytes, 0x08), get_u32(&self.bytes, 0x0C));
        let count = u64::from(ctime) << 32 | u64::from(get_u32(&self.bytes, 0x24));
        (atime != ctime).then_some(count)
    }

    pub fn mtime(&self) -> Timestamp {
        self.time(0x10, 0x88)
    }

    pub fn set_mtime(&mut self, time: Timestamp) {
        self.set_time(0x10, 0x88, time);
    }

    /// Time of birth; `None` in inodes too small to hold it.
    pub fn crtime(&self) -> Option<Timestamp> {
        self.has_extra(0x90).then(|| self.time(0x90, 0x94))
    }

    pub fn set_crtime(&mut self, time: Timestamp) {
        if self.has_extra(0x90) {
            self.set_time(0x90, 0x94, time);
        }
    }

    pub fn project(&self) -> u32 {
        if self.has_project() { get_u32(&self.bytes, 0x9C) } else { 0 }
    }

    /// Whether the inode has the field for a project number.
    pub fn has_project(&self) -> bool {
        self.has_extra(0x9C)
    }

    pub fn set_project(&mut self, project: u32) {
        if self.has_project() {
            put_u32(&mut self.bytes, 0x9C, project);
        }
    }

    /// Seconds at `at`; at `extra_at` two bits of epoch and thirty of nanoseconds.
    fn time(&self, at: usize, extra_at: usize) -> Timestamp {
        let base = i64::from(get_u32(&self.bytes, at) as i32);
        if !self.has_extra(extra_at) {
            return Timestamp { secs: base, nanos: 0 };
        }
        let extra = get_u32(&self.bytes, extra_at);
        Timestamp { secs: base + (i64::from(extra & 3) << 32), nanos: (extra >> 2).min(999_999_999) }
    }

    /// Times outside the inode's range are cut to its ends, as the kernel does.
    fn set_time(&mut self, at: usize, extra_at: usize, time: Timestamp) {
        let wide = self.has_extra(extra_at);
        let max = if wide { i64::from(i32::MAX) + (3 << 32) } else { i64::from(i32::MAX) };
        let secs = time.secs.clamp(i64::from(i32::MIN), max);
        put_u32(&mut self.bytes, at, secs as u32);
        if wide {
            let epoch = ((secs - i64::from(secs as i32)) >> 32) as u32 & 3;
            put_u32(&mut self.bytes, extra_at, epoch | time.nanos << 2);
        }
    }

    pub fn is_directory(&self) -> bool {
        self.mode() & mode::TYPE_MASK == mode::DIRECTORY
    }

    pub fn is_regular(&self) -> bool {
        self.mode() & mode::TYPE_MASK == mode::REGULAR
    }

    pub fn is_symlink(&self) -> bool {
        self.mode() & mode::TYPE_MASK == mode::SYMLINK
    }

    fn checksum(&self, sb: &Superblock, ino: Ino) -> u32 {
        let mut crc = inode_seed(sb, ino, self.generation());
        let zero = [0u8; 2];
        crc = crc32c(crc, &self.bytes[..CHECKSUM_LO_AT]);
        crc = crc32c(crc, &zero);
        crc = crc32c(crc, &self.bytes[CHECKSUM_LO_AT + 2..GOOD_OLD_BYTES]);
        if self.bytes.len() > GOOD_OLD_BYTES {
            crc = crc32c(crc, &self.bytes[GOOD_OLD_BYTES..CHECKSUM_HI_AT]);
            if self.has_checksum_hi() {
                crc = crc32c(crc, &zero);
                crc = crc32c(crc, &self.bytes[CHECKSUM_HI_AT + 2..]);
            } else {
                crc = crc32c(crc, &self.bytes[CHECKSUM_HI_AT..]);
            }
        }
        crc
    }

    fn has_checksum_hi(&self) -> bool {
        self.extra_isize() >= 4
    }

    /// Stores the checksum; to be called after the last change.
    pub fn seal(&mut self, sb: &Superblock, ino: Ino) {
        if !sb.has_metadata_csum() {
            return;
        }
        let crc = self.checksum(sb, ino);
        put_u16(&mut self.bytes, CHECKSUM_LO_AT, crc as u16);
        if self.has_checksum_hi() {
            put_u16(&mut self.bytes, CHECKSUM_HI_AT, (crc >> 16) as u16);
        }
    }

    pub fn checksum_matches(&self, sb: &Superblock, ino: Ino) -> bool {
        if !sb.has_metadata_csum() {
            return true;
        }
        let crc = self.checksum(sb, ino);
        let low = get_u16(&self.bytes, CHECKSUM_LO_AT);
        let high_ok = !self.has_checksum_hi() || get_u16(&self.bytes, CHECKSUM_HI_AT) == (crc >> 16) as u16;
        low == crc as u16 && high_ok
    }
}

/// Seed of the checksums of an inode and of the blocks that belong to it (extent nodes,
/// directory blocks): volume seed, inode number, generation.
pub fn inode_seed(sb: &Superblock, ino: Ino, generation: u32) -> u32 {
    let crc = crc32c(sb.checksum_seed(), &ino.0.to_le_bytes());
    crc32c(crc, &generation.to_le_bytes())
}
