//! Calls on the whole volume while it is open: trimming, the label, shutting down, the claim.

use std::ops::Range;

use xact_consistency::Handle;
use xact_consistency::mmp::Mmp;
use xact_types::{BlockNr, Errno, Error, Result};

use super::LiveFs;

/// Maximum length of a label in bytes.
const LABEL_MAX: usize = 16;

/// How much is made durable before all writing stops (`EXT4_IOC_SHUTDOWN`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Everything done so far.
    Sync,
    /// Metadata changes of operations, and data that was already written back.
    FlushLog,
    /// Nothing, as in a power cut.
    AtOnce,
}

impl LiveFs {
    /// Keeps the claim on a volume that several machines reach, until the file system is closed.
    pub(crate) fn keep_claim(&self, claim: Mmp) {
        self.health.keep_claim(claim);
    }

    /// Stops all writing until the volume is opened again. The log stays as it is, for recovery at
    /// the next opening.
    pub fn shut_down(&self, how: Shutdown) -> Result<()> {
        let done = match how {
            Shutdown::Sync => self.write_back_all(None).and_then(|()| self.engine.sync()),
            Shutdown::FlushLog => self.engine.sync(),
            Shutdown::AtOnce => Ok(()),
        };
        self.engine.poison("it was shut down (FS_IOC_SHUTDOWN)");
        done
    }

    /// Discards the free space in a range of bytes, in runs of at least `min_bytes`. Returns the
    /// number of bytes discarded.
    ///
    /// Errors: `EINVAL` for a range without a block, `EOPNOTSUPP` if the device cannot discard.
    pub fn trim(&self, range: Range<u64>, min_bytes: u64) -> Result<u64> {
        self.health.check_writable()?;
        let block = self.block_bytes();
        let (start, end) = (range.start / block, (range.end / block).min(self.sb.blocks_count()));
        let group_bytes = u64::from(self.sb.blocks_per_group()) * block;
        if min_bytes > group_bytes || start >= self.sb.blocks_count() || range.end - range.start < block {
            return Err(Errno::EINVAL.into());
        }
        // The blocks of files deleted before the call become free.
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

    /// Discards freed blocks before their commit; a canary of the crash explorer, see
    /// [`crate::alloc::Allocator`].
    #[cfg(feature = "faults")]
    pub(crate) fn discard_at_once(&self) {
        self.allocator.discard_at_once();
    }

    /// The volume's label.
    pub fn label(&self) -> Result<Vec<u8>> {
        Ok(crate::superblock::read(&self.engine, &self.sb)?.volume_name().to_vec())
    }

    /// Changes the label durably, and in its place on the device, where blkid(8) looks for it.
    /// `EINVAL` for more than 16 bytes.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() > LABEL_MAX {
            return Err(Errno::EINVAL.into());
        }
        self.health.check_writable()?;
        let mut handle = Handle::begin(&self.engine, 1)?;
        crate::superblock::update(&mut handle, &self.sb, |sb| sb.set_volume_name(label))?;
        let commit = handle.commit_id();
        drop(handle);
        self.engine.commit(commit)?;
        self.engine.journal().map_or(Ok(()), |journal| journal.checkpoint())
    }
}
