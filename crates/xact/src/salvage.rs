//! Saves a damaged volume with generations as plain ext4, past damage.

use std::sync::Arc;

use xact_check::{MissingReport, Progress, missing};
use xact_consistency::mmp::Mmp;
use xact_device::BlockDevice;
use xact_fs::VolumeOptions;
use xact_types::{Error, Result};

pub use xact_check::{Missing, MissingPart};
pub use xact_consistency::{BlockDamage, DamagedBlocks};

/// The outcome of [`export`] and [`convert`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Salvaged {
    /// The damaged blocks of the ext4 volume.
    pub damaged: Vec<DamagedBlocks>,
    /// The files and folders that the damage has touched.
    pub missing: Vec<Missing>,
    /// Whether the image must be repaired with e2fsck before its use.
    pub needs_repair: bool,
}

/// An open volume, before anything is written.
pub struct Salvage {
    source: xact_consistency::Salvage,
    device: Arc<dyn BlockDevice>,
}

impl Salvage {
    /// Opens the volume, or the snapshot of a name. Nothing is written.
    ///
    /// # Errors
    /// [`Error::Usage`] for a volume without generations, and for an unknown name;
    /// [`Error::Corrupt`] if the superblock is unusable, and for a name if the list of snapshots
    /// is.
    pub fn open(device: Arc<dyn BlockDevice>, snapshot: Option<&str>) -> Result<Salvage> {
        Ok(Salvage { source: xact_consistency::Salvage::open(device.clone(), snapshot)?, device })
    }

    /// Size of the ext4 volume, and so of an exported image, in bytes.
    pub fn volume_bytes(&self) -> u64 {
        self.source.volume_bytes()
    }

    /// Copies the volume, as far as it can be read, to another device as a plain ext4 image. That
    /// device must have at least [`Salvage::volume_bytes`] and read as zeros.
    ///
    /// # Errors
    /// [`Error::Io`] of the other device.
    pub fn export(&self, to: Arc<dyn BlockDevice>, progress: Progress<'_>) -> Result<Salvaged> {
        self.source.export(&*to)?;
        if self.source.damage().is_empty() {
            // As in `OfflineSnapshots::export`. Damage that the checksums of generations do not
            // cover may stop it, and is found again below.
            let opened = xact_fs::open(to.clone(), &VolumeOptions::default());
            past_corruption(opened.and_then(|view| view.close()))?;
        }
        self.report(to, progress)
    }

    /// Makes the volume a plain ext4 one, in place. The rest of the device is unused then.
    ///
    /// # Errors
    /// [`Error::Usage`] if the volume has snapshots, and [`Error::Corrupt`] if that cannot be
    /// known: then nothing was written. [`Error::Io`].
    pub fn convert(&self, progress: Progress<'_>) -> Result<Salvaged> {
        let claim = Mmp::acquire(&self.device)?;
        self.source.write_home()?;
        claim.map_or(Ok(()), Mmp::release)?;
        self.report(self.device.clone(), progress)
    }

    fn report(&self, image: Arc<dyn BlockDevice>, progress: Progress<'_>) -> Result<Salvaged> {
        let damaged = self.source.damage();
        let found = past_corruption(missing(image, &damaged, progress))?;
        let is_sound = found.as_ref().is_some_and(|found| found.problem_count == 0);
        let MissingReport { missing, .. } = found.unwrap_or_default();
        Ok(Salvaged { needs_repair: !damaged.is_empty() || !is_sound, damaged, missing })
    }
}

fn past_corruption<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(Error::Corrupt(_)) => Ok(None),
        result => result.map(Some),
    }
}
