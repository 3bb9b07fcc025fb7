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

        // Whether the host of a sparse image may have space for more of it.
        let mut grows = true;
        let mut best = match self.take_in(home, Some(index), want, enough, &mut grows)? {
            Ok(run) => return Ok(run),
            Err(longest) => (longest, home),
        };
        let mut looked = 0;
        for number in self.groups_from(home).skip(1) {
            let group = self.group(number);
            let mut longest = group.free_blocks.load(Relaxed).min(group.largest_run.load(Relaxed));
            if longest >= enough {
                match self.take_in(number, None, want, enough, &mut grows)? {
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
            && let Ok(run) = self.take_in(best.1, None, want, best.0, &mut grows)?
        {
            return Ok(run);
        }
        for _ in 0..ROUNDS {
            for number in self.groups_from(home) {
                if self.group(number).free_blocks.load(Relaxed) > 0
                    && let Ok(run) = self.take_in(number, None, want, 1, &mut grows)?
                {
                    return Ok(run);
                }
            }
        }
        let full = if grows { Error::NoSpace } else { Error::HostFull };
        Err(self.damage.first().unwrap_or(full))
    }

    /// All groups, starting at `home` and wrapping around.
    pub(super) fn groups_from(&self, home: GroupNr) -> impl Iterator<Item = GroupNr> + use<> {
        let count = self.sb.group_count();
        (home.0..count).chain(0..home.0).map(GroupNr)
    }

    /// Takes a run of at least `enough` blocks (of any length at the goal itself, and on a full
    /// host) in one group. Otherwise returns the length of its longest free run; 0 for a corrupt
    /// group, and for one without space on the host. `grows`: see [`Self::back_run`].
    fn take_in(
        &self,
        number: GroupNr,
        goal: Option<u32>,
        want: u32,
        enough: u32,
        grows: &mut bool,
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
        let found = match map.find(goal, want, enough, longest) {
            Ok(found) => found,
            Err(longest) => {
                group.largest_run.store(longest, Relaxed);
                return Ok(Err(longest));
            }
        };
        let Some((start, len)) = self.back_run(number, &mut state, found, grows)? else {
            return Ok(Err(0));
        };
        let map = self.block_map(number, &mut state)?;
        map.bits.set(start, len);
        map.pending += len;
        group.free_blocks.fetch_sub(len, Relaxed);
        let run = Run { start: self.sb.group_start(number).offset(u64::from(start)), len };
        self.note_taken(run);
        Ok(Ok(run))
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
