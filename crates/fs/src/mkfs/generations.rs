//! A volume with generations: an ext4 volume without a journal, followed by the pool.

use std::sync::Arc;

use xact_consistency::{default_pool_bytes, format_generations, min_pool_bytes};
use xact_device::BlockDevice;
use xact_types::units::size_text;
use xact_types::{Error, Result};

use super::plan::block_size;
use super::{JournalSize, MkfsOptions, MkfsReport, mkfs};

/// Size of the pool on a device of this size, unless the options give one: a sixteenth of the
/// device, 4 MiB to 1 GiB, or what the volume needs.
pub fn default_pool_bytes_for(device_bytes: u64, options: &MkfsOptions) -> u64 {
    default_pool_bytes(device_bytes, block_size(device_bytes, options))
}

/// `Usage` if a volume with generations of this size cannot be created with these options.
pub fn check_generations(device_bytes: u64, options: &MkfsOptions, pool_bytes: Option<u64>) -> Result<()> {
    let options = volume_options(device_bytes, options, pool_bytes)?;
    let size_bytes = options.size_bytes.expect("was set above");
    super::check(size_bytes, &options)?;
    let least = min_pool_bytes(size_bytes, block_size(size_bytes, &options));
    if device_bytes - size_bytes < least {
        let least = size_text(least.next_multiple_of(1 << 16));
        return Err(Error::Usage(format!("the pool is too small for this volume: it needs {least}")));
    }
    Ok(())
}

/// The options of the ext4 volume before the pool.
fn volume_options(device_bytes: u64, options: &MkfsOptions, pool_bytes: Option<u64>) -> Result<MkfsOptions> {
    let pool_bytes = pool_bytes.unwrap_or_else(|| default_pool_bytes_for(device_bytes, options));
    let Some(size_bytes) = device_bytes.checked_sub(pool_bytes).filter(|&bytes| bytes > 0) else {
        return Err(Error::Usage("the pool would take the whole device".into()));
    };
    Ok(MkfsOptions { journal: JournalSize::None, size_bytes: Some(size_bytes), ..options.clone() })
}

/// Creates a volume with generations on `device`, or on its first `options.size_bytes`; the old
/// contents are lost. The pool gets `pool_bytes` (default: [`default_pool_bytes_for`]), and the
/// remainder after the volume's last group.
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
    let end_bytes = options.size_bytes.unwrap_or(device.size_bytes());
    if end_bytes > device.size_bytes() {
        return Err(Error::Usage("the volume would be larger than its device".into()));
    }
    check_generations(end_bytes, options, pool_bytes)?;
    let report = mkfs(&**device, &volume_options(end_bytes, options, pool_bytes)?)?;
    format_generations(device.clone(), end_bytes)?;
    let pool_bytes = end_bytes - report.blocks * u64::from(report.block_size);
    Ok(MkfsReport { pool_bytes, ..report })
}

#[cfg(test)]
mod tests {
    use xact_device::MemoryDevice;

    use super::*;

    #[test]
    fn the_smallest_pool_is_enough_and_less_is_not() {
        for block_size in [1024, 2048, 4096] {
            for mib in [8, 20, 100] {
                let volume = mib << 20;
                let options = MkfsOptions { block_size: Some(block_size), ..MkfsOptions::default() };
                let make = |pool: u64| {
                    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(volume + pool));
                    let checked = check_generations(volume + pool, &options, Some(pool)).is_ok();
                    let made = mkfs_generations(&device, &options, Some(pool)).is_ok();
                    assert_eq!(checked, made, "{block_size}, {mib} MiB, a pool of {pool}");
                    made
                };
                let least = min_pool_bytes(volume, block_size);
                assert!(make(least), "{block_size}, {mib} MiB");
                assert!(!make(least - (least / 32).next_multiple_of(4096)), "{block_size}, {mib} MiB");
                let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(volume));
                assert!(mkfs_generations(&device, &options, None).is_ok(), "{block_size}, {mib} MiB");
            }
        }
    }
}
