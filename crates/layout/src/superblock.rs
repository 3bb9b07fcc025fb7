//! The superblock (`struct ext4_super_block`): 1024 bytes at byte 1024 of the volume.

use xact_types::{BlockNr, Error, GroupNr, Ino, Result, Site};

use crate::bytes::fields;
use crate::checksum::crc32c;
use crate::feature::{self, compat, incompat, ro_compat};
use crate::mode_record::{MODE_RECORD_AT, MODE_RECORD_BYTES, MODE_SETTINGS, ModeRecord};
use crate::{get_u16, get_u32, get_u64, put_u32, put_u64};

/// Byte offset of the primary superblock on the volume.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
pub const SUPERBLOCK_BYTES: usize = 1024;
/// `s_magic` of ext2, ext3 and ext4.
pub const MAGIC: u16 = 0xEF53;
/// `s_state`: unmounted cleanly (`EXT4_VALID_FS`).
pub const STATE_CLEAN: u16 = 1;
/// `s_state`: errors were found (`EXT4_ERROR_FS`).
pub const STATE_ERRORS: u16 = 2;
/// `s_state`: orphans are being recovered (`EXT4_ORPHAN_FS`).
pub const STATE_ORPHANS: u16 = 4;

/// `s_default_mount_opts`: the two bits of the journal mode (`EXT4_DEFM_JMODE`).
pub const DEFAULT_JMODE: u32 = 0x60;
pub const DEFAULT_JMODE_DATA: u32 = 0x20;
pub const DEFAULT_JMODE_ORDERED: u32 = 0x40;
pub const DEFAULT_JMODE_WRITEBACK: u32 = 0x60;
/// `s_errors`: the action after an error. Other values mean [`ON_ERROR_READ_ONLY`].
pub const ON_ERROR_CONTINUE: u16 = 1;
pub const ON_ERROR_READ_ONLY: u16 = 2;
pub const ON_ERROR_PANIC: u16 = 3;

const CHECKSUM_AT: usize = 0x3FC;
/// libext2fs refuses more.
const LOG_GROUPS_PER_FLEX_MAX: u8 = 31;
/// TEA, unsigned. The next one, SipHash, is only for encrypted folders.
const DEF_HASH_VERSION_MAX: u8 = 5;
/// `s_creator_os` of the GNU Hurd, which keeps other values in fields of inodes
/// (`EXT4_OS_HURD`).
const CREATOR_HURD: u32 = 1;
/// Bytes of `s_first_error_func` and `s_last_error_func`.
const ERROR_TEXT_BYTES: usize = 32;
/// `EXT4_ERR_EFSCORRUPTED`.
const ERROR_CORRUPTED: u8 = 5;

/// An error in the superblock.
#[derive(Debug, Clone, Copy)]
pub struct NotedError<'a> {
    /// Seconds since 1970.
    pub time: u32,
    /// 0 if no inode is involved.
    pub ino: u32,
    pub block: u64,
    pub what: &'a str,
}

/// The superblock's bytes with an accessor for each field that xact uses.
#[derive(Clone, PartialEq, Eq)]
pub struct Superblock {
    bytes: [u8; SUPERBLOCK_BYTES],
}

impl std::fmt::Debug for Superblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Superblock {{ blocks: {}, block size: {} }}", self.blocks_count(), self.block_size())
    }
}

impl Superblock {
    /// A superblock of zeros, for mkfs to fill in.
    pub fn zeroed() -> Superblock {
        Superblock { bytes: [0; SUPERBLOCK_BYTES] }
    }

    /// Takes the bytes unchanged and checks all values that later computations depend on.
    pub fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Superblock> {
        let sb = Superblock { bytes: *bytes };
        sb.check()?;
        Ok(sb)
    }

    pub fn as_bytes(&self) -> &[u8; SUPERBLOCK_BYTES] {
        &self.bytes
    }

    fields! {
        inodes_count, set_inodes_count: u32 @ 0x00;
        blocks_count_lo, set_blocks_count_lo: u32 @ 0x04;
        r_blocks_count_lo, set_r_blocks_count_lo: u32 @ 0x08;
        free_blocks_count_lo, set_free_blocks_count_lo: u32 @ 0x0C;
        free_inodes_count, set_free_inodes_count: u32 @ 0x10;
        first_data_block, set_first_data_block: u32 @ 0x14;
        log_block_size, set_log_block_size: u32 @ 0x18;
        log_cluster_size, set_log_cluster_size: u32 @ 0x1C;
        blocks_per_group, set_blocks_per_group: u32 @ 0x20;
        clusters_per_group, set_clusters_per_group: u32 @ 0x24;
        inodes_per_group, set_inodes_per_group: u32 @ 0x28;
        mtime, set_mtime: u32 @ 0x2C;
        wtime, set_wtime: u32 @ 0x30;
        mnt_count, set_mnt_count: u16 @ 0x34;
        max_mnt_count, set_max_mnt_count: u16 @ 0x36;
        magic, set_magic: u16 @ 0x38;
        state, set_state: u16 @ 0x3A;
        errors, set_errors: u16 @ 0x3C;
        minor_rev_level, set_minor_rev_level: u16 @ 0x3E;
        lastcheck, set_lastcheck: u32 @ 0x40;
        checkinterval, set_checkinterval: u32 @ 0x44;
        creator_os, set_creator_os: u32 @ 0x48;
        rev_level, set_rev_level: u32 @ 0x4C;
        def_resuid, set_def_resuid: u16 @ 0x50;
        def_resgid, set_def_resgid: u16 @ 0x52;
        first_ino, set_first_ino: u32 @ 0x54;
        inode_size_raw, set_inode_size_raw: u16 @ 0x58;
        block_group_nr, set_block_group_nr: u16 @ 0x5A;
        feature_compat, set_feature_compat: u32 @ 0x5C;
        feature_incompat, set_feature_incompat: u32 @ 0x60;
        feature_ro_compat, set_feature_ro_compat: u32 @ 0x64;
        reserved_gdt_blocks, set_reserved_gdt_blocks: u16 @ 0xCE;
        journal_inum, set_journal_inum: u32 @ 0xE0;
        journal_dev, set_journal_dev: u32 @ 0xE4;
        /// Head of the orphan list; 0 when empty.
        last_orphan, set_last_orphan: u32 @ 0xE8;
        def_hash_version, set_def_hash_version: u8 @ 0xFC;
        jnl_backup_type, set_jnl_backup_type: u8 @ 0xFD;
        desc_size_raw, set_desc_size_raw: u16 @ 0xFE;
        default_mount_opts, set_default_mount_opts: u32 @ 0x100;
        first_meta_bg, set_first_meta_bg: u32 @ 0x104;
        mkfs_time, set_mkfs_time: u32 @ 0x108;
        blocks_count_hi, set_blocks_count_hi: u32 @ 0x150;
        r_blocks_count_hi, set_r_blocks_count_hi: u32 @ 0x154;
        free_blocks_count_hi, set_free_blocks_count_hi: u32 @ 0x158;
        min_extra_isize, set_min_extra_isize: u16 @ 0x15C;
        want_extra_isize, set_want_extra_isize: u16 @ 0x15E;
        /// `s_flags`: 1 signed directory hash, 2 unsigned.
        flags, set_flags: u32 @ 0x160;
        mmp_update_interval, set_mmp_update_interval: u16 @ 0x166;
        mmp_block, set_mmp_block: u64 @ 0x168;
        log_groups_per_flex, set_log_groups_per_flex: u8 @ 0x174;
        checksum_type, set_checksum_type: u8 @ 0x175;
        kbytes_written, set_kbytes_written: u64 @ 0x178;
        error_count, set_error_count: u32 @ 0x194;
        first_error_time, set_first_error_time: u32 @ 0x198;
        usr_quota_inum, set_usr_quota_inum: u32 @ 0x240;
        grp_quota_inum, set_grp_quota_inum: u32 @ 0x244;
        overhead_clusters, set_overhead_clusters: u32 @ 0x248;
        prj_quota_inum, set_prj_quota_inum: u32 @ 0x26C;
        checksum_seed_raw, set_checksum_seed_raw: u32 @ 0x270;
        orphan_file_inum, set_orphan_file_inum: u32 @ 0x280;
    }

    pub fn uuid(&self) -> [u8; 16] {
        self.bytes[0x68..0x78].try_into().expect("16 bytes")
    }

    /// UUID of the journal on another device (`s_journal_uuid`); zeros without one.
    pub fn journal_uuid(&self) -> [u8; 16] {
        self.bytes[0xD0..0xE0].try_into().expect("16 bytes")
    }

    pub fn set_uuid(&mut self, uuid: [u8; 16]) {
        self.bytes[0x68..0x78].copy_from_slice(&uuid);
    }

    /// The label without its padding.
    pub fn volume_name(&self) -> &[u8] {
        let field = &self.bytes[0x78..0x88];
        &field[..field.iter().position(|&b| b == 0).unwrap_or(16)]
    }

    /// Sets the label, of which 16 bytes fit.
    pub fn set_volume_name(&mut self, name: &[u8]) {
        self.bytes[0x78..0x88].fill(0);
        let len = name.len().min(16);
        self.bytes[0x78..0x78 + len].copy_from_slice(&name[..len]);
    }

    /// Notes an error (`save_error_info`, `ext4_update_super`): the state that makes e2fsck check
    /// the volume, the count, and the first and the last error. 32 bytes of `what` are kept.
    pub fn note_error(&mut self, error: &NotedError<'_>) {
        self.set_state(self.state() | STATE_ERRORS);
        if self.first_error_time() == 0 {
            self.put_error(0x198, 0x27A, error, [0, 4, 8, 16, 48]);
        }
        self.put_error(0x1CC, 0x27B, error, [0, 4, 12, 20, 8]);
        self.set_error_count(self.error_count().saturating_add(1));
    }

    /// The phrase of the last error (`s_last_error_func`).
    pub fn last_error_text(&self) -> &[u8] {
        let field = &self.bytes[0x1CC + 20..][..ERROR_TEXT_BYTES];
        &field[..field.iter().position(|&byte| byte == 0).unwrap_or(ERROR_TEXT_BYTES)]
    }

    /// The block of the last error; 0 if none was named.
    pub fn last_error_block(&self) -> u64 {
        get_u64(&self.bytes, 0x1CC + 12)
    }

    /// The fields of one error: `places` are those of time, inode, block, function and line behind
    /// `at`.
    fn put_error(&mut self, at: usize, code_at: usize, error: &NotedError<'_>, places: [usize; 5]) {
        let [time, ino, block, what, line] = places.map(|place| at + place);
        put_u32(&mut self.bytes, time, error.time);
        put_u32(&mut self.bytes, ino, error.ino);
        put_u64(&mut self.bytes, block, error.block);
        self.bytes[what..what + ERROR_TEXT_BYTES].fill(0);
        let len = error.what.len().min(ERROR_TEXT_BYTES - 1);
        self.bytes[what..what + len].copy_from_slice(&error.what.as_bytes()[..len]);
        put_u32(&mut self.bytes, line, 0);
        self.bytes[code_at] = ERROR_CORRUPTED;
    }

    /// The path of the last mount (`s_last_mounted`).
    pub fn set_last_mounted(&mut self, path: &[u8]) {
        self.bytes[0x88..0xC8].fill(0);
        let len = path.len().min(63);
        self.bytes[0x88..0x88 + len].copy_from_slice(&path[..len]);
    }

    pub fn hash_seed(&self) -> [u32; 4] {
        [0, 4, 8, 12].map(|i| get_u32(&self.bytes, 0xEC + i))
    }

    pub fn set_hash_seed(&mut self, seed: [u32; 4]) {
        for (i, word) in seed.into_iter().enumerate() {
            put_u32(&mut self.bytes, 0xEC + 4 * i, word);
        }
    }

    /// Backup of the journal inode's `i_block` and size (`s_jnl_blocks`), 17 words.
    pub fn set_journal_backup(&mut self, words: [u32; 17]) {
        for (i, word) in words.into_iter().enumerate() {
            put_u32(&mut self.bytes, 0x10C + 4 * i, word);
        }
    }

    /// Groups holding a backup superblock under `sparse_super2` (`s_backup_bgs`).
    pub fn backup_groups(&self) -> [u32; 2] {
        [get_u32(&self.bytes, 0x24C), get_u32(&self.bytes, 0x250)]
    }

    pub fn block_size(&self) -> u32 {
        1024 << self.log_block_size()
    }

    /// The metadata block that holds the primary superblock.
    pub fn own_block(&self) -> BlockNr {
        BlockNr(SUPERBLOCK_OFFSET / u64::from(self.block_size()))
    }

    /// Offset of the primary superblock within its block.
    pub fn own_offset(&self) -> usize {
        (SUPERBLOCK_OFFSET % u64::from(self.block_size())) as usize
    }

    pub fn blocks_count(&self) -> u64 {
        u64::from(self.blocks_count_lo()) | self.high(self.blocks_count_hi())
    }

    pub fn set_blocks_count(&mut self, count: u64) {
        self.set_blocks_count_lo(count as u32);
        self.set_blocks_count_hi((count >> 32) as u32);
    }

    /// Blocks that only root may use.
    pub fn reserved_blocks_count(&self) -> u64 {
        u64::from(self.r_blocks_count_lo()) | self.high(self.r_blocks_count_hi())
    }

    pub fn set_reserved_blocks_count(&mut self, count: u64) {
        self.set_r_blocks_count_lo(count as u32);
        self.set_r_blocks_count_hi((count >> 32) as u32);
    }

    /// As of the last clean unmount; while the volume is mounted the group descriptors count.
    pub fn free_blocks_count(&self) -> u64 {
        u64::from(self.free_blocks_count_lo()) | self.high(self.free_blocks_count_hi())
    }

    pub fn set_free_blocks_count(&mut self, count: u64) {
        self.set_free_blocks_count_lo(count as u32);
        self.set_free_blocks_count_hi((count >> 32) as u32);
    }

    fn high(&self, word: u32) -> u64 {
        if self.has_incompat(incompat::SIXTY_FOUR_BIT) { u64::from(word) << 32 } else { 0 }
    }

    pub fn inode_size(&self) -> u16 {
        if self.rev_level() == 0 { 128 } else { self.inode_size_raw() }
    }

    /// First inode number that is not reserved.
    pub fn first_inode(&self) -> Ino {
        Ino(if self.rev_level() == 0 { 11 } else { self.first_ino() })
    }

    pub fn desc_size(&self) -> u16 {
        if self.has_incompat(incompat::SIXTY_FOUR_BIT) { self.desc_size_raw() } else { 32 }
    }

    pub fn group_count(&self) -> u32 {
        (self.blocks_count() - u64::from(self.first_data_block()))
            .div_ceil(u64::from(self.blocks_per_group())) as u32
    }

    pub fn has_compat(&self, bit: u32) -> bool {
        self.feature_compat() & bit != 0
    }

    pub fn has_ro_compat(&self, bit: u32) -> bool {
        self.feature_ro_compat() & bit != 0
    }

    pub fn has_incompat(&self, bit: u32) -> bool {
        self.feature_incompat() & bit != 0
    }

    pub fn has_metadata_csum(&self) -> bool {
        self.has_ro_compat(ro_compat::METADATA_CSUM)
    }

    /// Seed of every metadata checksum of this volume (`s_csum_seed`).
    pub fn checksum_seed(&self) -> u32 {
        if self.has_incompat(incompat::CSUM_SEED) {
            self.checksum_seed_raw()
        } else {
            crc32c(!0, &self.uuid())
        }
    }

    /// Whether `group` holds a backup of the superblock and the group descriptors.
    pub fn has_backup(&self, group: GroupNr) -> bool {
        if self.has_compat(compat::SPARSE_SUPER2) {
            return group.0 == 0 || self.backup_groups().contains(&group.0);
        }
        if group.0 <= 1 || !self.has_ro_compat(ro_compat::SPARSE_SUPER) {
            return true;
        }
        [3u32, 5, 7].iter().any(|&base| {
            let mut power = base;
            while power < group.0 {
                match power.checked_mul(base) {
                    Some(next) => power = next,
                    None => return false,
                }
            }
            power == group.0
        })
    }

    /// The volume's own default modes; see [`crate::mode_record`].
    pub fn mode_record(&self) -> ModeRecord {
        ModeRecord::decode(&self.bytes[MODE_RECORD_AT..MODE_RECORD_AT + MODE_RECORD_BYTES])
    }

    /// Sets the modes; the caller has checked that the bytes do not belong to other software.
    pub fn set_mode_record(&mut self, values: [u8; MODE_SETTINGS]) {
        self.bytes[MODE_RECORD_AT..MODE_RECORD_AT + MODE_RECORD_BYTES]
            .copy_from_slice(&ModeRecord::encode(values));
    }

    /// Takes over the settings of another superblock of the volume: the label, the default modes
    /// and mount options, and the action after an error.
    pub fn take_settings(&mut self, from: &Superblock) {
        self.set_volume_name(from.volume_name());
        self.set_errors(from.errors());
        self.set_default_mount_opts(from.default_mount_opts());
        let record = MODE_RECORD_AT..MODE_RECORD_AT + MODE_RECORD_BYTES;
        self.bytes[record.clone()].copy_from_slice(&from.bytes[record]);
    }

    /// Stores the checksum; to be called after the last change.
    pub fn seal(&mut self) {
        if self.has_metadata_csum() {
            let sum = crc32c(!0, &self.bytes[..CHECKSUM_AT]);
            put_u32(&mut self.bytes, CHECKSUM_AT, sum);
        }
    }

    /// Refuses bytes that are not an ext4 superblock or contradict themselves. Features are checked
    /// elsewhere.
    fn check(&self) -> Result<()> {
        let corrupt = |what| Err(Error::corrupt(Site::Superblock, what));
        if get_u16(&self.bytes, 0x38) != MAGIC {
            return Err(Error::Usage(
                "not an ext2, ext3 or ext4 volume (no magic number in the superblock)".into(),
            ));
        }
        if self.has_metadata_csum() {
            if self.checksum_type() != 1 {
                return corrupt("unknown checksum type");
            }
            if crc32c(!0, &self.bytes[..CHECKSUM_AT]) != get_u32(&self.bytes, CHECKSUM_AT) {
                return corrupt("checksum does not match");
            }
        }
        if self.rev_level() > 1 {
            return Err(Error::Unsupported(format!("revision level {}", self.rev_level())));
        }
        if self.log_block_size() > 6 {
            return corrupt("block size is out of range");
        }
        let block_size = self.block_size();
        // The boot block is not part of a group, except where clusters are larger than blocks.
        let first_data_block = u32::from(block_size == 1024 && !self.has_ro_compat(ro_compat::BIGALLOC));
        if self.first_data_block() != first_data_block {
            return corrupt("first data block does not fit the block size");
        }
        let per_group = self.blocks_per_group();
        let bitmap_bits = 8 * block_size;
        let cluster = self.log_cluster_size().checked_sub(self.log_block_size());
        let cluster = match cluster {
            Some(shift) if self.has_ro_compat(ro_compat::BIGALLOC) && shift <= 16 => 1u32 << shift,
            _ if self.has_ro_compat(ro_compat::BIGALLOC) => return corrupt("cluster size is out of range"),
            _ => 1,
        };
        // No mkfs makes groups below 256 blocks, and a crafted volume would have an endless number
        // of them.
        if per_group < 256 || per_group / cluster > bitmap_bits || !per_group.is_multiple_of(8 * cluster) {
            return corrupt("blocks per group are out of range");
        }
        if self.clusters_per_group() != per_group / cluster {
            return corrupt("clusters per group do not fit the blocks per group");
        }
        if cluster == 1 && self.log_cluster_size() != self.log_block_size() {
            return corrupt("cluster size is not the block size, on a volume without bigalloc");
        }
        let inode_size = self.inode_size();
        if inode_size < 128 || u32::from(inode_size) > block_size || !inode_size.is_power_of_two() {
            return corrupt("inode size is out of range");
        }
        let inodes = self.inodes_per_group();
        if inodes < block_size / u32::from(inode_size) || inodes > 8 * block_size {
            return corrupt("inodes per group are out of range");
        }
        let desc_size = self.desc_size();
        let desc_size_min = if self.has_incompat(incompat::SIXTY_FOUR_BIT) { 64 } else { 32 };
        if desc_size < desc_size_min
            || desc_size > 1024
            || u32::from(desc_size) > block_size
            || !desc_size.is_power_of_two()
        {
            return corrupt("size of the group descriptors is out of range");
        }
        if self.blocks_count() <= u64::from(self.first_data_block()) || self.blocks_count() >= 1 << 48 {
            return corrupt("number of blocks is out of range");
        }
        let groups =
            (self.blocks_count() - u64::from(self.first_data_block())).div_ceil(u64::from(per_group));
        if groups.checked_mul(u64::from(inodes)) != Some(u64::from(self.inodes_count())) {
            return corrupt("number of inodes does not fit the number of groups");
        }
        if self.has_incompat(incompat::META_BG) && self.first_meta_bg() > self.gdt_blocks() {
            return corrupt("first meta block group is out of range");
        }
        if self.first_inode().0 < 11 || self.first_inode().0 > self.inodes_count() {
            return corrupt("first inode is out of range");
        }
        self.check_as_linux()
    }

    /// Refuses what no computation here depends on, and Linux refuses
    /// (`ext4_check_feature_compatibility`, `ext4_inode_info_init`, `ext4_hash_info_init`) or
    /// libext2fs: another program's mount or check would fail.
    fn check_as_linux(&self) -> Result<()> {
        let extra_max = self.inode_size() - 128;
        let has_extra = extra_max > 0 && self.has_ro_compat(ro_compat::EXTRA_ISIZE);
        let wide = self.has_incompat(incompat::SIXTY_FOUR_BIT);
        let refusals = [
            (self.log_groups_per_flex() > LOG_GROUPS_PER_FLEX_MAX, "groups per flex group are out of range"),
            (
                u32::from(self.reserved_gdt_blocks()) > self.block_size() / 4,
                "blocks reserved for descriptors are out of range",
            ),
            (
                has_extra && self.want_extra_isize().max(self.min_extra_isize()) > extra_max,
                "extra size of inodes is out of range",
            ),
            (self.def_hash_version() > DEF_HASH_VERSION_MAX, "unknown hash of names"),
            (
                self.has_ro_compat(ro_compat::BIGALLOC) && !self.has_incompat(incompat::EXTENTS),
                "bigalloc without extents",
            ),
            (
                self.creator_os() == CREATOR_HURD && (wide || self.has_incompat(incompat::EA_INODE)),
                "a volume of the Hurd has features of Linux",
            ),
        ];
        match refusals.into_iter().find(|(wrong, _)| *wrong) {
            Some((_, what)) => Err(Error::corrupt(Site::Superblock, what)),
            None => Ok(()),
        }
    }

    /// The kind of mount that the feature bits allow. Names the feature if the volume is refused.
    pub fn support(&self) -> Result<Support> {
        let beyond = self.feature_incompat() & !feature::INCOMPAT_SUPPORTED;
        let unknown = beyond & !feature::INCOMPAT_READ_ONLY;
        if unknown != 0 {
            return Err(Error::Unsupported(feature::names(unknown, incompat::NAMES)));
        }
        let read_only = self.feature_ro_compat() & !feature::RO_COMPAT_SUPPORTED;
        let names = [feature::names(beyond, incompat::NAMES), feature::names(read_only, ro_compat::NAMES)];
        match names.into_iter().filter(|names| !names.is_empty()).collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => Ok(Support::ReadWrite),
            features => Ok(Support::ReadOnly(features)),
        }
    }
}

/// How a volume may be mounted, by its features.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    ReadWrite,
    /// Only for reading, because of the features named.
    ReadOnly(String),
}
