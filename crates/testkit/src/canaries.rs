//! Canaries: for each ordering rule that can be left out, a workload in which the explorer must
//! notice. A rule whose omission stays unnoticed is a rule that no test protects.

use std::time::{Duration, Instant};

use xact_consistency::Fault;

use crate::ace::AceWorkload;
use crate::blocks::BlockWorkload;
use crate::explorer::{Plan, Replay, Subject, explore, replay};
use crate::files::FileWorkload;
use crate::{draining_ops, workloads};

/// A rule to leave out, and the workload that shows it.
#[derive(Debug, Clone, Copy)]
pub struct Canary {
    pub fault: Fault,
    pub workload: &'static str,
}

/// How a fault was found.
#[derive(Debug)]
pub struct Found {
    /// States that were judged until then, including those of runs without a finding.
    pub states: u64,
    /// Runs until then, including this one.
    pub runs: usize,
    pub elapsed: Duration,
    pub replay: String,
    pub what: String,
}

/// Not a workload of the explorer: see [`draining_ops`].
const DRAINING_OPS: &str = "draining-ops";

const fn canary(fault: Fault, workload: &'static str) -> Canary {
    Canary { fault, workload }
}

/// All canaries. Some faults are noticed both by the engine's own workloads and by those on files,
/// where different promises break.
pub const ALL: &[Canary] = &[
    canary(Fault::NoFlushBeforeCommitBlock, "engine-mix"),
    canary(Fault::NoFlushBeforeCommitBlock, "append"),
    canary(Fault::NoFlushBeforeCommitBlock, "tx-overwrite"),
    canary(Fault::NoFlushAfterCommitBlock, "engine-mix"),
    canary(Fault::NoFlushAfterCommitBlock, "append"),
    canary(Fault::NoFlushOfData, "engine-single"),
    canary(Fault::NoFlushOfData, "single-append"),
    canary(Fault::NoFlushOfData, "tx-spilled"),
    // With unordered data: a transaction, and a rename over a file.
    canary(Fault::NoFlushOfData, "writeback-tx"),
    canary(Fault::NoFlushOfData, "writeback-single"),
    canary(Fault::NoTransactionChecksum, "engine-single"),
    canary(Fault::NoTransactionChecksum, "single-tx"),
    canary(Fault::NoTransactionChecksum, "adaptive-tx-overwrite"),
    canary(Fault::DiscardAtOnce, "discard-reuse"),
    canary(Fault::NoRevoke, "engine-reuse"),
    canary(Fault::NoRevoke, "reuse"),
    canary(Fault::NoRevoke, "mode-reuse"),
    // A replay restores an array of pointers over its block's next owner.
    canary(Fault::NoRevoke, "arrays-ext3"),
    canary(Fault::NoFlushBeforeTail, "engine-checkpoint"),
    canary(Fault::NoFlushBeforeTail, "wrap"),
    canary(Fault::SameAsOlder, "short-lived"),
    canary(Fault::SameAsOlder, "gen-log-short-lived"),
    canary(Fault::LeftOutForGood, "unused-groups"),
    canary(Fault::LeftOutForGood, "gen-unused-groups"),
    canary(Fault::AcceptBadChecksum, "engine-mix"),
    canary(Fault::NoEscape, "engine-forged"),
    canary(Fault::DataBesideItsCopy, "switch"),
    canary(Fault::TailPastBase, "patches-wrap"),
    canary(Fault::ActionsAtOnce, "engine-reuse"),
    canary(Fault::ActionsAtOnce, "refill"),
    canary(Fault::NoFlushAfterReplay, "engine-mix"),
    canary(Fault::NoFlushAfterReplay, "names"),
    canary(Fault::CheckpointUncommitted, "engine-checkpoint"),
    canary(Fault::PlaceBeforeCommit, "adaptive-tx-overwrite"),
    canary(Fault::DeferredDataLate, "tx-overwrite"),
    canary(Fault::DeferredDataLate, "single-tx"),
    canary(Fault::DeferredDataLate, "gen-tx-overwrite"),
    canary(Fault::DeferredDataLate, "gen-log-tx"),
    canary(Fault::PersistedRemovedApart, "tx-kept"),
    canary(Fault::LongerBeforeInode, "tx-longer-journal"),
    canary(Fault::ShorterAfterInode, "tx-longer-journal"),
    canary(Fault::SyncedReturnsEarly, "synced-option"),
    canary(Fault::SyncedReturnsEarly, "synced-flags"),
    canary(Fault::SyncedReturnsEarly, "gen-synced-flags"),
    canary(Fault::SmallSyncInPlace, "small-syncs"),
    canary(Fault::SizeBeforeData, "mix"),
    canary(Fault::WriteInParts, "appends-in-parts"),
    canary(Fault::WriteInParts, "gen-appends-in-parts"),
    canary(Fault::RenameBeforeData, "replace-unsynced"),
    canary(Fault::ActionsAtOnce, "gen-refill"),
    canary(Fault::OverwritePlace, "gen-append"),
    canary(Fault::NoFlushBeforeRoot, "gen-append"),
    canary(Fault::NoFlushAfterRoot, "gen-append"),
    canary(Fault::OneRootSlot, "gen-append"),
    canary(Fault::AcceptTornRoot, "gen-append"),
    canary(Fault::WritebackOverHome, "gen-writeback"),
    canary(Fault::OverwriteSnapshotData, "gen-snapshots"),
    canary(Fault::FreeSnapshotBlocks, "gen-log-snapshots"),
    canary(Fault::OverwriteSnapshotData, "gen-parts"),
    canary(Fault::UnprunedUnmarked, "gen-parts"),
    canary(Fault::KeepTornRoot, "gen-parts"),
    canary(Fault::NoFlushOfData, "gen-log-append"),
    canary(Fault::NoFlushOfData, "gen-unordered-snapshots"),
    canary(Fault::NoFlushAfterRecord, "gen-log-append"),
    canary(Fault::AcceptTornRecord, "gen-log-tx"),
    canary(Fault::DataBesideItsCopy, "gen-along-overwrites"),
    canary(Fault::DataOnItsPlace, "gen-along-overwrites"),
    canary(Fault::AcceptStaleRecord, "gen-log-wrap"),
    canary(Fault::NoFreedEntry, "gen-log-freed"),
    canary(Fault::AheadWithoutShared, "gen-ahead"),
    canary(Fault::RestOnOldBase, "gen-ahead"),
    canary(Fault::AheadDespiteOthers, "gen-ahead"),
    canary(Fault::AheadUnderOldName, "gen-ahead-new"),
    canary(Fault::AheadWithoutBlocks, "gen-ahead-new"),
    canary(Fault::ActionsAtOnce, "gen-log-refill"),
    canary(Fault::NoFlushBeforeRoot, "gen-log-wrap"),
    canary(Fault::DrainingInNewestOnly, DRAINING_OPS),
    // Without a journal: a file is created, the volume synced.
    canary(Fault::NoFlushAfterHome, "ace/none/durable/0.1"),
];

impl Canary {
    /// Explores until the fault is found and its replay line finds it again. The engine's own
    /// threads write at other moments in another run, so both may take several tries. Errors: it
    /// was not found.
    pub fn hunt(&self) -> Result<Found, String> {
        if self.workload == DRAINING_OPS {
            return draining_ops::hunt(self.fault);
        }
        if self.workload.starts_with("ace/") {
            return self.hunt_in(&AceWorkload::find(self.workload)?.without(self.fault));
        }
        let fault = Some(self.fault);
        if let Some(workload) = BlockWorkload::all().into_iter().find(|w| w.name == self.workload) {
            return self.hunt_in(&BlockWorkload { fault, ..workload });
        }
        let workload =
            workloads::find(self.workload).ok_or_else(|| format!("no workload {}", self.workload))?;
        self.hunt_in(&FileWorkload { fault, ..workload })
    }

    fn hunt_in<S: Subject>(&self, subject: &S) -> Result<Found, String> {
        const RUNS: usize = 40;
        const SEEDS: u64 = 5;
        let started = Instant::now();
        let mut states = 0;
        for run in 0..RUNS {
            let plan = Plan {
                seed: 1 + run as u64 % SEEDS,
                findings: 1,
                threads: 1,
                second_one_in: 0,
                // Copies are only compared with their checksums if the log is damaged.
                rotten_one_in: if self.fault == Fault::AcceptBadChecksum { 1 } else { 0 },
                progress: false,
                thins_out: false,
                ..Plan::quick()
            };
            let summary = explore(subject, &plan)?;
            states += summary.states;
            let Some(finding) = summary.findings.into_iter().next() else { continue };
            let line: Replay = finding.replay.parse()?;
            // A run in which the engine's threads wrote at other moments may lack the line's state.
            if replay(subject, &line, &plan).is_ok_and(|again| again.finding.is_some()) {
                let elapsed = started.elapsed();
                let (replay, what) = (finding.replay, finding.what);
                return Ok(Found { states, runs: run + 1, elapsed, replay, what });
            }
        }
        Err(format!("{:?} was not found by {} with a line that replays", self.fault, self.workload))
    }

    pub const HEADER: &'static str =
        "fault                     workload            states   runs    time  what gives it away";

    /// A line of the table.
    pub fn row(&self, found: &Found) -> String {
        let what = found.what.lines().next().unwrap_or_default();
        format!(
            "{:<26}{:<18}{:>8}{:>7}{:>7.1}s  {what:.110}",
            format!("{:?}", self.fault),
            self.workload,
            found.states,
            found.runs,
            found.elapsed.as_secs_f64()
        )
    }
}
