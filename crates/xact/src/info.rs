//! Properties of a volume, read from its superblock without opening the volume.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use xact_consistency::{EngineOptions, PoolUse, open_generations};
use xact_device::{FileDevice, OpenMode};
use xact_layout::feature::{compat, incompat, names, ro_compat};
use xact_layout::superblock::{
    STATE_CLEAN, STATE_ERRORS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock, Support,
};
use xact_types::{Error, Result};

/// Properties of a volume, from `struct ext4_super_block`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeInfo {
    /// Label of at most 16 bytes, without the zeros at its end.
    pub label: Vec<u8>,
    /// UUID in the order of its bytes on the volume.
    pub uuid: [u8; 16],
    /// Size of the ext4 volume, without the pool of generations.
    pub size_bytes: u64,
    /// Free space at the last clean unmount; on a volume with generations, in the newest one.
    pub free_bytes: u64,
    /// Space that only privileged users may fill.
    pub reserved_bytes: u64,
    /// Size of a block.
    pub block_size_bytes: u32,
    /// Number of block groups.
    pub groups: u32,
    /// Number of inodes, with the reserved ones.
    pub inodes: u32,
    /// Number of inodes that were free when `free_bytes` was.
    pub free_inodes: u32,
    /// Size of an inode in the inode tables.
    pub inode_size_bytes: u16,
    /// Whether the volume has a jbd2 journal.
    pub journal: bool,
    /// Whether the volume has generations, and so may have snapshots.
    pub generations: bool,
    /// Use of the pool of generations; `None` without generations and while the volume is in use.
    pub pool: Option<PoolUse>,
    /// Whether the journal or the intent log holds changes that were not written to their places
    /// yet: the volume is in use, or a crash interrupted it. Of an intent log in use it is unknown.
    pub needs_recovery: bool,
    /// Whether the volume was unmounted cleanly and has no errors noted.
    pub clean: bool,
    /// Whether damage was noted in use; `xact check` or e2fsck should look at the volume.
    pub errors_noted: bool,
    /// Names of the ext4 features, as `mke2fs -O` has them.
    pub features: Vec<String>,
    /// How xact can open the volume.
    pub access: Access,
}

/// How xact can open a volume with its features.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// For reading and writing.
    ReadWrite,
    /// For reading only; the text names the features that prevent writing.
    ReadOnly(String),
    /// Not at all; the text says why.
    Unsupported(String),
}

impl VolumeInfo {
    /// Reads the superblock of an image file or a block device, which another process may have
    /// open. Values that change in use are then those of the last write of the superblock.
    ///
    /// # Errors
    /// [`Error::Io`] as `open(2)`, and of the kind `UnexpectedEof` for a file that is too short for
    /// a volume; [`Error::Usage`] for contents other than ext4; [`Error::Corrupt`].
    pub fn read(path: &Path) -> Result<VolumeInfo> {
        let home = read_superblock(path)?;
        let info = VolumeInfo::of(&home);
        let newest = if info.generations { newest_generation(path) } else { None };
        Ok(match newest {
            Some(Newest { superblock, pool, is_logged: needs_recovery }) => {
                let VolumeInfo { label, free_bytes, free_inodes, errors_noted, .. } =
                    VolumeInfo::of(&superblock);
                let clean = info.clean && !errors_noted && !needs_recovery;
                let pool = Some(pool);
                VolumeInfo {
                    label,
                    free_bytes,
                    free_inodes,
                    errors_noted,
                    needs_recovery,
                    clean,
                    pool,
                    ..info
                }
            }
            None => info,
        })
    }

    fn of(sb: &Superblock) -> VolumeInfo {
        let block = u64::from(sb.block_size());
        let errors_noted = sb.state() & STATE_ERRORS != 0;
        let needs_recovery = sb.has_incompat(incompat::RECOVER);
        let features = [
            names(sb.feature_compat(), compat::NAMES),
            names(sb.feature_incompat(), incompat::NAMES),
            names(sb.feature_ro_compat(), ro_compat::NAMES),
        ];
        VolumeInfo {
            label: sb.volume_name().to_vec(),
            uuid: sb.uuid(),
            size_bytes: sb.blocks_count() * block,
            free_bytes: sb.free_blocks_count().saturating_mul(block),
            reserved_bytes: sb.reserved_blocks_count().saturating_mul(block),
            block_size_bytes: sb.block_size(),
            groups: sb.group_count(),
            inodes: sb.inodes_count(),
            free_inodes: sb.free_inodes_count(),
            inode_size_bytes: sb.inode_size(),
            journal: sb.has_compat(compat::HAS_JOURNAL),
            generations: sb.has_incompat(incompat::XACT_GENERATIONS),
            pool: None,
            needs_recovery,
            clean: sb.state() & STATE_CLEAN != 0 && !errors_noted && !needs_recovery,
            errors_noted,
            features: features
                .iter()
                .flat_map(|list| list.split(", "))
                .filter(|name| !name.is_empty())
                .map(str::to_string)
                .collect(),
            access: match sb.support() {
                Ok(Support::ReadWrite) => Access::ReadWrite,
                Ok(Support::ReadOnly(features)) => Access::ReadOnly(features),
                Err(error) => Access::Unsupported(error.to_string()),
            },
        }
    }
}

fn read_superblock(path: &Path) -> Result<Superblock> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    File::open(path)
        .and_then(|file| file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET))
        .map_err(|e| Error::io("reading the superblock", e))?;
    Superblock::decode(&bytes)
}

/// The newest generation of a volume.
struct Newest {
    superblock: Superblock,
    pool: PoolUse,
    /// The intent log has changes since then.
    is_logged: bool,
}

/// The newest generation, if no other process has the volume open and the generation is sound.
fn newest_generation(path: &Path) -> Option<Newest> {
    let device = Arc::new(FileDevice::open(path, OpenMode::ReadOnly).ok()?);
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let engine = open_generations(device, options).ok()?;
    let home = read_superblock(path).ok()?;
    let superblock = xact_fs::superblock::read(&engine, &home).ok()?;
    let is_logged = engine.recovery().intent_log_blocks > 0;
    Some(Newest { superblock, pool: engine.snapshots()?.pool_use().ok()?, is_logged })
}
