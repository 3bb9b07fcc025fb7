//! Making a volume: what `mke2fs -t ext4` makes today, with its default sizes.
//!
//! - `plan`: sizes, numbers and features, from the size of the device and the options;
//! - `place`: which blocks everything gets;
//! - `files`: the first inodes: root, lost+found, resize, journal, orphan file;
//! - `write`: bitmaps, descriptors, superblocks, and the order in which all of it is written.
//!
//! Bitmaps and inode tables of unused groups are not written: the `*_UNINIT` flags stand for them,
//! so that a large volume is made with little I/O.

mod files;
mod generations;
mod place;
mod plan;
mod write;

use std::fs::File;
use std::io::Read;

use xact_device::BlockDevice;
use xact_types::{Error, Result, Timestamp};

pub use generations::mkfs_generations;
use place::Placement;
use plan::Plan;
use write::Writer;

/// How large the journal is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JournalSize {
    /// By the volume's size, as mke2fs does; none below 2048 blocks.
    #[default]
    Default,
    None,
    /// Blocks, at least 1024.
    Blocks(u32),
    /// Bytes, rounded up to whole blocks.
    Bytes(u64),
}

/// What the volume is to be like. The default is what mke2fs makes.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// At most 16 bytes.
    pub label: String,
    /// Random if `None`.
    pub uuid: Option<[u8; 16]>,
    /// 1024, 2048 or 4096 bytes; by the volume's size if `None`: 1024 below 512 MiB, else 4096.
    pub block_size: Option<u32>,
    /// Bytes of the volume for each inode; by the volume's size if `None`.
    pub inode_ratio: Option<u32>,
    /// Bytes: 128 (no times after 2038, no nanoseconds) or a larger power of two.
    pub inode_size: u16,
    pub journal: JournalSize,
    /// Percent of the blocks that only root may use, at most 50.
    pub reserved_percent: u8,
    /// Feature `metadata_csum_seed`: the UUID can be changed while mounted. Linux 4.4 and later.
    pub csum_seed: bool,
    /// Feature `orphan_file`: unlinking does not meet in the superblock. Linux 5.15 and later
    /// (older ones mount the volume too if it was unmounted cleanly), e2fsprogs 1.47 and later.
    /// Left out where there is no journal.
    pub orphan_file: bool,
    /// The device reads as zeros all over (a new sparse file): neither inode tables nor the
    /// journal have to be zeroed, by us or by the kernel later.
    pub zeroed: bool,
    /// Bytes of the device that the volume takes; all of it if `None`.
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

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsReport {
    pub uuid: [u8; 16],
    pub block_size: u32,
    pub blocks: u64,
    pub reserved_blocks: u64,
    pub groups: u32,
    pub inodes: u32,
    /// 0: the volume has no journal.
    pub journal_blocks: u32,
    /// Bytes behind the volume for what generations move; 0 on a volume without generations.
    pub pool_bytes: u64,
}

/// Makes a volume that fills `device`; what was on it is lost.
///
/// Errors: `Usage` for options that do not fit together or the device, before anything is
/// written; `Io`, after which the device holds no volume.
pub fn mkfs(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<MkfsReport> {
    if device.is_read_only() {
        return Err(Error::ReadOnly);
    }
    let size_bytes = options.size_bytes.unwrap_or(device.size_bytes());
    if size_bytes > device.size_bytes() {
        return Err(Error::Usage("the volume is to be larger than its device".into()));
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

/// `Usage` where no volume of this size can be made with these options.
pub fn check(size_bytes: u64, options: &MkfsOptions) -> Result<()> {
    plan(size_bytes, options).map(drop)
}

fn plan(size_bytes: u64, options: &MkfsOptions) -> Result<(Plan, Placement)> {
    let plan = Plan::new(size_bytes, options, random()?)?;
    let place = Placement::new(&plan)?;
    Ok((plan, place))
}

/// For the UUID and for the seed of directory hashes.
fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|error| Error::io("reading random numbers", error))?;
    Ok(bytes)
}
