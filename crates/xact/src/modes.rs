//! The modes that a volume stores for its next opening, read and changed without a mount.

use std::sync::Arc;

use xact_consistency::{EngineOptions, open, recovered_superblock};
use xact_device::{BlockDevice, Overlay};
use xact_fs::{ModeChoice, VolumeOptions, journal_modes};
use xact_types::Result;

use crate::volume::Volume;

/// The modes that are stored on a volume, as the replay of its log would leave them. Nothing is
/// written to the device.
///
/// # Errors
/// As [`Volume::open`] for reading.
pub fn stored_modes(device: Arc<dyn BlockDevice>) -> Result<ModeChoice> {
    let device: Arc<dyn BlockDevice> = Arc::new(Overlay::new(device));
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let engine = open(device.clone(), options)?;
    let home = recovered_superblock(&device, &EngineOptions::default())?;
    Ok(journal_modes::stored(&xact_fs::superblock::read(&engine, &home)?))
}

/// Changes the modes that are stored on a volume, durably. The volume is recovered first.
///
/// # Errors
/// As [`Volume::open`] and [`Volume::store_modes`].
pub fn change_modes(
    device: Arc<dyn BlockDevice>,
    change: impl FnOnce(ModeChoice) -> ModeChoice,
) -> Result<()> {
    let volume = Volume::open(device, &VolumeOptions::default())?;
    let stored = volume.stored_modes().and_then(|modes| volume.store_modes(change(modes)));
    volume.close()?;
    stored
}
