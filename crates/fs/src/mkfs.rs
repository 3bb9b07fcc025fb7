//! Creates a volume like that of `mke2fs -t ext4`, with its default sizes.
//!
//! - `plan`: sizes, numbers and features, from the size of the device and the options
//! - `place`: the blocks of all structures
//! - `files`: the first inodes: root, lost+found, resize, journal, orphan file
//! - `write`: bitmaps, descriptors, superblocks, and the order of all writes
//!
//! Bitmaps and inode tables of unused groups are not written. The `*_UNINIT` flags replace them, so
//! that a large volume needs little I/O.

mod files;
mod generations;
mod place;
mod plan;
mod write;

use std::fs::File;
use std::io::Read;

use xact_device::BlockDevice;
use xact_types::{Error, Result, Timestamp};

pub use generations::{check_generations, default_pool_bytes_for, mkfs_generations};
use place::BlockLayout;
use plan::VolumePlan;
use write::Writer;

/// The size of the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JournalSize {
    /// By the volume's size, as in mke2fs; no journal below 2048 blocks.
    #[default]
    Default,
    None,
    /// A number of blocks, at least 1024.
    Blocks(u32),
    /// A number of bytes, rounded up to whole blocks.
    Bytes(u64),
}

/// Options of a new volume. The defaults are those of mke2fs.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// The label, at most 16 bytes.
    pub label: String,
    /// The UUID; random if `None`.
    pub uuid: Option<[u8; 16]>,
    /// Block size: 1024, 2048 or 4096 bytes. `None`: 1024 below 512 MiB, else 4096.
    pub block_size: Option<u32>,
    /// Bytes of the volume for each inode. `None`: by the volume's size.
    pub inode_ratio: Option<u32>,
    /// Bytes of an inode: 128 (no times after 2038, no nanoseconds) or a larger power of two.
    pub inode_size: u16,
    pub journal: JournalSize,
    /// Share of the blocks that only root may use, in percent, at most 50.
    pub reserved_percent: u8,
    /// Feature `metadata_csum_seed`: the UUID can be changed while mounted. Linux 4.4 and later.
    pub csum_seed: bool,
    /// Feature `orphan_file`: unlinks do not contend for the superblock. Needs Linux 5.15 or later
    /// (older kernels mount the volume if it was unmounted cleanly) and e2fsprogs 1.47 or later.
    /// Ignored without a journal.
    pub orphan_file: bool,
    /// The whole device reads as zeros (a new sparse file): inode tables and journal need not be
    /// zeroed, neither now nor later by the kernel.
    pub zeroed: bool,
    /// Bytes of the device for the volume. `None`: all.
    pub size_bytes: Option<u64>,
    /// Owner and group of the root folder.
    pub root_owner: (u32, u32),
}

impl Default for MkfsOptions {
    fn default() -> MkfsOptions {
        MkfsOptions {
            label: String::new(),
            uuid: None,
            block_size: None,
            inode_ratio: None,
            inode_size: 256,
            journal: JournalSize::Default,
            reserved_percent: 5,
            csum_seed: true,
            orphan_file: true,
            zeroed: false,
            size_bytes: None,
            root_owner: (0, 0),
        }
    }
}

/// The properties of the new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MkfsReport {
    pub uuid: [u8; 16],
    pub block_size: u32,
    pub blocks: u64,
    pub reserved_blocks: u64,
    pub groups: u32,
    pub inodes: u32,
    /// Blocks of the journal; 0 without one.
    pub journal_blocks: u32,
    /// Bytes of the pool after the volume; 0 without generations.
    pub pool_bytes: u64,
}

/// Creates a volume on the whole `device`; the old contents are lost.
///
/// Errors: `Usage`, before the first write, for options that conflict or do not fit the device;
/// `Io`, after which the device holds no volume.
pub fn mkfs(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<MkfsReport> {
    if device.is_read_only() {
        return Err(Error::ReadOnly);
    }
    let size_bytes = options.size_bytes.unwrap_or(device.size_bytes());
    if size_bytes > device.size_bytes() {
        return Err(Error::Usage("the volume would be larger than its device".into()));
    }
    let (plan, place) = plan(size_bytes, options)?;
    let mut writer = Writer::new(device, &plan, &place);
    writer.wipe()?;
    files::write(&mut writer, Timestamp::now())?;
    writer.finish()?;
    Ok(MkfsReport {
        uuid: plan.sb.uuid(),
        block_size: plan.sb.block_size(),
        blocks: plan.sb.blocks_count(),
        reserved_blocks: plan.sb.reserved_blocks_count(),
        groups: plan.sb.group_count(),
        inodes: plan.sb.inodes_count(),
        journal_blocks: plan.journal_blocks,
        pool_bytes: 0,
    })
}

/// `Usage` if a volume of this size cannot be created with these options.
pub fn check(size_bytes: u64, options: &MkfsOptions) -> Result<()> {
    plan(size_bytes, options).map(drop)
}

fn plan(size_bytes: u64, options: &MkfsOptions) -> Result<(VolumePlan, BlockLayout)> {
    let plan = VolumePlan::new(size_bytes, options, random()?)?;
    let place = BlockLayout::new(&plan)?;
    Ok((plan, place))
}

/// Random bytes for the UUID and for the seed of directory hashes.
fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|error| Error::io("reading random numbers", error))?;
    Ok(bytes)
}
