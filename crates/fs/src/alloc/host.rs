//! Space on the host file system of a sparse image, taken before it is promised to a caller.
//!
//! A reservation promises blocks without a place, so it needs as many free blocks that have space
//! on the host (*backed* blocks). A write would otherwise find the host full after the call that it
//! belongs to has returned, and poison the volume.
//!
//! Invariants:
//! 1. `Counters::unbacked` counts at least the free blocks without space on the host. It never
//!    exceeds the free blocks that are not reserved. So each reserved block has a backed one.
//! 2. A block that was taken is backed: [`AllocatorCore::back_run`] takes space for it, or chooses
//!    another run. By 1 there is one.
//! 3. A group counts all its free blocks as unbacked until its holes and its bitmap were looked at
//!    together (`counted`), and its bitmap is backed. From then on it counts exactly.
//! 4. An inode is taken only where both bitmaps, and the part of the table that its linking
//!    writes, are backed. Other metadata of a group is never a hole: it is not zero.
//! 5. Blocks in use may be holes too (a copy that leaves out zeros): [`Allocator::back`] is called
//!    before a write over them is accepted, and again before it is made.
//!
//! The journal and the pool of generations get their space when the volume is opened.
//!
//! Space is taken in windows, so that few calls are needed. Discarding blocks gives it back
//! (`trim`); they are unbacked then before they are free.
//!
//! Crash argument: `xact_device::host_space`. Nothing on the volume says what is backed, so there
//! is no order to keep; at the next opening the holes are looked up again.

use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use xact_types::{BlockNr, Error, GroupNr, Result};

use super::bitmap::Bitmap;
use super::group::{GroupMaps, Map, Prefetch};
use super::space::Purpose;
use super::{Allocator, AllocatorCore, Run};

/// Space is taken for this much at once.
const WINDOW_BYTES: u32 = 4 << 20;
/// Blocks of an inode table that get space at once.
const TABLE_WINDOW: u32 = 16;
/// Attempts to reserve while other threads use up what was taken for it.
const ATTEMPTS: u32 = 16;

/// The parts of a group that have space on the host, as far as known.
#[derive(Default)]
pub(super) struct GroupHost {
    /// Blocks that may have none; `None` before the host was asked.
    holes: Option<Holes>,
    /// `Group::unbacked` is the number of free blocks in `holes`.
    counted: bool,
    /// Blocks of the inode table that may have none.
    table: Option<Holes>,
    /// Both bitmaps have space.
    has_bitmaps: bool,
}

/// Sorted ranges `start..end` without overlap.
#[derive(Default)]
struct Holes {
    runs: Vec<(u32, u32)>,
}

impl Holes {
    fn of(ranges: &[Range<u64>], first: BlockNr) -> Holes {
        let mut holes = Holes::default();
        for range in ranges {
            holes.add((range.start - first.0) as u32, (range.end - first.0) as u32);
        }
        holes
    }

    /// The first hole, or part of one, in a range.
    fn next(&self, start: u32, end: u32) -> Option<(u32, u32)> {
        let at = self.runs.partition_point(|run| run.1 <= start);
        let run = self.runs.get(at).filter(|run| run.0 < end && start < end)?;
        Some((run.0.max(start), run.1.min(end)))
    }

    /// The smallest range with all holes of a range.
    fn span(&self, start: u32, end: u32) -> Option<(u32, u32)> {
        let first = self.next(start, end)?.0;
        let after = self.runs.partition_point(|run| run.0 < end);
        Some((first, self.runs[after - 1].1.min(end)))
    }

    fn add(&mut self, start: u32, end: u32) {
        self.remove(start, end);
        let at = self.runs.partition_point(|run| run.0 < start);
        self.runs.insert(at, (start, end));
    }

    fn remove(&mut self, start: u32, end: u32) {
        let first = self.runs.partition_point(|run| run.1 <= start);
        let after = self.runs.partition_point(|run| run.0 < end);
        if first >= after {
            return;
        }
        let (left, right) = ((self.runs[first].0, start), (end, self.runs[after - 1].1));
        let rest = [left, right].into_iter().filter(|run| run.0 < run.1);
        self.runs.splice(first..after, rest);
    }

    /// Number of free blocks of `bits` within the holes of a range.
    fn zeros(&self, bits: &Bitmap, start: u32, end: u32) -> u32 {
        let (mut count, mut at) = (0, start);
        while let Some((from, to)) = self.next(at, end) {
            count += bits.zeros_within(from, to);
            at = to;
        }
        count
    }

    /// Number of blocks of a range within holes.
    fn blocks(&self, start: u32, end: u32) -> u32 {
        let (mut count, mut at) = (0, start);
        while let Some((from, to)) = self.next(at, end) {
            count += to - from;
            at = to;
        }
        count
    }
}

impl Allocator {
    /// Takes space on the host for blocks that are in use, before they are written. `HostFull`
    /// changes nothing.
    pub fn back(&self, run: Run) -> Result<()> {
        self.shared.read_all()?;
        self.shared.back_used(run)
    }
}

impl AllocatorCore {
    pub(super) fn is_sparse(&self) -> bool {
        self.engine.is_sparse()
    }

    /// Reserves blocks, and takes space on the host for them first.
    pub(super) fn reserve(&self, least: u64, most: u64, purpose: Purpose) -> Result<u64> {
        let mut damage = None;
        for _ in 0..ATTEMPTS {
            let short = self.counters.short_of_backed(most, purpose);
            let is_full = short > 0 && self.back_more(short, &mut damage)?;
            match self.counters.reserve(least, most, purpose) {
                // Blocks that become free are counted as without space a moment before they are
                // counted as free.
                Err(Error::HostFull) if !is_full || self.counters.short_of_backed(least, purpose) == 0 => {}
                Err(Error::NoSpace) => return Err(damage.unwrap_or(Error::NoSpace)),
                result => return result,
            }
        }
        Err(Error::HostFull)
    }

    /// Takes space on the host for `blocks` more free blocks, near the blocks that were taken last.
    /// True if the host is full. Sets `damage` if a group is damaged: it has less space than was
    /// counted.
    fn back_more(&self, blocks: u64, damage: &mut Option<Error>) -> Result<bool> {
        let target = self.counters.unbacked().saturating_sub(blocks);
        let hand = BlockNr(self.host_hand.load(Relaxed).max(self.sb.first_data_block().into()));
        let home = self.sb.group_of(hand);
        let index = (hand.0 - self.sb.group_start(home).0) as u32;
        // On a full host the other groups are still asked which of their free blocks have space.
        let mut is_full = false;
        'groups: for (nr, number) in self.groups_from(home).enumerate() {
            if self.counters.unbacked() <= target {
                return Ok(false);
            }
            let group = self.group(number);
            if group.unbacked.load(Relaxed) == 0 || group.free_blocks.load(Relaxed) == 0 {
                continue;
            }
            let mut state = self.lock(number, Prefetch::BlockMap);
            match self.block_map(number, &mut state) {
                Ok(_) => {}
                Err(error @ Error::Corrupt(_)) => {
                    *damage = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            }
            is_full |= !self.count_holes(number, &mut state)?;
            if is_full {
                continue;
            }
            let len = self.sb.blocks_in_group(number);
            let start = if nr == 0 { index } else { 0 };
            for (from, end) in [(start, len), (0, start)] {
                let mut at = from;
                while self.counters.unbacked() > target {
                    let Some(free) = self.next_unbacked(number, &mut state, at, end)? else { break };
                    match self.back_window(number, &mut state, free, free + 1) {
                        Err(Error::HostFull) => {
                            is_full = true;
                            continue 'groups;
                        }
                        done => done?,
                    }
                    at = free + 1;
                }
            }
        }
        Ok(self.counters.unbacked() > target)
    }

    /// The first free block of a range that has no space on the host.
    fn next_unbacked(
        &self,
        number: GroupNr,
        state: &mut GroupMaps,
        start: u32,
        end: u32,
    ) -> Result<Option<u32>> {
        let mut at = start;
        while let Some((from, to)) = state.host.holes.as_ref().and_then(|holes| holes.next(at, end)) {
            if let Some(free) = self.block_map(number, state)?.bits.next_zero(from, to) {
                return Ok(Some(free));
            }
            at = to;
        }
        Ok(None)
    }

    /// Asks the host for the holes of a group, once.
    fn find_holes(&self, number: GroupNr, state: &mut GroupMaps) -> Result<()> {
        if state.host.holes.is_none() {
            let start = self.sb.group_start(number);
            let holes = self.engine.holes(start, self.sb.blocks_in_group(number).into())?;
            state.host.holes = Some(Holes::of(&holes, start));
            self.group(number).has_holes.store(!holes.is_empty(), Relaxed);
        }
        Ok(())
    }

    /// Counts the free blocks of a group that have space on the host, so that they can be reserved.
    /// The map is loaded. False if the host has no space for the group's bitmap.
    fn count_holes(&self, number: GroupNr, state: &mut GroupMaps) -> Result<bool> {
        if state.host.counted {
            return Ok(true);
        }
        let group = self.group(number);
        match self.fill_holes(group.block_bitmap, 1) {
            Err(Error::HostFull) => return Ok(false),
            done => done?,
        }
        self.find_holes(number, state)?;
        let holes = state.host.holes.take().unwrap_or_default();
        let map = self.block_map(number, state);
        let unbacked = map.map(|map| holes.zeros(&map.bits, 0, map.bits.len()));
        state.host.holes = Some(holes);
        let before = group.unbacked.swap(unbacked.clone()?, Relaxed);
        state.host.counted = true;
        self.counters.backed(u64::from(before - unbacked?));
        Ok(true)
    }

    /// Takes space for the holes among blocks of fixed metadata.
    fn fill_holes(&self, start: BlockNr, blocks: u64) -> Result<()> {
        let holes = self.engine.holes(start, blocks)?;
        holes
            .iter()
            .try_for_each(|hole| self.engine.allocate_below(BlockNr(hole.start), hole.end - hole.start))
    }

    /// Takes space for a range of a group, and for the window around it if the host has that much.
    fn back_window(&self, number: GroupNr, state: &mut GroupMaps, start: u32, end: u32) -> Result<()> {
        let window = (WINDOW_BYTES / self.sb.block_size()).max(1);
        let len = self.sb.blocks_in_group(number);
        let (from, to) = (start - start % window, end.next_multiple_of(window).min(len));
        match self.back_range(number, state, from, to) {
            Err(Error::HostFull) => self.back_range(number, state, start, end),
            done => done,
        }
    }

    fn back_range(&self, number: GroupNr, state: &mut GroupMaps, start: u32, end: u32) -> Result<()> {
        let group = self.group(number);
        let Some((from, to)) = state.host.holes.as_ref().and_then(|holes| holes.span(start, end)) else {
            return Ok(());
        };
        self.engine.allocate_below(self.sb.group_start(number).offset(from.into()), (to - from).into())?;
        let mut holes = state.host.holes.take().unwrap_or_default();
        if state.host.counted
            && let Ok(map) = self.block_map(number, state)
        {
            let backed = holes.zeros(&map.bits, from, to);
            group.unbacked.fetch_sub(backed, Relaxed);
            self.counters.backed(backed.into());
        }
        holes.remove(from, to);
        group.has_holes.store(!holes.runs.is_empty(), Relaxed);
        state.host.holes = Some(holes);
        Ok(())
    }

    /// Takes space for a free run that was found, or chooses another run in the group; `None` if no
    /// free block of the group has space. Sets `grows` to false when the host is full: then no more
    /// space is asked for.
    pub(super) fn back_run(
        &self,
        number: GroupNr,
        state: &mut GroupMaps,
        (start, len): (u32, u32),
        grows: &mut bool,
    ) -> Result<Option<(u32, u32)>> {
        if self.group(number).unbacked.load(Relaxed) == 0 {
            return Ok(Some((start, len)));
        }
        if !self.count_holes(number, state)? {
            *grows = false;
            return Ok(None);
        }
        let end = start + len;
        if state.host.holes.as_ref().is_none_or(|holes| holes.next(start, end).is_none()) {
            return Ok(Some((start, len)));
        }
        if *grows {
            match self.back_window(number, state, start, end) {
                Err(Error::HostFull) => *grows = false,
                done => return done.map(|()| Some((start, len))),
            }
        }
        let holes = state.host.holes.take().unwrap_or_default();
        let found = self.block_map(number, state).map(|map| backed_run(map, &holes, start, len));
        state.host.holes = Some(holes);
        found
    }

    /// Takes the next space behind this run.
    pub(super) fn note_taken(&self, run: Run) {
        if self.counters.unbacked() > 0 {
            self.host_hand.store(run.end().0.min(self.sb.blocks_count() - 1), Relaxed);
        }
    }

    fn back_used(&self, run: Run) -> Result<()> {
        if !self.is_sparse() {
            return Ok(());
        }
        for piece in self.pieces(run) {
            let group = self.group(piece.group);
            if !group.has_holes.load(Relaxed) {
                continue;
            }
            let mut state = xact_consistency::lock_within(&self.engine, &group.state);
            self.find_holes(piece.group, &mut state)?;
            self.back_range(piece.group, &mut state, piece.index, piece.index + piece.len)?;
        }
        Ok(())
    }

    /// Takes space for what the linking of an inode writes: both bitmaps, and its block of the
    /// table with the blocks before it that are not initialised.
    pub(super) fn back_inode(&self, number: GroupNr, state: &mut GroupMaps, index: u32) -> Result<()> {
        if !self.is_sparse() {
            return Ok(());
        }
        let group = self.group(number);
        if !state.host.has_bitmaps {
            self.fill_holes(group.block_bitmap, 1)?;
            self.fill_holes(group.inode_bitmap, 1)?;
            state.host.has_bitmaps = true;
        }
        self.find_table_holes(number, state)?;
        let Some(holes) = &mut state.host.table else { return Ok(()) };
        let own = index / self.sb.inodes_per_block();
        let first = own.min(group.table_ready.load(Relaxed) / self.sb.inodes_per_block());
        let allocate = |holes: &mut Holes, end: u32| {
            let Some((from, to)) = holes.span(first, end) else { return Ok(()) };
            self.engine.allocate_below(group.inode_table.offset(from.into()), (to - from).into())?;
            holes.remove(from, to);
            Ok(())
        };
        if holes.next(first, own + 1).is_none() {
            return Ok(());
        }
        match allocate(holes, own.saturating_add(TABLE_WINDOW)) {
            Err(Error::HostFull) => allocate(holes, own + 1),
            done => done,
        }
    }

    fn find_table_holes(&self, number: GroupNr, state: &mut GroupMaps) -> Result<()> {
        if state.host.table.is_none() {
            let start = self.group(number).inode_table;
            let holes = self.engine.holes(start, self.sb.inode_table_blocks().into())?;
            state.host.table = Some(Holes::of(&holes, start));
        }
        Ok(())
    }

    /// A free inode of a group whose bitmaps and block of the table have space.
    pub(super) fn backed_inode(&self, number: GroupNr, state: &mut GroupMaps) -> Result<Option<u32>> {
        if !state.host.has_bitmaps {
            return Ok(None);
        }
        let holes = state.host.table.take().unwrap_or_default();
        let per_block = self.sb.inodes_per_block();
        let ready = self.group(number).table_ready.load(Relaxed);
        let found = self.inode_map(number, state).map(|map| {
            let mut at = 0;
            while let Some(index) = map.bits.next_zero(at, ready.min(map.bits.len())) {
                let block = index / per_block;
                if holes.next(block, block + 1).is_none() {
                    return Some(index);
                }
                at = (block + 1) * per_block;
            }
            None
        });
        state.host.table = Some(holes);
        found
    }

    /// The blocks of a run, none of which is free, were discarded: they have no space any more.
    pub(super) fn note_discarded(&self, run: Run) {
        if !self.is_sparse() {
            return;
        }
        for piece in self.pieces(run) {
            let mut state = self.group(piece.group).state.lock();
            self.add_holes(piece.group, &mut state, piece.index, piece.len);
        }
    }

    fn add_holes(&self, number: GroupNr, state: &mut GroupMaps, index: u32, len: u32) {
        // If the host was not asked yet, it will say so itself.
        if let Some(holes) = &mut state.host.holes {
            holes.add(index, index + len);
            self.group(number).has_holes.store(true, Relaxed);
        }
    }

    /// Blocks of a group are about to become free: notes those without space on the host in the
    /// group, and returns their number.
    pub(super) fn count_freed(&self, number: GroupNr, state: &GroupMaps, index: u32, len: u32) -> u32 {
        if !self.is_sparse() {
            return 0;
        }
        let unbacked = match &state.host {
            GroupHost { counted: true, holes: Some(holes), .. } => holes.blocks(index, index + len),
            _ => len,
        };
        self.group(number).unbacked.fetch_add(unbacked, Relaxed);
        unbacked
    }

    /// How many of the free blocks of a run may lose their space on the host, since no reservation
    /// needs it: some of the first ones, with the number of those that have space. They count as
    /// unbacked from then on.
    pub(super) fn may_trim(&self, state: &GroupMaps, index: u32, len: u32) -> (u32, u32) {
        if !self.is_sparse() {
            return (len, 0);
        }
        let mut part = len;
        while part > 0 {
            let backed = match &state.host {
                GroupHost { counted: true, holes: Some(holes), .. } => {
                    part - holes.blocks(index, index + part)
                }
                _ => 0,
            };
            if self.counters.try_unback(backed.into()) {
                return (part, backed);
            }
            part /= 2;
        }
        (0, 0)
    }

    pub(super) fn trimmed(&self, number: GroupNr, state: &mut GroupMaps, run: (u32, u32), backed: u32) {
        if self.is_sparse() && run.1 > 0 {
            self.group(number).unbacked.fetch_add(backed, Relaxed);
            self.add_holes(number, state, run.0, run.1);
        }
    }

    /// A group's bitmap is damaged: nothing in it is free any more.
    pub(super) fn lose_unbacked(&self, number: GroupNr) {
        let lost = self.group(number).unbacked.swap(0, SeqCst);
        self.counters.backed(lost.into());
    }
}

/// The longest free run with space on the host, up to `want` blocks: the first such one from `from`
/// on.
fn backed_run(map: &Map, holes: &Holes, from: u32, want: u32) -> Option<(u32, u32)> {
    let mut best: Option<(u32, u32)> = None;
    for (start, end) in [(from, map.bits.len()), (0, from)] {
        let mut at = start;
        while let Some(free) = map.bits.next_zero(at, end) {
            let past = free + map.bits.zeros_at(free, end - free);
            let mut first = free;
            while first < past {
                let (hole, after) = holes.next(first, past).unwrap_or((past, past));
                let len = (hole - first).min(want);
                if len > best.map_or(0, |run| run.1) {
                    best = Some((first, len));
                    if len == want {
                        return best;
                    }
                }
                first = after;
            }
            at = past;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_agree_with_a_plain_model() {
        let mut state = 7u64;
        let mut random = move |below: u32| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32 % below
        };
        const LEN: u32 = 200;
        let (mut holes, mut model) = (Holes::default(), [false; LEN as usize]);
        let mut bits = Bitmap::from_bytes(&[0; 32], LEN);
        let mut used = [false; LEN as usize];
        for _ in 0..5000 {
            let start = random(LEN);
            let end = start + 1 + random((LEN - start).min(40));
            let all = start as usize..end as usize;
            match random(3) {
                0 => {
                    holes.add(start, end);
                    model[all.clone()].fill(true);
                }
                1 => {
                    holes.remove(start, end);
                    model[all.clone()].fill(false);
                }
                _ => {
                    let value = random(2) == 0;
                    if value {
                        bits.set(start, end - start)
                    } else {
                        bits.clear(start, end - start)
                    }
                    used[all.clone()].fill(value);
                }
            }
            assert!(holes.runs.is_sorted() && holes.runs.iter().all(|run| run.0 < run.1));
            let (from, to) = (random(LEN), LEN);
            let range = from as usize..to as usize;
            let first = range.clone().find(|&at| model[at]).map(|at| at as u32);
            assert_eq!(holes.next(from, to).map(|run| run.0), first);
            let last = range.clone().rfind(|&at| model[at]).map(|at| at as u32 + 1);
            assert_eq!(holes.span(from, to), first.zip(last));
            let free = range.clone().filter(|&at| model[at] && !used[at]).count() as u32;
            assert_eq!(holes.zeros(&bits, from, to), free);
            assert_eq!(holes.blocks(from, to) as usize, range.filter(|&at| model[at]).count());
        }
    }

    #[test]
    fn a_run_without_holes_is_found() {
        let bits = Bitmap::from_bytes(&[0x0F, 0, 0, 0], 32);
        let map = Map { bits, cursor: 0, pending: 0 };
        let mut holes = Holes::default();
        holes.add(6, 10);
        holes.add(20, 32);
        assert_eq!(backed_run(&map, &holes, 8, 4), Some((10, 4)));
        assert_eq!(backed_run(&map, &holes, 8, 30), Some((10, 10)));
        assert_eq!(backed_run(&map, &holes, 24, 1), Some((4, 1)));
        holes.add(0, 32);
        assert_eq!(backed_run(&map, &holes, 0, 1), None);
    }
}
