//! A volume with generations: an ext4 volume without a journal, followed by the pool.

use std::sync::Arc;

use xact_consistency::{default_pool_bytes, format_generations};
use xact_device::BlockDevice;
use xact_types::{Error, Result};

use super::{JournalSize, MkfsOptions, MkfsReport, mkfs};

/// Creates a volume with generations on the whole `device`; the old contents are lost. The pool
/// gets `pool_bytes` (default: a sixteenth of the device, 4 MiB to 1 GiB), and the remainder after
/// the volume's last group.
///
/// Errors: as [`mkfs`], and `Usage` for a journal size, and for a pool that is too small for the
/// volume or leaves no space for it. A crash leaves no volume or a plain ext4 one, until the last
/// write.
pub fn mkfs_generations(
    device: &Arc<dyn BlockDevice>,
    options: &MkfsOptions,
    pool_bytes: Option<u64>,
) -> Result<MkfsReport> {
    if !matches!(options.journal, JournalSize::Default | JournalSize::None) {
        return Err(Error::Usage(
            "a volume with generations has no journal, so its size cannot be set".into(),
        ));
    }
    let device_bytes = device.size_bytes();
    let pool_bytes = pool_bytes.unwrap_or(default_pool_bytes(device_bytes));
    let Some(size_bytes) = device_bytes.checked_sub(pool_bytes).filter(|&bytes| bytes > 0) else {
        return Err(Error::Usage("the pool would take the whole device".into()));
    };
    let options = MkfsOptions { journal: JournalSize::None, size_bytes: Some(size_bytes), ..options.clone() };
    let report = mkfs(&**device, &options)?;
    format_generations(device.clone())?;
    let pool_bytes = device_bytes - report.blocks * u64::from(report.block_size);
    Ok(MkfsReport { pool_bytes, ..report })
}
