//! A journal that is longer for a time, for a commit that does not fit in the log as it is (TX-16).
//!
//! The file system gives the journal's inode more blocks, and takes them back (`xact_fs`,
//! `live/space/journal_size.rs`); the log's geometry changes here. On the volume:
//!
//! ```text
//!              note        inode's commit,          large commits     shorten      inode's commit,
//!             the size     home; lengthen                                          home; forget
//!  MADE ------------> NOTED ------------> LONG --------------> ... -----> SHORT ------------> MADE
//!  s_maxlen n         n, made_with n      m, made_with n                  n, made_with n      n
//!  inode    n         n, then m           m                               m, then n           n
//! ```
//!
//! Crash argument:
//! 1. `s_maxlen` is never above the number of the inode's blocks *at home*: every recovery (ours,
//!    the kernel's and e2fsck's) finds the log through the inode before it replays anything. So the
//!    inode gets longer at home, by a checkpoint, before `s_maxlen` rises, and shorter only after
//!    it fell.
//! 2. `s_maxlen` changes only while the log is empty and the durable tail is at the head. So no
//!    recovery looks for a transaction in another ring than the one that it was written to. All
//!    fields lie in one sector.
//! 3. The new blocks hold zeros before the inode's commit: the old contents of a file there must
//!    not be taken for a part of the log.
//! 4. `made_with` is durable before the inode changes, and is removed last. If it is present when
//!    the volume is opened, the journal must become shorter again, whichever step a crash came
//!    after. To other programs `made_with` is padding, so they see an ordinary journal of the
//!    present length.

use std::sync::atomic::Ordering::Relaxed;

use xact_types::{BlockNr, Error, Ino, Result, Run, Site};

use super::Journal;
use super::commit::{Limits, revokes_in};
use super::location::{JournalLayout, JournalRun};
use super::log::Ring;
use crate::fault::Fault;
use crate::mechanism::{JournalSize, ResizableJournal};

impl ResizableJournal for Journal {
    fn size(&self) -> JournalSize {
        let head = self.head.lock();
        let made_with = (head.fields.made_with != 0).then_some(head.fields.made_with);
        JournalSize { blocks: head.fields.maxlen, made_with }
    }

    fn blocks_for(&self, credits: u32) -> Result<u32> {
        let first = self.head.lock().fields.first;
        let ring = Limits::ring_for(credits);
        let limit = self.core.pipeline.max_alone().into();
        let blocks = ring.and_then(|ring| ring.checked_add(first));
        blocks.ok_or(Error::TooLarge { blocks: credits.into(), limit })
    }

    fn note_size(&self) -> Result<()> {
        self.core.check_open()?;
        self.core.guard(self.note_made_with())
    }

    fn lengthen(&self, runs: &[Run]) -> Result<()> {
        let layout = layout_of(runs)?;
        let _turn = self.core.pipeline.lead_alone();
        self.core.guard(self.lengthen_to(layout))
    }

    fn shorten(&self) -> Result<()> {
        let Some(made_with) = self.size().made_with else { return Ok(()) };
        let _turn = self.core.pipeline.lead_alone();
        self.core.guard(self.shorten_to(made_with))
    }

    fn forget_size(&self) -> Result<()> {
        let mut head = self.head.lock();
        head.fields.made_with = 0;
        // Not flushed: if an opening still finds the note, it has nothing to do.
        self.core.guard(head.write(&self.core.volume))
    }

    fn checkpoint(&self) -> Result<()> {
        self.core.guard(self.checkpoint_to(0))
    }
}

impl Journal {
    fn note_made_with(&self) -> Result<()> {
        self.core.volume.poison.check()?;
        let mut head = self.head.lock();
        if head.fields.made_with != 0 {
            return Ok(());
        }
        head.fields.made_with = head.fields.maxlen;
        head.write(&self.core.volume)?;
        // Durable by this flush: the note. Without it a crash could leave a longer journal that no
        // opening recognizes as one.
        self.core.volume.flush()
    }

    fn lengthen_to(&self, layout: JournalLayout) -> Result<()> {
        self.core.volume.poison.check()?;
        if !self.core.faults.has(Fault::LongerBeforeInode) {
            self.checkpoint_to(0)?;
            if JournalLayout::locate(&self.core.volume, &self.superblock)? != layout {
                return Err(Error::corrupt(Site::Inode(Ino::JOURNAL), "has other blocks than it was given"));
            }
        }
        self.set_geometry(layout)
    }

    fn shorten_to(&self, made_with: u32) -> Result<()> {
        self.core.volume.poison.check()?;
        let ring = self.log.ring();
        if ring.end <= made_with {
            return Ok(());
        }
        // From here on no operation begins that only the long log takes. The running ones are
        // written to it.
        let limits = self.limits(made_with - ring.first);
        self.core.pipeline.limit_alone(limits.alone);
        self.commit_running()?;
        self.checkpoint_to(0)?;
        self.set_geometry(ring.layout.first_blocks(made_with)?)
    }

    /// The log, which is empty, has these blocks from now on. The caller leads, so no thread writes
    /// to it.
    fn set_geometry(&self, layout: JournalLayout) -> Result<()> {
        let ring = {
            let mut state = self.log.state.lock();
            let mut head = self.head.lock();
            let fields = &mut head.fields;
            fields.maxlen = layout.blocks();
            let ring = Ring::new(layout, fields)?;
            if !(ring.first..ring.end).contains(&state.head) {
                state.head = ring.first;
            }
            if fields.start != 0 {
                (fields.start, fields.sequence) = (state.head, state.sequence);
            } else {
                fields.head = state.head;
            }
            drop(state);
            head.write(&self.core.volume)?;
            ring
        };
        // Durable by this flush: the log's new geometry. Without it a shorter journal's inode could
        // be home before, and in a longer one a recovery would look for the next transaction
        // elsewhere.
        self.core.volume.flush()?;
        let limits = self.limits(ring.blocks());
        self.core.volume.reserve(ring.layout.ranges());
        self.log.set_ring(ring);
        self.core.blocks.max_forgotten.store(limits.forgotten, Relaxed);
        self.core.pipeline.limit_alone(limits.alone);
        Ok(())
    }

    fn limits(&self, ring_blocks: u32) -> Limits {
        Limits::of(revokes_in(self.commit_writes, &self.log.format), ring_blocks)
    }
}

/// Runs in the journal's order. Adjacent runs are merged.
fn layout_of(runs: &[Run]) -> Result<JournalLayout> {
    let mut layout: Vec<JournalRun> = Vec::new();
    let mut log_block = 0;
    for run in runs {
        match layout.last_mut() {
            Some(last) if last.start.0 + u64::from(last.blocks) == run.start.0 => last.blocks += run.len,
            _ => layout.push(JournalRun { log_block, start: BlockNr(run.start.0), blocks: run.len }),
        }
        log_block += run.len;
    }
    JournalLayout::new(layout)
}
