//! Chooses blocks: at the goal, near it, then in the groups with the best estimates.

use std::sync::atomic::Ordering::Relaxed;

use xact_types::{BlockNr, Error, GroupNr, Result};

use super::group::{Map, Prefetch};
use super::{AllocatorCore, Run};

/// Length at which a free run is accepted even if a longer one was requested: the search for a
/// longer run costs more than another extent.
const ENOUGH: u32 = 2048;
/// Blocks after the goal that are searched before the group's own cursor.
const NEAR: u32 = 1024;
/// Maximum number of groups that are searched for a run of the requested length.
const LOOKED_MAX: u32 = 16;
/// Number of scans over all groups: one scan may miss blocks that are freed behind its position.
const ROUNDS: u32 = 4;

impl AllocatorCore {
    /// Takes up to `want` contiguous blocks. The caller has a reservation for them.
    pub(super) fn take_near(&self, goal: BlockNr, want: u32) -> Result<Run> {
        let first = u64::from(self.sb.first_data_block());
        let goal = BlockNr(goal.0.clamp(first, self.sb.blocks_count() - 1));
        let home = self.sb.group_of(goal);
        let index = (goal.0 - self.sb.group_start(home).0) as u32;
        let enough = want.min(ENOUGH);

        let mut best = match self.take_in(home, Some(index), want, enough)? {
            Ok(run) => return Ok(run),
            Err(longest) => (longest, home),
        };
        let mut looked = 0;
        for number in self.groups_from(home).skip(1) {
            let group = self.group(number);
            let mut longest = group.free_blocks.load(Relaxed).min(group.largest_run.load(Relaxed));
            if longest >= enough {
                match self.take_in(number, None, want, enough)? {
                    Ok(run) => return Ok(run),
                    Err(found) => longest = found,
                }
                looked += 1;
            }
            if longest > best.0 {
                best = (longest, number);
            }
            if looked == LOOKED_MAX {
                break;
            }
        }
        if best.0 > 0
            && let Ok(run) = self.take_in(best.1, None, want, best.0)?
        {
            return Ok(run);
        }
        for _ in 0..ROUNDS {
            for number in self.groups_from(home) {
                if self.group(number).free_blocks.load(Relaxed) > 0
                    && let Ok(run) = self.take_in(number, None, want, 1)?
                {
                    return Ok(run);
                }
            }
        }
        Err(self.damage.first().unwrap_or(Error::NoSpace))
    }

    /// All groups, starting at `home` and wrapping around.
    pub(super) fn groups_from(&self, home: GroupNr) -> impl Iterator<Item = GroupNr> + use<> {
        let count = self.sb.group_count();
        (home.0..count).chain(0..home.0).map(GroupNr)
    }

    /// Takes a run of at least `enough` blocks (of any length at the goal itself) in one group.
    /// Otherwise returns the length of its longest free run; 0 for a corrupt group.
    fn take_in(
        &self,
        number: GroupNr,
        goal: Option<u32>,
        want: u32,
        enough: u32,
    ) -> Result<std::result::Result<Run, u32>> {
        let group = self.group(number);
        if group.free_blocks.load(Relaxed) == 0 {
            return Ok(Err(0));
        }
        let mut state = self.lock(number, Prefetch::BlockMap);
        let map = match self.block_map(number, &mut state) {
            Ok(map) => map,
            Err(Error::Corrupt(_)) => return Ok(Err(0)),
            Err(error) => return Err(error),
        };
        let longest = group.largest_run.load(Relaxed);
        Ok(match map.find(goal, want, enough, longest) {
            Ok((start, len)) => {
                map.bits.set(start, len);
                map.pending += len;
                group.free_blocks.fetch_sub(len, Relaxed);
                Ok(Run { start: self.sb.group_start(number).offset(u64::from(start)), len })
            }
            Err(longest) => {
                group.largest_run.store(longest, Relaxed);
                Err(longest)
            }
        })
    }
}

impl Map {
    /// A run as (start, length), or the length of the longest run. `longest`: its known upper
    /// bound.
    fn find(
        &mut self,
        goal: Option<u32>,
        want: u32,
        enough: u32,
        longest: u32,
    ) -> std::result::Result<(u32, u32), u32> {
        if let Some(goal) = goal {
            let here = self.bits.zeros_at(goal, want);
            if here > 0 {
                return Ok((goal, here));
            }
        }
        if longest < enough {
            return Err(longest);
        }
        if let Some(goal) = goal {
            let near = goal.saturating_add(NEAR).min(self.bits.len());
            if let Ok(found) = self.scan(goal, near, want, enough) {
                return Ok(found);
            }
        }
        let found = match self.scan(self.cursor, self.bits.len(), want, enough) {
            Err(behind) => self.scan(0, self.cursor, want, enough).map_err(|before| before.max(behind)),
            found => found,
        };
        if let Ok((start, len)) = found {
            self.cursor = start + len;
        }
        found
    }

    /// The first run that starts in `from..end` and is long enough.
    fn scan(&self, from: u32, end: u32, want: u32, enough: u32) -> std::result::Result<(u32, u32), u32> {
        let mut longest = 0;
        let mut at = from;
        while let Some(start) = self.bits.next_zero(at, end) {
            let len = self.bits.zeros_at(start, want);
            if len >= enough {
                return Ok((start, len));
            }
            longest = longest.max(len);
            at = start + len;
        }
        Err(longest)
    }
}
