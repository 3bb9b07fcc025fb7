//! Sizes and counts of a new volume. They follow mke2fs, so that the volume suits the same use.

use xact_layout::checksum::crc32c;
use xact_layout::feature::{compat, incompat, ro_compat};
use xact_layout::get_u32;
use xact_layout::jbd2::MIN_JOURNAL_BLOCKS;
use xact_layout::superblock::{MAGIC, STATE_CLEAN, Superblock};
use xact_types::{BlockNr, Error, GroupNr, Ino, Result, unix_seconds};

use super::{JournalSize, MkfsOptions};

const MIB: u64 = 1 << 20;
/// `EXT4_GOOD_OLD_FIRST_INO`; lost+found gets it.
pub(super) const LOST_FOUND: Ino = Ino(11);
pub(super) const ORPHAN_FILE: Ino = Ino(12);
/// Number of groups whose bitmaps and tables lie together, as a power of two.
const LOG_GROUPS_PER_FLEX: u8 = 4;
/// Minimum data blocks of the last group.
const LAST_GROUP_MIN: u32 = 50;
/// Maximum journal size that mke2fs accepts.
const MAX_JOURNAL_BLOCKS: u32 = 10_240_000;
/// `s_default_mount_opts`: user_xattr and acl.
const MOUNT_OPTIONS: u32 = 0xC;
/// `s_flags`: names are hashed as signed bytes, as mke2fs does on x86.
const SIGNED_HASH: u32 = 1;
/// `s_def_hash_version`.
const HALF_MD4: u8 = 1;

pub(super) struct VolumePlan {
    /// The superblock without its free counts.
    pub sb: Superblock,
    /// Blocks of the journal; 0 without one.
    pub journal_blocks: u32,
    /// Blocks of the orphan file; 0 without one.
    pub orphan_blocks: u32,
    pub zeroed: bool,
    pub root_owner: (u32, u32),
}

impl VolumePlan {
    /// `random`: bytes for the UUID, then for the hash seed.
    pub fn new(size_bytes: u64, options: &MkfsOptions, random: [u8; 32]) -> Result<VolumePlan> {
        check_options(options)?;
        let default = usage(size_bytes);
        let block_size = block_size(size_bytes, options);
        let mut sb = Superblock::zeroed();
        fill_constants(&mut sb, options, block_size, random);

        let blocks = size_bytes / u64::from(block_size);
        // mke2fs rounds to whole pages of memory.
        let blocks = blocks - blocks % u64::from(4096 / block_size);
        let ratio = u64::from(options.inode_ratio.unwrap_or(default.inode_ratio));
        // Computed from the size before blocks at the end are left out, as in mke2fs.
        let inodes = (blocks * u64::from(block_size) / ratio).max(u64::from(LOST_FOUND.0 + 1));
        set_geometry(&mut sb, blocks, inodes)?;
        if options.csum_seed {
            sb.set_checksum_seed_raw(crc32c(!0, &sb.uuid()));
        }
        sb.set_reserved_blocks_count(sb.blocks_count() * u64::from(options.reserved_percent) / 100);

        let journal_blocks = journal_size(&sb, options.journal)?;
        if journal_blocks > 0 {
            sb.set_feature_compat(sb.feature_compat() | compat::HAS_JOURNAL);
            sb.set_journal_inum(Ino::JOURNAL.0);
            sb.set_jnl_backup_type(1);
        }
        let mut orphan_blocks = 0;
        // Without a journal no orphans are recovered, and e2fsck expects no such file.
        if options.orphan_file && journal_blocks > 0 {
            orphan_blocks = match sb.blocks_count() {
                ..0x2_0000 => 32,
                count => (count / 4096).min(512) as u32,
            };
            sb.set_feature_compat(sb.feature_compat() | compat::ORPHAN_FILE);
            sb.set_orphan_file_inum(ORPHAN_FILE.0);
        }
        let fixed: u64 = (0..sb.group_count())
            .map(|group| u64::from(sb.base_meta_blocks(GroupNr(group)) + 2 + sb.inode_table_blocks()))
            .sum();
        let overhead = fixed + u64::from(sb.first_data_block()) + u64::from(journal_blocks);
        sb.set_overhead_clusters(u32::try_from(overhead).unwrap_or(0));
        let MkfsOptions { zeroed, root_owner, .. } = *options;
        Ok(VolumePlan { sb, journal_blocks, orphan_blocks, zeroed, root_owner })
    }

    /// Number of inodes in use: the reserved ones, lost+found, the orphan file.
    pub fn used_inodes(&self) -> u32 {
        if self.orphan_blocks > 0 { ORPHAN_FILE.0 } else { LOST_FOUND.0 }
    }

    /// Blocks of lost+found: 16 KiB, but at most the number of direct blocks of an inode.
    pub fn lost_found_blocks(&self) -> u32 {
        ((16 << 10) / self.sb.block_size()).min(12)
    }

    /// Goal for the journal's first block: the middle of the volume, which halves the seek distance
    /// of disks.
    pub fn journal_goal(&self) -> BlockNr {
        let flex = 1 << LOG_GROUPS_PER_FLEX;
        let middle = self.sb.group_count() / 2;
        self.sb.group_start(GroupNr(if middle > flex { middle - middle % flex } else { middle }))
    }

    pub fn groups_per_flex(&self) -> u32 {
        1 << LOG_GROUPS_PER_FLEX
    }
}

/// Defaults by size (`floppy`, `small`, `big` and `huge` of mke2fs.conf).
struct SizeDefaults {
    block_size: u32,
    inode_ratio: u32,
}

fn usage(size_bytes: u64) -> SizeDefaults {
    let (block_size, inode_ratio) = match size_bytes / MIB {
        0..3 => (1024, 8192),
        3..512 => (1024, 4096),
        512..0x40_0000 => (4096, 16384),
        0x40_0000..0x100_0000 => (4096, 32768),
        _ => (4096, 65536),
    };
    SizeDefaults { block_size, inode_ratio }
}

/// The block size of a volume of this size.
pub(super) fn block_size(size_bytes: u64, options: &MkfsOptions) -> u32 {
    options.block_size.unwrap_or(usage(size_bytes).block_size)
}

fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::Usage(why.into()))
}

fn check_options(options: &MkfsOptions) -> Result<()> {
    let block_size = options.block_size.unwrap_or(1024);
    if ![1024, 2048, 4096].contains(&block_size) {
        return refuse("the block size must be 1024, 2048 or 4096 bytes");
    }
    let inode_size = options.inode_size;
    if inode_size < 128 || !inode_size.is_power_of_two() || u32::from(inode_size) > block_size {
        return refuse("the inode size must be a power of two from 128 bytes to the block size");
    }
    if options.inode_ratio.is_some_and(|ratio| !(1024..=64 << 20).contains(&ratio)) {
        return refuse("there can be one inode for each 1024 to 67108864 bytes of the volume");
    }
    if options.reserved_percent > 50 {
        return refuse("at most 50 percent of the volume can be reserved for root");
    }
    if options.label.len() > 16 {
        return refuse("a label has at most 16 bytes");
    }
    Ok(())
}

fn fill_constants(sb: &mut Superblock, options: &MkfsOptions, block_size: u32, random: [u8; 32]) {
    let now = unix_seconds() as u32;
    sb.set_magic(MAGIC);
    sb.set_state(STATE_CLEAN);
    sb.set_errors(1);
    sb.set_rev_level(1);
    sb.set_first_ino(LOST_FOUND.0);
    sb.set_inode_size_raw(options.inode_size);
    sb.set_log_block_size(block_size.trailing_zeros() - 10);
    sb.set_log_cluster_size(block_size.trailing_zeros() - 10);
    sb.set_first_data_block(u32::from(block_size == 1024));
    sb.set_blocks_per_group(8 * block_size);
    sb.set_clusters_per_group(8 * block_size);
    sb.set_max_mnt_count(u16::MAX);
    sb.set_wtime(now);
    sb.set_mkfs_time(now);
    sb.set_lastcheck(now);
    sb.set_default_mount_opts(MOUNT_OPTIONS);
    sb.set_flags(SIGNED_HASH);
    sb.set_def_hash_version(HALF_MD4);
    sb.set_hash_seed([16, 20, 24, 28].map(|at| get_u32(&random, at)));
    sb.set_uuid(options.uuid.unwrap_or_else(|| random_uuid(random)));
    sb.set_volume_name(options.label.as_bytes());
    sb.set_desc_size_raw(64);
    sb.set_log_groups_per_flex(LOG_GROUPS_PER_FLEX);
    sb.set_checksum_type(1);
    sb.set_feature_compat(compat::EXT_ATTR | compat::RESIZE_INODE | compat::DIR_INDEX);
    let seed = if options.csum_seed { incompat::CSUM_SEED } else { 0 };
    sb.set_feature_incompat(
        incompat::FILETYPE | incompat::EXTENTS | incompat::SIXTY_FOUR_BIT | incompat::FLEX_BG | seed,
    );
    let mut features = ro_compat::SPARSE_SUPER
        | ro_compat::LARGE_FILE
        | ro_compat::HUGE_FILE
        | ro_compat::DIR_NLINK
        | ro_compat::METADATA_CSUM;
    if options.inode_size > 128 {
        features |= ro_compat::EXTRA_ISIZE;
        sb.set_min_extra_isize(32);
        sb.set_want_extra_isize(32);
    }
    sb.set_feature_ro_compat(features);
}

/// A UUID of version 4.
fn random_uuid(random: [u8; 32]) -> [u8; 16] {
    let mut uuid: [u8; 16] = random[..16].try_into().expect("16 of 32 bytes");
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

/// Sets the numbers of groups and inodes. A last group that is too small is left out.
fn set_geometry(sb: &mut Superblock, mut blocks: u64, inodes: u64) -> Result<()> {
    let per_group = sb.blocks_per_group();
    loop {
        if blocks <= u64::from(sb.first_data_block()) + 1 {
            return refuse("the device is too small for a volume");
        }
        if blocks.div_ceil(u64::from(per_group)) > u64::from(u32::MAX) {
            return refuse("the device is too large for this block size");
        }
        sb.set_blocks_count(blocks);
        set_inodes(sb, inodes)?;
        // The resize inode's blocks have 32-bit numbers.
        let reserved = if blocks > u64::from(u32::MAX) { 0 } else { reserved_descriptors(sb) };
        sb.set_reserved_gdt_blocks(reserved);
        let others = sb.feature_compat() & !compat::RESIZE_INODE;
        sb.set_feature_compat(others | if reserved > 0 { compat::RESIZE_INODE } else { 0 });
        let last = GroupNr(sb.group_count() - 1);
        let fixed = |group| sb.base_meta_blocks(group) + 2 + sb.inode_table_blocks();
        if last.0 > 0 && sb.blocks_in_group(last) < fixed(last) + LAST_GROUP_MIN {
            blocks -= u64::from(sb.blocks_in_group(last));
            continue;
        }
        if fixed(GroupNr(0)) + LAST_GROUP_MIN > sb.blocks_in_group(GroupNr(0)) {
            return match last.0 {
                0 => refuse("the device is too small for a volume with these options"),
                _ => refuse("the volume's descriptors do not fit into a group: use a larger block size"),
            };
        }
        return Ok(());
    }
}

/// Sets the number of inodes for each group: as requested, rounded to whole blocks of the table and
/// whole bytes of the bitmap.
fn set_inodes(sb: &mut Superblock, inodes: u64) -> Result<()> {
    let groups = u64::from(sb.group_count());
    let most = u64::from(8 * sb.block_size()).min(u64::from(u32::MAX) / groups);
    let mut per_group = inodes.div_ceil(groups).min(most);
    loop {
        let per_block = u64::from(sb.inodes_per_block());
        // Group 0 must hold all inodes created here.
        let filled = (per_group.next_multiple_of(per_block) & !7).max(16);
        if filled <= most {
            sb.set_inodes_per_group(filled as u32);
            sb.set_inodes_count((filled * groups) as u32);
            return Ok(());
        }
        if per_group == 1 {
            return refuse("the device is too large for this block size");
        }
        per_group -= 1;
    }
}

/// Blocks reserved for the descriptors of a volume of 1024 times the size, limited by the resize
/// inode.
fn reserved_descriptors(sb: &Superblock) -> u16 {
    let most = (sb.blocks_count() * 1024).min(u64::from(u32::MAX));
    let groups =
        most.saturating_sub(u64::from(sb.first_data_block())).div_ceil(u64::from(sb.blocks_per_group()));
    let blocks = groups.div_ceil(u64::from(sb.descs_per_block()));
    blocks.saturating_sub(u64::from(sb.gdt_blocks())).min(u64::from(sb.block_size() / 4)) as u16
}

fn journal_size(sb: &Superblock, wanted: JournalSize) -> Result<u32> {
    let blocks = sb.blocks_count();
    let count = match wanted {
        JournalSize::None => return Ok(0),
        JournalSize::Default => return Ok(default_journal_blocks(blocks)),
        JournalSize::Blocks(count) => u64::from(count),
        JournalSize::Bytes(bytes) => bytes.div_ceil(u64::from(sb.block_size())),
    };
    let limits = u64::from(MIN_JOURNAL_BLOCKS)..=u64::from(MAX_JOURNAL_BLOCKS);
    if !limits.contains(&count) {
        return refuse(format!("a journal has {MIN_JOURNAL_BLOCKS} to {MAX_JOURNAL_BLOCKS} blocks"));
    }
    if count > blocks / 2 {
        return refuse("the journal would take more than half of the volume");
    }
    Ok(count as u32)
}

fn default_journal_blocks(blocks: u64) -> u32 {
    match blocks {
        0..2048 => 0,
        2048..0x8000 => 1024,
        0x8000..0x4_0000 => 4096,
        0x4_0000..0x8_0000 => 8192,
        0x8_0000..0x40_0000 => 16384,
        0x40_0000..0x80_0000 => 32768,
        0x80_0000..0x100_0000 => 65536,
        0x100_0000..0x200_0000 => 131_072,
        _ => 262_144,
    }
}
