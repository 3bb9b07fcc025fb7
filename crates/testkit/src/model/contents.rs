//! The legal contents of a file after a crash (docs/CRASH.md, R2, R4, R7, R10 to R13, and the table
//! of the data modes).
//!
//! 1. Each 512-byte sector of a file has, as a whole, its contents of one moment since the last
//!    promise about this file; with the truncations and the commits of transactions among the first
//!    `k` steps applied to it, and nothing of a transaction beyond `k`. A rename over another file
//!    promises the data that the file had then, if the rename is among the first `k` steps.
//! 2. Its size is one that it had at a moment since the last promise and among the first `k` steps,
//!    cut by the truncations since then. A size set by a transaction among the first `k` steps is
//!    final. If an fsync need not wait for other files' changes, the size may be of a later moment
//!    (`reach`): up to the next step that changes more of the file than its data, or removes data
//!    from its end, or moves a folder.
//! 3. In all modes but [`Promise::Sectors`] the size comes with the data: no sector is older than
//!    the moment of the size.
//! 4. With [`Promise::Writes`] all sectors are of the moment of the size.
//!
//! A write-back that is too large for one commit takes several, in order of the file; workloads
//! stay below that.

use std::sync::Arc;

use super::history::ThreadHistory;
use super::op::Op;
use super::stamp;
use super::state::{Id, edit};

const SECTOR: usize = xact_device::SECTOR_BYTES;

/// Block size of the volumes whose data is not ordered.
const UNORDERED_BLOCK: usize = 1024;

/// The promise of a setting for writes that were not synced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Promise {
    /// Data written since the last sync may be replaced by anything that the blocks held before
    /// (`writeback`, when one flush makes data and commit durable).
    Unordered,
    /// Each sector old or new, and sizes in between: inode updates as in stock ext4.
    Sectors,
    /// All data below the size is present (data modes `ordered` and `adaptive`).
    #[default]
    Sizes,
    /// A file is as it was at one moment (data modes `journal` and `selective`).
    Writes,
}

/// The steps of a thread between which a file is judged.
#[derive(Clone, Copy)]
pub struct Moments {
    /// The number of steps after which the contents were made durable.
    pub synced: usize,
    /// The number of steps whose changes of names and attributes are present.
    pub k: usize,
    /// The number of steps after which its size may be.
    pub reach: usize,
    /// The number of steps that had begun.
    pub begun: usize,
}

/// Operations that change the inside of a file as metadata operations do.
pub(super) fn forces(op: &Op) -> bool {
    matches!(op, Op::Truncate { .. } | Op::Commit { .. })
}

/// Applies the change of `step` to the inside of `id` to `bytes`.
fn redo(thread: &ThreadHistory, step: usize, id: Id, bytes: &mut Vec<u8>) {
    let op = &thread.steps[step].op;
    let Op::Commit { ops, .. } = op else {
        if op.is_inside() {
            edit(bytes, id, op);
        }
        return;
    };
    // Within a transaction names may have moved, so each operation is resolved in its own state.
    let mut state = thread.states[step].clone();
    for op in ops {
        if op.is_inside() && op.path().is_some_and(|p| state.resolve(p) == Ok(id)) {
            edit(bytes, id, op);
        }
        let _ = state.apply(op);
    }
}

/// The contents that a file may have, each with the first step that has them.
struct Legal {
    contents: Vec<(usize, Arc<Vec<u8>>)>,
    /// Sizes, with the step in the same way.
    sizes: Vec<(usize, usize)>,
    /// The smallest size that the file has had at these moments, if it has had several.
    cut: Option<usize>,
}

/// Whether a crash may leave `got` as a file's contents; if not, the reason.
pub fn judge_file(
    thread: &ThreadHistory,
    promise: Promise,
    id: Id,
    got: &[u8],
    moments: Moments,
) -> Result<(), String> {
    let legal = Legal::of(thread, id, moments);
    legal.check_sizes(got)?;
    let newest = legal.check_sectors(promise, got)?;
    // Holes are punched by metadata alone, which does not wait for earlier writes.
    let past = thread.past(id);
    let zeroed = |w: usize, sector: usize| {
        past.touching.iter().any(|&s| (w..moments.begun).contains(&s) && zeroes(&thread.steps[s].op, sector))
    };
    if legal.is_of_one_moment(promise, got, &newest, zeroed) {
        return Ok(());
    }
    let oldest = (0..newest.len()).min_by_key(|&n| newest[n]).unwrap_or(0);
    Err(format!(
        "size {} is of no moment up to step {}, after which sector {} was changed: {}",
        got.len(),
        newest.get(oldest).copied().unwrap_or(0),
        oldest,
        stamp::describe(got.get(oldest * SECTOR..got.len().min((oldest + 1) * SECTOR)).unwrap_or_default()),
    ))
}

impl Legal {
    fn of(thread: &ThreadHistory, id: Id, Moments { synced, k, reach, begun }: Moments) -> Legal {
        let past = thread.past(id);
        let at = |v: usize| past.at(v);
        let born = past.born().filter(|&v| v <= begun).expect("the file exists after k steps");
        // A rename over another file also makes the file's data durable, as it was at the rename.
        let brought = past.replaced.iter().rfind(|&&s| s < k).copied().unwrap_or(0);
        let base = synced.max(born).max(brought);
        let is_commit = |s: usize| matches!(thread.steps[s].op, Op::Commit { .. });
        // A transaction beyond k has no effect.
        let end =
            past.forced.iter().copied().find(|&s| (k..begun).contains(&s) && is_commit(s)).unwrap_or(begun);
        let forced = &past.forced[..past.forced.partition_point(|&s| s < k)];
        let later = |v: usize| forced[forced.partition_point(|&s| s < v)..].iter().copied();

        // Growth waits for the data below it, so it may be missing. Data that a truncation among
        // the first k removed may not come back. A size set by a transaction is final.
        let sets_size = |s: usize| {
            is_commit(s) && at(s).zip(at(s + 1)).is_none_or(|(before, after)| before.len() != after.len())
        };
        let sized = forced.iter().rfind(|&&s| sets_size(s)).map_or(base, |s| base.max(s + 1));
        let sizes = past.spans(sized..=reach.max(base)).map(|(first, _, bytes)| {
            let cuts = later(first).filter_map(|s| match &thread.steps[s].op {
                Op::Truncate { size, .. } => Some(*size as usize),
                _ => None,
            });
            (first, cuts.fold(bytes.len(), usize::min))
        });
        let lens = past.spans(base..=end).map(|(_, _, bytes)| bytes.len());
        let (least, most) = lens.fold((usize::MAX, 0), |(l, m), len| (l.min(len), m.max(len)));
        let cut = (least < most).then_some(least);
        let mut legal = Legal { contents: Vec::new(), sizes: sizes.collect(), cut };
        // Newer contents come first; of equal ones the newest counts.
        for (first, last, bytes) in past.spans(base..=end).rev() {
            let known = |bytes: &Arc<Vec<u8>>| legal.contents.iter().any(|(_, other)| other == bytes);
            if later(first).next().is_none() {
                if !legal.contents.last().is_some_and(|(_, other)| Arc::ptr_eq(other, bytes)) {
                    legal.contents.push((last, bytes.clone()));
                }
                continue;
            }
            let mut bytes = Vec::clone(bytes);
            later(first).for_each(|step| redo(thread, step, id, &mut bytes));
            let bytes = Arc::new(bytes);
            if !known(&bytes) {
                legal.contents.push((last, bytes));
            }
        }
        // Data written in place after a lost truncation or transaction replaced data that still
        // exists.
        let lost = |s: usize| forces(&thread.steps[s].op);
        if let Some(first) = past.forced.iter().copied().find(|s| (k.max(base)..begun).contains(s))
            && let Some(bytes) = at(first)
        {
            let mut bytes = Vec::clone(bytes);
            let touching = past.touching.iter().copied().filter(|s| (first..begun).contains(s));
            for step in touching.filter(|&s| !lost(s)) {
                let (Some(before), Some(after)) = (at(step), at(step + 1)) else { break };
                bytes.resize(bytes.len().max(after.len()), 0);
                for (offset, &byte) in after.iter().enumerate().filter(|(n, b)| before.get(*n) != Some(b)) {
                    bytes[offset] = byte;
                }
                legal.contents.push((step + 1, Arc::new(bytes.clone())));
            }
        }
        legal
    }

    fn check_sizes(&self, got: &[u8]) -> Result<(), String> {
        let sizes = self.sizes.iter().map(|(_, size)| *size);
        let (least, most) = sizes.fold((usize::MAX, 0), |(l, m), size| (l.min(size), m.max(size)));
        if got.len() < least || got.len() > most {
            return Err(format!("size {} is not within {least}..={most}", got.len()));
        }
        Ok(())
    }

    /// Rules 3 and 4; `newest` has the last moments that the sectors may be of.
    fn is_of_one_moment(
        &self,
        promise: Promise,
        got: &[u8],
        newest: &[usize],
        zeroed: impl Fn(usize, usize) -> bool,
    ) -> bool {
        let oldest = newest.iter().copied().min().unwrap_or(usize::MAX);
        let had_size = |by: usize| self.sizes.iter().any(|&(v, size)| v <= by && size == got.len());
        match promise {
            Promise::Unordered | Promise::Sectors => true,
            Promise::Sizes => had_size(oldest),
            Promise::Writes => self.contents.iter().any(|(w, bytes)| {
                let mut sectors = got.chunks(SECTOR).enumerate();
                had_size((*w).min(oldest))
                    && sectors.all(|(n, sector)| {
                        reads_as(bytes, n * SECTOR, sector) || (zeroed(*w, n) && reads_as(&[], 0, sector))
                    })
            }),
        }
    }

    /// Whether the block of a sector changed between these moments, in its contents or in its part
    /// that belongs to the file.
    fn changes_around(&self, sector: usize) -> bool {
        let at = sector * SECTOR / UNORDERED_BLOCK * UNORDERED_BLOCK;
        let part =
            |bytes: &[u8]| bytes[at.min(bytes.len())..(at + UNORDERED_BLOCK).min(bytes.len())].to_vec();
        self.cut.is_some_and(|least| at + UNORDERED_BLOCK > least)
            || self.contents.windows(2).any(|pair| part(&pair[0].1) != part(&pair[1].1))
    }

    /// For each sector the last moment that it may be of.
    fn check_sectors(&self, promise: Promise, got: &[u8]) -> Result<Vec<usize>, String> {
        let newest = got.chunks(SECTOR).enumerate().map(|(n, sector)| {
            let fits = self.contents.iter().filter(|(_, bytes)| reads_as(bytes, n * SECTOR, sector));
            if promise == Promise::Unordered && self.changes_around(n) {
                return Ok(fits.map(|(v, _)| *v).max().unwrap_or(0));
            }
            fits.map(|(v, _)| *v).max().ok_or_else(|| {
                format!(
                    "at offset {} is {}, which is none of the {} contents it may have (the newest: {})",
                    n * SECTOR,
                    stamp::describe(sector),
                    self.contents.len(),
                    self.contents.first().map_or("none".to_owned(), |(_, b)| stamp::describe(
                        b.get(n * SECTOR..b.len().min((n + 1) * SECTOR)).unwrap_or_default()
                    )),
                )
            })
        });
        newest.collect()
    }
}

/// Whether `op` makes a sector of its file read as zeros.
fn zeroes(op: &Op, sector: usize) -> bool {
    let (Op::Punch { offset, len, .. } | Op::ZeroRange { offset, len, .. }) = op else { return false };
    let start = (sector * SECTOR) as u64;
    *offset <= start && start + SECTOR as u64 <= offset + len
}

/// Whether `bytes`, with zeros after their end, hold `part` at `offset`.
fn reads_as(bytes: &[u8], offset: usize, part: &[u8]) -> bool {
    let have = bytes.len().saturating_sub(offset).min(part.len());
    part[..have] == bytes[offset.min(bytes.len())..offset.min(bytes.len()) + have]
        && part[have..].iter().all(|&b| b == 0)
}
