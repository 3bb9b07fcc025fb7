//! Conversion between a plain ext4 volume and one with generations, both ways, in place.
//!
//! A crash at any point leaves the one or the other, with all files; another conversion then
//! continues. The crash arguments are at the heads of `generations/format` and
//! `generations/convert`.

use std::sync::Arc;

use xact_consistency::{EngineOptions, format_generations, open_generations, unmark_backups};
use xact_device::BlockDevice;
use xact_types::{Error, Result};

use crate::volume::{VolumeOptions, open};

/// Gives a plain ext4 volume generations. The rest of `device` after the volume becomes the pool. A
/// journal stays, empty and unused.
///
/// Errors: as [`open`] for writing; `Usage` if the volume already has generations, and for a pool
/// that is too small or too large.
pub fn to_generations(device: &Arc<dyn BlockDevice>) -> Result<()> {
    settle(device)?;
    format_generations(device.clone(), device.size_bytes())
}

/// Converts a volume with generations to a plain ext4 one, with the journal that it had before, if
/// any. The rest of the device is unused then. On a plain volume, it cleans up after an interrupted
/// conversion.
///
/// Errors: as [`open`] for writing; `Usage` if the volume has snapshots.
pub fn to_plain(device: &Arc<dyn BlockDevice>) -> Result<()> {
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    match open_generations(device.clone(), options) {
        Ok(_) => {}
        Err(Error::Usage(_)) => {
            settle(device)?;
            return unmark_backups(device.clone());
        }
        Err(error) => return Err(error),
    }
    settle(device)?;
    let engine = open_generations(device.clone(), EngineOptions::default())?;
    engine.snapshots().expect("was opened as one with generations").make_plain()
}

/// Recovers the volume, and leaves it like a clean unmount.
fn settle(device: &Arc<dyn BlockDevice>) -> Result<()> {
    open(device.clone(), &VolumeOptions { flusher: false, ..VolumeOptions::default() })?.close()
}
