//! Snapshots of a volume that is not open for its files.

use std::sync::Arc;

use xact_consistency::mmp::Mmp;
use xact_consistency::{Engine, EngineOptions, SnapshotInfo, Snapshots, open_generations};
use xact_device::{BlockDevice, OpenMode};
use xact_fs::VolumeOptions;
use xact_types::Result;

use crate::retention::RetentionPolicy;
use crate::volume::now_seconds;

/// The snapshots of a volume whose files are not open: its generations alone.
///
/// Opening takes less than [`Volume::open`](crate::Volume::open), and a whole volume can be
/// restored and exported. Snapshots of chosen paths and differences need files:
/// [`Volume::create_snapshot_of`](crate::Volume::create_snapshot_of),
/// [`Volume::diff_snapshots`](crate::Volume::diff_snapshots).
///
/// ```
/// # fn main() -> xact::Result<()> {
/// use std::sync::Arc;
/// use xact::device::{BlockDevice, MemoryDevice, OpenMode};
/// use xact::{OfflineSnapshots, PathExt, Volume, mkfs};
/// let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(64 << 20));
/// mkfs::mkfs_generations(&device, &Default::default(), None)?;
/// let snapshots = OfflineSnapshots::open(device.clone(), OpenMode::ReadWrite)?;
/// snapshots.create("empty")?;
/// snapshots.close()?;
///
/// let volume = Volume::open(device.clone(), &Default::default())?;
/// volume.write("/mistake", "")?;
/// volume.close()?;
///
/// let snapshots = OfflineSnapshots::open(device.clone(), OpenMode::ReadWrite)?;
/// snapshots.restore("empty")?;
/// snapshots.close()?;
/// let volume = Volume::open(device, &Default::default())?;
/// assert!(!volume.exists("/mistake")?);
/// volume.close()
/// # }
/// ```
pub struct OfflineSnapshots {
    engine: Arc<Engine>,
    /// The claim on a volume with multi-mount protection that is open for writing.
    claim: Option<Mmp>,
}

impl OfflineSnapshots {
    /// Opens the generations of the volume on a device.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) on a volume without generations; others as
    /// [`Volume::open`](crate::Volume::open).
    pub fn open(device: Arc<dyn BlockDevice>, mode: OpenMode) -> Result<OfflineSnapshots> {
        let options = EngineOptions { read_only: mode == OpenMode::ReadOnly, ..EngineOptions::default() };
        let claim = if options.read_only { None } else { Mmp::acquire(&device)? };
        match open_generations(device, options) {
            Ok(engine) => {
                if let Some(claim) = &claim {
                    claim.guard(engine.clone());
                }
                Ok(OfflineSnapshots { engine, claim })
            }
            Err(error) => {
                // The error of opening matters more than that of the release.
                let _ = claim.map_or(Ok(()), Mmp::release);
                Err(error)
            }
        }
    }

    fn snapshots(&self) -> &dyn Snapshots {
        self.engine.snapshots().expect("was opened as one with generations")
    }

    /// Size of the ext4 volume, and so of an exported image, in bytes.
    pub fn volume_bytes(&self) -> u64 {
        self.engine.volume_bytes()
    }

    /// Keeps the volume as it is under a name. Errors as
    /// [`Volume::create_snapshot`](crate::Volume::create_snapshot).
    pub fn create(&self, name: &str) -> Result<()> {
        self.snapshots().create(name, now_seconds())
    }

    /// Deletes a snapshot. Errors as [`Volume::delete_snapshot`](crate::Volume::delete_snapshot).
    pub fn delete(&self, name: &str) -> Result<()> {
        self.snapshots().delete(name)
    }

    /// The snapshots, from the oldest to the newest. Takes time in proportion to the contents of
    /// the pool.
    pub fn list(&self) -> Result<Vec<SnapshotInfo>> {
        self.snapshots().list()
    }

    /// Deletes the snapshots whose names begin with `prefix` and that the policy does not keep;
    /// with `dry_run`, none. Returns their names, from the oldest on. Errors as
    /// [`Volume::prune`](crate::Volume::prune).
    pub fn prune(&self, policy: &RetentionPolicy, prefix: &str, dry_run: bool) -> Result<Vec<String>> {
        let expired = policy.expired(&self.snapshots().times(), prefix, now_seconds())?;
        if !dry_run {
            expired.iter().try_for_each(|name| self.delete(name))?;
        }
        Ok(expired)
    }

    /// Makes the volume what it was when the snapshot was created, in one commit, and discards
    /// later changes that no snapshot has. The snapshots and the volume's settings stay.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) for an unknown name, and for a snapshot of chosen
    /// paths; [`Error::NoSpace`](crate::Error::NoSpace).
    pub fn restore(&self, name: &str) -> Result<()> {
        self.snapshots().restore(name)
    }

    /// Copies a snapshot, or without a name the volume as it is, to another device as a plain ext4
    /// image that was unmounted cleanly. That device must have at least
    /// [`OfflineSnapshots::volume_bytes`] and read as zeros. The volume as it is needs
    /// [`OpenMode::ReadOnly`].
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage); [`Error::Io`](crate::Error::Io) of either device.
    pub fn export(&self, name: Option<&str>, to: Arc<dyn BlockDevice>) -> Result<()> {
        self.snapshots().image(name)?.export(&*to)?;
        // Files that were deleted while they were open are still on the list of orphans. Opening
        // the image frees them, so that e2fsck finds nothing.
        xact_fs::open(to, &VolumeOptions::default())?.close()
    }

    /// Makes the changes durable and closes the volume. Without it the next opening recovers, and
    /// on a volume with the feature `mmp` it waits until the claim is old.
    pub fn close(self) -> Result<()> {
        self.engine.close()?;
        self.claim.map_or(Ok(()), Mmp::release)
    }
}
