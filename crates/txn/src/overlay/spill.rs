//! Spills written contents of a transaction to the volume when they exceed a limit of memory
//! (TX-16).
//!
//! The oldest contents are spilled first, in file order for each file, until half of the limit is
//! left. Contents that were dropped before (of a file that was created and deleted, TX-8) are not
//! written. Contents that a savepoint shares stay in memory for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use xact_fs::{BlockContents, SpillPlace, SpilledBlock};
use xact_types::{FileBlock, Ino, Result};

use super::Overlay;

/// Writes contents of consecutive blocks of a file.
type Write<'a> = &'a mut dyn FnMut(&SpillPlace<'_>, &[Arc<[u8]>]) -> Result<Vec<SpilledBlock>>;

impl Overlay {
    fn is_in_memory(&self, ino: Ino, at: FileBlock) -> bool {
        let node = self.nodes.get(&ino);
        let block = node.and_then(|node| node.file.blocks.get(&at)).and_then(Option::as_ref);
        block.is_some_and(|block| block.in_memory().is_some())
    }

    /// Spills until at most `limit` blocks are in memory. After an error, unwritten blocks stay in
    /// memory.
    pub fn spill(&mut self, limit: usize, write: Write<'_>) -> Result<()> {
        if self.in_memory.len() <= limit {
            return Ok(());
        }
        let mut known = std::mem::take(&mut self.in_memory);
        known.retain(|&(ino, at)| self.is_in_memory(ino, at));
        // A block that was dropped and came again counts once.
        let mut seen = BTreeSet::new();
        known.retain(|block| seen.insert(*block));
        if known.len() <= limit / 2 {
            self.in_memory = known;
            return Ok(());
        }
        let mut going: Vec<(Ino, FileBlock)> = known.drain(..known.len() - limit / 2).collect();
        going.sort_unstable();
        let follows =
            |one: &(Ino, FileBlock), two: &(Ino, FileBlock)| one.0 == two.0 && one.1.offset(1) == two.1;
        let mut done = 0;
        let mut result = Ok(());
        for run in going.chunk_by(follows) {
            result = self.spill_run(run, write);
            if result.is_err() {
                break;
            }
            done += run.len();
        }
        known.extend(&going[done..]);
        self.in_memory = known;
        result
    }

    fn spill_run(&mut self, run: &[(Ino, FileBlock)], write: Write<'_>) -> Result<()> {
        let (ino, first) = run[0];
        let node = self.nodes.get_mut(&ino).expect("found above");
        let payer = node.payer();
        let blocks = &mut node.file.blocks;
        let contents: Vec<Arc<[u8]>> = run
            .iter()
            .filter_map(|(_, at)| blocks.get(at).and_then(Option::as_ref)?.in_memory().cloned())
            .collect();
        assert_eq!(contents.len(), run.len(), "all of them are in memory");
        let before =
            first.0.checked_sub(1).and_then(|at| blocks.get(&FileBlock(at))).and_then(Option::as_ref);
        let after = match before {
            Some(BlockContents::Spilled(block)) => Some(block.clone()),
            _ => None,
        };
        let places = write(&SpillPlace { ino, payer, after: after.as_ref() }, &contents)?;
        for ((_, at), place) in run.iter().zip(places) {
            blocks.insert(*at, Some(BlockContents::Spilled(place)));
        }
        Ok(())
    }
}
