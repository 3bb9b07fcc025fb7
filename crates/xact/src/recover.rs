//! Recovery of a volume after a crash, without opening it for use.

use std::sync::Arc;

use xact_consistency::mmp::Mmp;
use xact_consistency::{EngineOptions, RecoveryReport};
use xact_device::BlockDevice;
use xact_fs::VolumeOptions;
use xact_types::Result;

/// Replays the log, frees the orphans (files that were deleted while they were open), and marks the
/// volume clean. [`Volume::open`](crate::Volume::open) does the same and leaves the volume open.
///
/// # Errors
/// As [`Volume::open`](crate::Volume::open) for writing.
pub fn recover(device: Arc<dyn BlockDevice>) -> Result<RecoveryReport> {
    let report = replay_log(&device)?;
    // Opening frees the orphans; closing makes all of it durable and marks the volume clean.
    xact_fs::open(device, &VolumeOptions::default())?.close()?;
    Ok(report)
}

/// Replays the log alone (jbd2's recovery), in passes for scan, revoke and replay. Orphans remain
/// for the next opening.
///
/// # Errors
/// As [`recover`].
pub fn replay_log(device: &Arc<dyn BlockDevice>) -> Result<RecoveryReport> {
    let claim = Mmp::acquire(device)?;
    let report = xact_consistency::recover(device, &EngineOptions::default())?;
    claim.map_or(Ok(()), Mmp::release)?;
    Ok(report)
}
