//! Prunes an image of the volume to selected files and folders, for a partial snapshot.
//!
//! The result is a volume of the same geometry with nothing else in it: the selected files and
//! folders unchanged, with all below them; their parent folders, without other names; an empty
//! lost+found; and the reserved inodes. All other blocks are free in its bitmaps and counts, so any
//! reader of ext4 can read it (`xact_consistency::PartialSnapshot` describes how it is stored).
//!
//! - `selection`: finds the inodes of paths
//! - `image`: reads descriptors, inodes and the blocks of an inode from the image
//! - `used`: the blocks in use in the partial image
//! - `synthesize`: its metadata
//!
//! New metadata: superblock, descriptors, bitmaps and blocks of inode tables that are in use; the
//! parent folders, in as few blocks as their names need, at places that are free in the partial
//! image; link counts, and the user counts of shared attribute blocks. Unused parts cost nothing:
//! empty groups have the `*_UNINIT` flags, and blocks of inode tables without a selected inode are
//! zeros. So the cost depends only on the selected files and the number of groups.
//!
//! It needs checksums of groups, for those flags, and extents, for the new folders. Quotas are left
//! out, because most of the counted files are missing.
//!
//! This module writes nothing; for the crash argument see `generations/partial.rs`.

mod image;
mod selection;
mod synthesize;
mod used;

use std::sync::Arc;

use xact_consistency::PartialSnapshot;
use xact_device::{BlockDevice, Overlay};
use xact_layout::feature::incompat;
use xact_types::{Error, Result};

use crate::volume::{VolumeOptions, open};
use image::SourceImage;
use selection::Selection;
use synthesize::Synthesis;

/// Memory for the image's cache, in bytes.
const CACHE_BYTES: u64 = 4 << 20;

/// Prunes the volume on `image`, which must not change during the call, to some paths from its
/// root.
///
/// Errors: `Usage` for a path that does not exist, and for the root itself; `Unsupported` if the
/// volume lacks a required feature; `Corrupt`.
pub fn prune(image: Arc<dyn BlockDevice>, paths: &[Vec<u8>]) -> Result<PartialSnapshot> {
    let overlay = Arc::new(Overlay::new(image));
    let options = |read_only| VolumeOptions {
        read_only,
        cache_bytes: CACHE_BYTES,
        flusher: false,
        ..VolumeOptions::default()
    };
    // In memory: deletes orphans, finishes truncations, and marks the volume clean.
    open(overlay.clone(), &options(false))?.close()?;
    let image = SourceImage::open(overlay.clone())?;
    if !image.sb.has_group_csum() || !image.sb.has_incompat(incompat::EXTENTS) {
        return Err(Error::Unsupported(
            "snapshots of selected paths need a volume with checksums of groups (metadata_csum or uninit_bg) and extents"
                .into(),
        ));
    }
    let view = open(overlay.clone(), &options(true))?;
    let selection = Selection::find(&*view, paths)?;
    view.close()?;
    let mut synthesis = Synthesis::new(&image);
    synthesis.synthesize(&selection)?;
    let mut partial = synthesis.finish()?;
    for block in overlay.changed_blocks(image.sb.block_size()) {
        let block = xact_types::BlockNr(block);
        let kept = partial.kept.iter().any(|range| range.contains(&block.0));
        if kept && !partial.blocks.contains_key(&block) {
            partial.blocks.insert(block, image.block(block)?.into());
        }
    }
    partial.paths = selection.paths;
    Ok(partial)
}
