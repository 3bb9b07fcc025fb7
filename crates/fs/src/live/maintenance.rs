//! Calls on the volume as a whole while it is open: trimming, the label.

use std::ops::Range;

use xact_consistency::Handle;
use xact_types::{BlockNr, Errno, Error, Result};

use super::LiveFs;

/// Bytes of a label, at most.
const LABEL_MAX: usize = 16;

impl LiveFs {
    /// Discards what is free in a range of bytes, in runs of at least `min_bytes`; returns the
    /// bytes.
    ///
    /// Errors: `EINVAL` for a range without a block, `EOPNOTSUPP` where the device cannot discard.
    pub fn trim(&self, range: Range<u64>, min_bytes: u64) -> Result<u64> {
        self.health.check_writable()?;
        let block = self.block_bytes();
        let (start, end) = (range.start / block, (range.end / block).min(self.sb.blocks_count()));
        let group_bytes = u64::from(self.sb.blocks_per_group()) * block;
        if min_bytes > group_bytes || start >= self.sb.blocks_count() || range.end - range.start < block {
            return Err(Errno::EINVAL.into());
        }
        // What was deleted before the call is free.
        self.engine.sync()?;
        let trimmed = self.allocator.trim(BlockNr(start)..BlockNr(end), min_bytes.div_ceil(block).max(1));
        match trimmed {
            Ok(blocks) => Ok(blocks * block),
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(Errno::EOPNOTSUPP.0) => {
                Err(Errno::EOPNOTSUPP.into())
            }
            Err(error) => Err(error),
        }
    }

    /// For the crash explorer's canary; see [`crate::alloc::Allocator`].
    #[cfg(feature = "faults")]
    pub(crate) fn discard_at_once(&self) {
        self.allocator.discard_at_once();
    }

    /// The volume's label.
    pub fn label(&self) -> Result<Vec<u8>> {
        Ok(crate::superblock::read(&self.engine, &self.sb)?.volume_name().to_vec())
    }

    /// Changes the label durably. `EINVAL` for more than 16 bytes.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() > LABEL_MAX {
            return Err(Errno::EINVAL.into());
        }
        self.health.check_writable()?;
        let mut handle = Handle::begin(&self.engine, 1)?;
        crate::superblock::update(&mut handle, &self.sb, |sb| sb.set_volume_name(label))?;
        let commit = handle.commit_id();
        drop(handle);
        self.engine.commit(commit)
    }
}
