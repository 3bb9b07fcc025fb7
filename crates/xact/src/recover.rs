//! Recovery of a volume after a crash, without opening it for use.

use std::sync::Arc;

use xact_consistency::mmp::Mmp;
use xact_consistency::{EngineOptions, RecoveryReport};
use xact_device::{BlockDevice, FileDevice, OpenMode};
use xact_fs::VolumeOptions;
use xact_types::{Error, Result};

/// Replays the log, or writes a generation with the changes of the intent log; frees the orphans
/// (files that were deleted while they were open), and marks the volume clean.
/// [`Volume::open`](crate::Volume::open) does the same and leaves the volume open.
///
/// # Errors
/// As [`Volume::open`](crate::Volume::open) for writing.
pub fn recover(device: Arc<dyn BlockDevice>) -> Result<RecoveryReport> {
    let mut report = replay_log(&device)?;
    // Opening frees the orphans; closing makes all of it durable and marks the volume clean.
    let fs = xact_fs::open(device, &VolumeOptions::default())?;
    report.intent_log_blocks = fs.engine().recovery().intent_log_blocks;
    fs.close()?;
    Ok(report)
}

/// Opens a device for reading, after a replay of the log that a crash left, as the kernel does for
/// a read-only mount. `open` opens the device in a mode. If `is_unwritable` holds for its error,
/// nothing is replayed, and opening the volume reports why it cannot be read.
///
/// The device is locked as for any writer during the replay, and not locked between the openings: a
/// process that takes it then makes the next opening fail.
///
/// # Errors
/// Those of `open`, and those of [`recover`] by way of `failure`.
pub fn open_replayed<E>(
    open: impl Fn(OpenMode) -> Result<Arc<FileDevice>, E>,
    is_unwritable: impl Fn(&E) -> bool,
    failure: impl Fn(Error) -> E,
) -> Result<Arc<FileDevice>, E> {
    let device = open(OpenMode::ReadOnly)?;
    if !xact_consistency::needs_replay(&(device.clone() as _)).map_err(&failure)? {
        return Ok(device);
    }
    // The lock of a reader would be in the way of the writer's.
    drop(device);
    match open(OpenMode::ReadWrite) {
        Ok(writable) => {
            replay_log(&(writable as _)).map_err(&failure)?;
        }
        Err(error) if is_unwritable(&error) => {}
        Err(error) => return Err(error),
    }
    open(OpenMode::ReadOnly)
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
