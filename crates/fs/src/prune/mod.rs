//! Cutting an image of the volume down to chosen files and folders: which blocks a snapshot of them
//! has.
//!
//! What comes of it is a volume of the same shape in which nothing else exists: the chosen as they
//! are, with all below them; the folders that lead there, with no other names in them; an empty
//! lost+found; and the reserved inodes. All else is free in its bitmaps and counts, so any
//! reader of ext4 reads it (`xact_consistency::PartialSnapshot` says how it is kept).
//!
//! - `selection`: from paths to inodes, in the tree;
//! - `image`: descriptors, inodes and the blocks of an inode, read from the image;
//! - `used`: which blocks of it are in use;
//! - `synthesize`: the metadata that it needs, synthesized.
//!
//! What is new: superblock, descriptors, bitmaps and blocks of inode tables with anything in them,
//! the folders on the way (as few blocks as their names take, in places that are free in the
//! partial image), counts of links and of the users of shared attribute blocks. What is not needed
//! costs nothing: groups with nothing in them have the `*_UNINIT` flags, and blocks of inode tables
//! without a chosen inode are zeros. So the cost is that of the chosen and of a descriptor for each
//! group, whatever else there is.
//!
//! Needs checksums of groups, by which those flags count, and extents, by which folders are
//! written. Quotas are left out: what was counted is not there.
//!
//! Nothing is written but what is returned; for the crash argument see `generations/partial.rs`.

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
use image::Image;
use selection::Selection;
use synthesize::Synthesis;

/// Memory for what is cached of the image, in bytes.
const CACHE_BYTES: u64 = 4 << 20;

/// Cuts the volume on `image`, which does not change during the call, down to some paths from its
/// root.
///
/// Errors: `Usage` for a path that is not there, and for the root itself; `Unsupported` where the
/// volume lacks a feature that this needs; `Corrupt`.
pub fn prune(image: Arc<dyn BlockDevice>, paths: &[Vec<u8>]) -> Result<PartialSnapshot> {
    let overlay = Arc::new(Overlay::new(image));
    let options = |read_only| VolumeOptions {
        read_only,
        cache_bytes: CACHE_BYTES,
        flusher: false,
        ..VolumeOptions::default()
    };
    // In memory: what was deleted while it was open goes, truncations end, and the volume is clean.
    open(overlay.clone(), &options(false))?.close()?;
    let image = Image::open(overlay.clone())?;
    if !image.sb.has_group_csum() || !image.sb.has_incompat(incompat::EXTENTS) {
        return Err(Error::Unsupported(
            "snapshots of chosen paths need a volume with checksums of groups (metadata_csum or uninit_bg) and extents"
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
