//! Discards unused blocks on the device: freed blocks (`-o discard`), and all free blocks (fstrim).
//!
//! Crash argument: a block is discarded when the commit that freed it is durable, no view reads it,
//! and no caller has taken it again.
//! 1. *Durable*: before that, a crash would restore its owner, which would find it empty.
//! 2. *Not taken*: its bit in memory stays set until the discard, or its group is locked during the
//!    discard; otherwise the new owner's data would be lost.
//! 3. *Not promised*: on a sparse image, what is discarded has no space on the host any more, and
//!    counts as such (`host`) before it can be taken.
//! 4. A replay writes nothing into a freed block (it is revoked), so after a crash the block is
//!    free and empty.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use xact_types::{BlockNr, Error, GroupNr, Result, Run};

use super::{Allocator, AllocatorCore};

impl Allocator {
    /// Sets whether freed blocks are discarded.
    pub fn set_discard(&self, on: bool) {
        self.shared.discard.store(on, Relaxed);
    }

    /// Discards the free runs of at least `min_blocks` blocks in `range`; returns the number of
    /// blocks.
    ///
    /// Errors: `Io` if the device cannot discard, `Corrupt` for a corrupt descriptor.
    pub fn trim(&self, range: Range<BlockNr>, min_blocks: u64) -> Result<u64> {
        self.read_groups()?;
        let mut trimmed = 0;
        for number in 0..self.shared.sb.group_count() {
            trimmed += self.shared.trim_group(GroupNr(number), &range, min_blocks)?;
        }
        Ok(trimmed)
    }

    /// Discards freed blocks before their commit is durable; a canary of the crash explorer.
    #[cfg(feature = "faults")]
    pub(crate) fn discard_at_once(&self) {
        self.shared.discard_at_once.store(true, Relaxed);
    }
}

impl AllocatorCore {
    #[cfg(feature = "faults")]
    pub(super) fn discards_at_once(&self) -> bool {
        self.discard_at_once.load(Relaxed)
    }

    /// Discards a freed run. If the device cannot, that is logged once, and no more discards
    /// follow.
    pub(super) fn discard_freed(&self, run: Run) {
        if !self.discard.load(Relaxed) {
            return;
        }
        match self.engine.discard(run.start, run.len.into()) {
            // A poisoned engine neither writes nor discards.
            Ok(()) | Err(Error::Poisoned(_)) => self.note_discarded(run),
            Err(error) => {
                // A part may have been discarded.
                self.note_discarded(run);
                if self.discard.swap(false, Relaxed) {
                    tracing::warn!("freed blocks are no longer discarded: {error}");
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
            // Held during one discard, so that the blocks stay free until it is done.
            let mut state = group.state.lock();
            let map = match self.block_map(number, &mut state) {
                Ok(map) => map,
                // A corrupt group is not used.
                Err(Error::Corrupt(_)) => return Ok(trimmed),
                Err(error) => return Err(error),
            };
            let Some(first) = map.bits.next_zero(at, end) else { break };
            let count = map.bits.zeros_at(first, end - first);
            at = first + count;
            if u64::from(count) >= min_blocks {
                // Accepted data may need the space on the host that a discard gives back.
                let (part, backed) = self.may_trim(&state, first, count);
                let done = match part {
                    0 => Ok(()),
                    part => self.engine.discard(start.offset(first.into()), part.into()),
                };
                // After an error a part may have been discarded.
                self.trimmed(number, &mut state, (first, part), backed);
                done?;
                trimmed += u64::from(part);
                if part > 0 {
                    at = first + part;
                }
            }
        }
        Ok(trimmed)
    }
}
