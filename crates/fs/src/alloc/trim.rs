//! Telling the device which blocks hold nothing: freed ones (`-o discard`), and all that are free
//! (fstrim).
//!
//! Crash argument: a block is discarded when the commit that freed it is durable, nobody reads it
//! any more, and nobody was given it yet.
//! 1. *Durable*: before that, a crash brings its owner back, who would find it empty.
//! 2. *Not given away*: its bit in memory is set until it is discarded, or its group is locked
//!    meanwhile; else the new owner's data would go.
//! 3. A replay writes nothing into a freed block (it is revoked), so what a crash leaves is free
//!    and empty.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use xact_types::{BlockNr, Error, GroupNr, Result, Run};

use super::{Allocator, Shared};

impl Allocator {
    /// Whether freed blocks are discarded from now on.
    pub fn set_discard(&self, on: bool) {
        self.shared.discard.store(on, Relaxed);
    }

    /// Discards the free runs of at least `min_blocks` blocks in `range`; returns how many blocks
    /// that was.
    ///
    /// Errors: `Io` where the device cannot, `Corrupt` for a damaged descriptor.
    pub fn trim(&self, range: Range<BlockNr>, min_blocks: u64) -> Result<u64> {
        self.read_groups()?;
        let mut trimmed = 0;
        for number in 0..self.shared.sb.group_count() {
            trimmed += self.shared.trim_group(GroupNr(number), &range, min_blocks)?;
        }
        Ok(trimmed)
    }

    /// For the crash explorer's canary: freed blocks are discarded before their commit is durable.
    #[cfg(feature = "faults")]
    pub(crate) fn discard_at_once(&self) {
        self.shared.discard_at_once.store(true, Relaxed);
    }
}

impl Shared {
    #[cfg(feature = "faults")]
    pub(super) fn discards_at_once(&self) -> bool {
        self.discard_at_once.load(Relaxed)
    }

    /// A device that cannot is told so once, and not asked again.
    pub(super) fn discard_freed(&self, run: Run) {
        if !self.discard.load(Relaxed) {
            return;
        }
        match self.engine.discard(run.start, run.len.into()) {
            // Nothing is written after an error: nor is anything discarded.
            Ok(()) | Err(Error::Poisoned(_)) => {}
            Err(error) => {
                if self.discard.swap(false, Relaxed) {
                    log::warn!("freed blocks are no longer discarded: {error}");
                }
            }
        }
    }

    fn trim_group(&self, number: GroupNr, range: &Range<BlockNr>, min_blocks: u64) -> Result<u64> {
        let start = self.sb.group_start(number);
        let within = |block: BlockNr| block.0.saturating_sub(start.0);
        let len = u64::from(self.sb.blocks_in_group(number));
        let end = within(range.end).min(len) as u32;
        let mut at = within(range.start).min(len) as u32;
        let group = self.group(number);
        let mut trimmed = 0;
        while at < end {
            // Held over one discard: what is free stays so until it is done.
            let mut state = group.state.lock();
            let map = match self.block_map(number, &mut state) {
                Ok(map) => map,
                // Nothing of a damaged group is used.
                Err(Error::Corrupt(_)) => return Ok(trimmed),
                Err(error) => return Err(error),
            };
            let Some(first) = map.bits.next_zero(at, end) else { break };
            let count = map.bits.zeros_at(first, end - first);
            if u64::from(count) >= min_blocks {
                self.engine.discard(start.offset(first.into()), count.into())?;
                trimmed += u64::from(count);
            }
            at = first + count;
        }
        Ok(trimmed)
    }
}
