//! The workloads on files.

mod ahead;
mod idioms;
mod modes;
pub(crate) mod random;
mod synced;
mod transactions;

use std::time::Duration;

use xact::{DataMode, Fsync, InodeUpdate, LogRecords};
use xact_consistency::CommitWrites;
use xact_fs::Synced;
use xact_types::Steps;

use crate::files::{FileWorkload, Format, SMALL, Script};
use crate::image::Image;
use crate::model::Promise;

const LARGE_BLOCKS: Format =
    Format { options: &["-b", "4096", "-J", "size=4"], size: "16M", pool_bytes: None };
/// As Debian 12's mke2fs makes it, whichever version is installed.
const OLD_DEFAULTS: Format = Format {
    options: &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum_seed,^orphan_file"],
    size: "8M",
    pool_bytes: None,
};
const NEW_DEFAULTS: Format = Format {
    options: &["-b", "1024", "-J", "size=1", "-O", "metadata_csum_seed,orphan_file"],
    size: "8M",
    pool_bytes: None,
};
const NO_CHECKSUMS: Format = Format {
    options: &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"],
    size: "8M",
    pool_bytes: None,
};

const GENERATIONS: Format =
    Format { options: &["-b", "1024", "-O", "^has_journal"], size: "8M", pool_bytes: Some(SMALL_POOL) };
const GENERATIONS_4K: Format =
    Format { options: &["-b", "4096", "-O", "^has_journal"], size: "16M", pool_bytes: Some(8 << 20) };
const GENERATIONS_QUOTAS: Format = Format {
    options: &["-b", "1024", "-I", "256", "-O", "^has_journal,quota,project"],
    size: "8M",
    pool_bytes: Some(SMALL_POOL),
};
const SMALL_POOL: u64 = 2 << 20;

/// Eight groups, most of which are unused at first.
const GROUPS: Format = Format {
    options: &["-b", "1024", "-g", "1024", "-N", "256", "-I", "256", "-J", "size=1"],
    size: "8M",
    pool_bytes: None,
};
const GENERATIONS_GROUPS: Format = Format {
    options: &["-b", "1024", "-g", "1024", "-N", "256", "-I", "256", "-O", "^has_journal"],
    size: "8M",
    pool_bytes: Some(SMALL_POOL),
};

const NO_JOURNAL: Format =
    Format { options: &["-b", "1024", "-O", "^has_journal"], size: "8M", pool_bytes: None };

/// Some files and folders are in their inodes at first.
const INLINE: Format =
    Format { options: &["-b", "1024", "-J", "size=1", "-O", "inline_data"], size: "8M", pool_bytes: None };

/// Block-mapped files, no checksums anywhere.
const EXT3: Format = Format {
    options: &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^extents,^64bit,^flex_bg,^huge_file"],
    size: "8M",
    pool_bytes: None,
};

/// The usage of each user is counted in quota files of the volume.
const QUOTAS: Format = Format {
    options: &["-b", "1024", "-J", "size=1", "-I", "256", "-O", "quota,project"],
    size: "8M",
    pool_bytes: None,
};

const ALL_SYNCED: Synced = Synced { all: true, folders: false };

fn workload(name: &'static str, script: Script) -> FileWorkload {
    FileWorkload {
        name,
        format: SMALL,
        threads: vec![script],
        prepare: None,
        commit_writes: CommitWrites::TwoStep,
        data_mode: DataMode::Ordered,
        inode_update: InodeUpdate::Delayed,
        timestamps: InodeUpdate::Delayed,
        log_records: LogRecords::Block,
        fsync: Fsync::Log,
        discard: false,
        steps: Steps::default(),
        synced: Synced::default(),
        from_open_to_close: false,
        also: None,
        held_to: None,
        fault: None,
    }
}

/// With commits in a single write.
fn single(name: &'static str, script: Script) -> FileWorkload {
    FileWorkload { commit_writes: CommitWrites::Single, ..workload(name, script) }
}

/// With changed bytes in the log instead of blocks.
fn sub_block(name: &'static str, workload: FileWorkload) -> FileWorkload {
    FileWorkload { name, log_records: LogRecords::SubBlock, ..workload }
}

/// Each sync writes so little that all of it survives or nothing.
fn small_syncs(name: &'static str, workload: FileWorkload) -> FileWorkload {
    let held_to = Some(Promise::Writes);
    FileWorkload { name, held_to, ..in_mode(DataMode::Adaptive, workload) }
}

/// With an additional check for persisted transactions.
fn kept(name: &'static str, workload: FileWorkload) -> FileWorkload {
    FileWorkload { name, also: Some(transactions::decided_once), ..workload }
}

/// With so little in each step that the borders between steps are crossed.
fn in_small_steps(name: &'static str, workload: FileWorkload) -> FileWorkload {
    FileWorkload { name, steps: Steps::SMALL, ..workload }
}

/// Writes that arrive in parts. However slow the machine is, the next part comes in time.
fn in_parts(name: &'static str) -> FileWorkload {
    FileWorkload {
        format: LARGE_BLOCKS,
        steps: Steps { next_part: Duration::from_secs(60), ..Steps::default() },
        also: Some(idioms::no_half_append),
        ..workload(name, idioms::appends_in_parts)
    }
}

/// Each fsync of an old file goes ahead of other changes, if there are any.
fn ahead(workload: FileWorkload) -> FileWorkload {
    let steps = Steps { ahead_blocks: 1, ..workload.steps };
    FileWorkload { fsync: Fsync::File, steps, ..workload }
}

fn in_mode(data_mode: DataMode, workload: FileWorkload) -> FileWorkload {
    FileWorkload { data_mode, ..workload }
}

/// All of them, without faults.
pub fn all() -> Vec<FileWorkload> {
    vec![
        workload("names", random::names),
        workload("data", random::data),
        workload("mix", random::mix),
        FileWorkload { format: LARGE_BLOCKS, ..workload("mix-4k", random::mix) },
        FileWorkload { format: OLD_DEFAULTS, ..workload("mix-old", random::mix) },
        FileWorkload { format: NEW_DEFAULTS, ..workload("mix-new", random::mix) },
        FileWorkload { format: NO_CHECKSUMS, ..workload("mix-nosum", random::mix) },
        FileWorkload { format: INLINE, ..workload("mix-inline", random::mix) },
        FileWorkload { format: INLINE, ..single("data-inline", random::data) },
        FileWorkload { format: EXT3, ..workload("data-ext3", random::data) },
        FileWorkload { format: EXT3, ..workload("mix-ext3", random::mix) },
        FileWorkload { format: EXT3, ..workload("reuse-ext3", idioms::reuse) },
        FileWorkload { format: EXT3, ..workload("arrays-ext3", idioms::arrays) },
        FileWorkload { format: EXT3, ..workload("tx-ext3", transactions::mix) },
        FileWorkload { format: QUOTAS, ..workload("mix-quota", random::mix) },
        FileWorkload { format: QUOTAS, ..workload("orphans-quota", idioms::orphans) },
        FileWorkload { format: QUOTAS, ..single("tx-quota", transactions::mix) },
        FileWorkload {
            threads: vec![random::mix, random::data, random::names],
            ..workload("threads", random::mix)
        },
        FileWorkload { from_open_to_close: true, ..workload("session", random::mix) },
        FileWorkload {
            from_open_to_close: true,
            ..in_mode(DataMode::Adaptive, single("adaptive-session", random::mix))
        },
        workload("replace", idioms::replace),
        workload("replace-unsynced", idioms::replace_unsynced),
        workload("append", idioms::append),
        workload("wrap", idioms::wrap),
        workload("reuse", idioms::reuse),
        workload("orphans", idioms::orphans),
        workload("short-lived", idioms::short_lived),
        single("single-short-lived", idioms::short_lived),
        FileWorkload { format: QUOTAS, ..single("short-lived-quota", idioms::short_lived) },
        FileWorkload { format: GROUPS, ..workload("unused-groups", idioms::unused_groups) },
        FileWorkload { format: GROUPS, ..single("single-unused-groups", idioms::unused_groups) },
        FileWorkload { discard: true, ..workload("discard-reuse", idioms::reuse) },
        FileWorkload { discard: true, ..workload("discard-refill", idioms::refill) },
        FileWorkload { discard: true, ..single("discard-tx", transactions::overwrite) },
        workload("fragments", idioms::fragments),
        workload("full", idioms::full),
        workload("refill", idioms::refill),
        workload("tx", transactions::mix),
        FileWorkload { format: LARGE_BLOCKS, ..workload("tx-4k", transactions::mix) },
        workload("tx-overwrite", transactions::overwrite),
        workload("tx-large", transactions::large),
        workload("tx-longer-journal", transactions::longer_journal),
        single("tx-longer-single", transactions::longer_journal),
        single("tx-spilled", transactions::spilled),
        workload("tx-savepoints", transactions::savepoints),
        single("tx-parts", transactions::parts),
        kept("tx-kept", single("", transactions::kept)),
        kept("tx-kept-4k", FileWorkload { format: LARGE_BLOCKS, ..workload("", transactions::kept) }),
        single("tx-old-versions", transactions::old_versions),
        FileWorkload {
            threads: vec![transactions::mix, transactions::overwrite, random::mix],
            ..workload("tx-threads", transactions::mix)
        },
        single("single-mix", random::mix),
        FileWorkload { format: LARGE_BLOCKS, ..single("single-mix-4k", random::mix) },
        FileWorkload { format: NO_CHECKSUMS, ..single("single-mix-nosum", random::mix) },
        single("single-append", idioms::append),
        single("single-wrap", idioms::wrap),
        single("single-reuse", idioms::reuse),
        single("single-tx", transactions::mix),
        FileWorkload {
            threads: vec![random::mix, transactions::overwrite, random::names],
            ..single("single-threads", random::mix)
        },
        // As stock ext4 does it.
        FileWorkload { inode_update: InodeUpdate::Immediate, ..workload("stock-mix", random::mix) },
        FileWorkload { inode_update: InodeUpdate::Immediate, ..workload("stock-data", random::data) },
        FileWorkload { timestamps: InodeUpdate::Immediate, ..workload("times-mix", random::mix) },
        FileWorkload { timestamps: InodeUpdate::Immediate, ..workload("times-data", random::data) },
        in_mode(DataMode::Writeback, workload("writeback-mix", random::mix)),
        in_mode(DataMode::Writeback, single("writeback-single", random::mix)),
        in_mode(DataMode::Writeback, single("writeback-tx", transactions::mix)),
        in_mode(DataMode::Journal, workload("journal-mix", random::mix)),
        in_mode(DataMode::Journal, single("journal-data", random::data)),
        in_mode(DataMode::Journal, single("journal-tx", transactions::mix)),
        in_mode(DataMode::Journal, workload("journal-reuse", modes::reuse)),
        in_mode(DataMode::Selective, workload("selective-mix", random::mix)),
        in_mode(DataMode::Selective, single("selective-data", random::data)),
        in_mode(DataMode::Selective, single("selective-tx", transactions::overwrite)),
        in_mode(DataMode::Adaptive, single("adaptive-mix", random::mix)),
        FileWorkload {
            format: LARGE_BLOCKS,
            ..in_mode(DataMode::Adaptive, single("adaptive-mix-4k", random::mix))
        },
        in_mode(DataMode::Adaptive, single("adaptive-append", idioms::append)),
        in_mode(DataMode::Adaptive, single("adaptive-replace", idioms::replace)),
        in_mode(DataMode::Adaptive, single("adaptive-wrap", idioms::wrap)),
        in_mode(DataMode::Adaptive, single("adaptive-tx", transactions::mix)),
        in_mode(DataMode::Adaptive, single("adaptive-tx-overwrite", transactions::overwrite)),
        in_mode(DataMode::Adaptive, single("adaptive-full", idioms::full)),
        FileWorkload {
            threads: vec![random::mix, transactions::overwrite, random::data],
            ..in_mode(DataMode::Adaptive, single("adaptive-threads", random::mix))
        },
        small_syncs("small-syncs", single("", idioms::small_syncs)),
        small_syncs(
            "small-syncs-4k",
            FileWorkload { format: LARGE_BLOCKS, ..workload("", idioms::small_syncs) },
        ),
        small_syncs("small-syncs-ext3", FileWorkload { format: EXT3, ..single("", idioms::small_syncs) }),
        in_mode(DataMode::Selective, single("small-syncs-selective", idioms::small_syncs)),
        in_mode(DataMode::Journal, workload("small-syncs-journal", idioms::small_syncs)),
        FileWorkload {
            format: LARGE_BLOCKS,
            also: Some(idioms::no_half_append),
            ..workload("two-appends", idioms::two_appends)
        },
        in_parts("appends-in-parts"),
        FileWorkload { data_mode: DataMode::Adaptive, ..in_parts("adaptive-appends-in-parts") },
        sub_block("patches-mix", in_mode(DataMode::Adaptive, single("", random::mix))),
        sub_block("patches-two-step", workload("", random::mix)),
        sub_block("patches-wrap", in_mode(DataMode::Adaptive, single("", idioms::wrap))),
        sub_block("patches-reuse", in_mode(DataMode::Journal, single("", modes::reuse))),
        sub_block("patches-switch", single("", modes::switch)),
        sub_block("patches-tx", in_mode(DataMode::Selective, single("", transactions::mix))),
        sub_block("patches-ext3", FileWorkload { format: EXT3, ..single("", random::mix) }),
        sub_block(
            "patches-threads",
            FileWorkload {
                threads: vec![random::mix, transactions::overwrite, random::data],
                ..in_mode(DataMode::Journal, single("", random::mix))
            },
        ),
        workload("switch", modes::switch),
        single("single-switch", modes::switch),
        in_mode(DataMode::Adaptive, single("choices", modes::choices)),
        FileWorkload {
            held_to: Some(Promise::Sizes),
            ..in_mode(DataMode::Journal, workload("choices-two-step", modes::choices))
        },
        // The volume does not order its data; these files do.
        FileWorkload {
            held_to: Some(Promise::Sizes),
            ..in_mode(DataMode::Writeback, single("choices-ordered", modes::ordered_choices))
        },
        workload("mode-reuse", modes::reuse),
        workload("synced-flags", synced::by_flags),
        FileWorkload { synced: ALL_SYNCED, ..single("synced-option", synced::by_option) },
        FileWorkload {
            synced: ALL_SYNCED,
            ..in_mode(DataMode::Adaptive, single("synced-adaptive", synced::by_option))
        },
        single("single-mode-reuse", modes::reuse),
        in_small_steps("steps-mix", workload("", random::mix)),
        in_small_steps("steps-data", in_mode(DataMode::Adaptive, single("", random::data))),
        in_small_steps("steps-journal", in_mode(DataMode::Journal, single("", random::data))),
        in_small_steps("steps-orphans", workload("", idioms::orphans)),
        in_small_steps("steps-wrap", workload("", idioms::wrap)),
        in_small_steps("steps-old-versions", single("", transactions::old_versions)),
        FileWorkload {
            name: "steps-threads",
            threads: vec![random::mix, transactions::overwrite, random::data],
            // A write that is longer than a batch may be half there if another thread commits
            // between two batches. None is here.
            steps: Steps { batch_pages: 64, ..Steps::SMALL },
            ..single("", random::mix)
        },
    ]
}

/// A new volume with generations.
pub fn generations_volume() -> Image {
    GENERATIONS.make()
}

/// The same on volumes with generations. Each fsync makes a generation; in some it goes to the log.
/// In some of these it takes its data along, and goes ahead of other changes.
pub fn on_generations() -> Vec<FileWorkload> {
    const LOGGED: [(&str, &str); 19] = [
        ("gen-synced-flags", "gen-log-synced-flags"),
        ("gen-synced-option", "gen-log-synced-option"),
        ("gen-mix", "gen-log-mix"),
        ("gen-mix-4k", "gen-log-mix-4k"),
        ("gen-data", "gen-log-data"),
        ("gen-threads", "gen-log-threads"),
        ("gen-append", "gen-log-append"),
        ("gen-wrap", "gen-log-wrap"),
        ("gen-reuse", "gen-log-reuse"),
        ("gen-orphans", "gen-log-orphans"),
        ("gen-short-lived", "gen-log-short-lived"),
        ("gen-full", "gen-log-full"),
        ("gen-refill", "gen-log-refill"),
        ("gen-tx", "gen-log-tx"),
        ("gen-tx-large", "gen-log-tx-large"),
        ("gen-tx-threads", "gen-log-tx-threads"),
        ("gen-snapshots", "gen-log-snapshots"),
        ("gen-parts", "gen-log-parts"),
        ("gen-writeback", "gen-log-writeback"),
    ];
    let by_generations = each_a_generation();
    let logged = LOGGED.iter().map(|(of, name)| {
        let workload = by_generations.iter().find(|w| w.name == *of).expect("a workload of this name");
        FileWorkload { name, fsync: Fsync::Log, ..workload.clone() }
    });
    let freed = FileWorkload { format: GENERATIONS, ..workload("gen-log-freed", idioms::reuse_in_the_log) };
    let overwrites =
        FileWorkload { format: GENERATIONS, ..workload("gen-along-overwrites", idioms::overwrites) };
    const ALONG: [(&str, &str); 15] = [
        ("gen-mix", "gen-along-mix"),
        ("gen-mix-4k", "gen-along-mix-4k"),
        ("gen-data", "gen-along-data"),
        ("gen-threads", "gen-along-threads"),
        ("gen-append", "gen-along-append"),
        ("gen-replace", "gen-along-replace"),
        ("gen-wrap", "gen-along-wrap"),
        ("gen-reuse", "gen-along-reuse"),
        ("gen-fragments", "gen-along-fragments"),
        ("gen-full", "gen-along-full"),
        ("gen-refill", "gen-along-refill"),
        ("gen-tx", "gen-along-tx"),
        ("gen-tx-threads", "gen-along-tx-threads"),
        ("gen-snapshots", "gen-along-snapshots"),
        ("gen-parts", "gen-along-parts"),
    ];
    let along = ALONG.iter().map(|(of, name)| {
        let workload = by_generations.iter().find(|w| w.name == *of).expect("a workload of this name");
        FileWorkload { name, ..workload.clone() }
    });
    let choices =
        FileWorkload { format: GENERATIONS, ..workload("gen-choices", modes::choices_of_generations) };
    let along = along.chain([overwrites, choices]);
    let along = along.map(|w| ahead(in_mode(DataMode::Adaptive, w)));
    let beside = |name, format| {
        let workload = FileWorkload { format, ..workload(name, ahead::beside_others) };
        ahead(in_mode(DataMode::Adaptive, workload))
    };
    let new = |name, format| FileWorkload { threads: vec![ahead::new_files], ..beside(name, format) };
    let full_log: Vec<Script> = vec![ahead::new_files_in_a_full_log];
    let threads: Vec<Script> = vec![ahead::beside_others, random::names, ahead::beside_others];
    let makers: Vec<Script> = vec![ahead::new_files, random::names, ahead::new_files];
    let beside = [
        beside("gen-ahead", GENERATIONS),
        beside("gen-ahead-4k", GENERATIONS_4K),
        beside("gen-ahead-quota", GENERATIONS_QUOTAS),
        in_mode(DataMode::Ordered, beside("gen-ahead-ordered", GENERATIONS)),
        FileWorkload { threads, ..beside("gen-ahead-threads", GENERATIONS) },
        new("gen-ahead-new", GENERATIONS),
        new("gen-ahead-new-4k", GENERATIONS_4K),
        new("gen-ahead-new-quota", GENERATIONS_QUOTAS),
        in_mode(DataMode::Ordered, new("gen-ahead-new-ordered", GENERATIONS)),
        FileWorkload { threads: makers, ..new("gen-ahead-new-threads", GENERATIONS) },
        FileWorkload { threads: full_log, ..new("gen-ahead-new-wrap", GENERATIONS) },
    ];
    let unordered = [("gen-unordered-mix", "gen-mix"), ("gen-unordered-snapshots", "gen-snapshots")];
    let unordered = unordered.into_iter().map(|(name, of)| {
        let workload = by_generations.iter().find(|w| w.name == of).expect("a workload of this name");
        FileWorkload { name, fsync: Fsync::Log, ..in_mode(DataMode::Writeback, workload.clone()) }
    });
    const STEPS: [(&str, &str); 3] = [
        ("gen-mix", "gen-steps-mix"),
        ("gen-data", "gen-steps-data"),
        ("gen-snapshots", "gen-steps-snapshots"),
    ];
    let groups = |name| FileWorkload {
        format: GENERATIONS_GROUPS,
        threads: vec![idioms::unused_groups],
        ..workload(name, idioms::unused_groups)
    };
    let groups = [
        groups("gen-unused-groups"),
        FileWorkload { fsync: Fsync::Log, ..groups("gen-log-unused-groups") },
        FileWorkload {
            threads: vec![idioms::unused_groups, random::names, idioms::unused_groups],
            ..ahead(in_mode(DataMode::Adaptive, groups("gen-unused-groups-threads")))
        },
    ];
    let steps = STEPS.iter().map(|(of, name)| {
        let workload = by_generations.iter().find(|w| w.name == *of).expect("a workload of this name");
        FileWorkload { fsync: Fsync::File, ..in_small_steps(name, workload.clone()) }
    });
    let steps = steps.collect::<Vec<_>>();
    by_generations
        .iter()
        .cloned()
        .chain(logged)
        .chain([freed])
        .chain(along)
        .chain(beside)
        .chain(unordered)
        .chain(steps)
        .chain(groups)
        .chain([FileWorkload { format: GENERATIONS, ..in_parts("gen-appends-in-parts") }])
        .collect()
}

fn each_a_generation() -> Vec<FileWorkload> {
    const NAMES: [(&str, &str); 23] = [
        ("synced-flags", "gen-synced-flags"),
        ("synced-option", "gen-synced-option"),
        ("session", "gen-session"),
        ("names", "gen-names"),
        ("data", "gen-data"),
        ("mix", "gen-mix"),
        ("mix-4k", "gen-mix-4k"),
        ("threads", "gen-threads"),
        ("replace", "gen-replace"),
        ("replace-unsynced", "gen-replace-unsynced"),
        ("append", "gen-append"),
        ("wrap", "gen-wrap"),
        ("reuse", "gen-reuse"),
        ("orphans", "gen-orphans"),
        ("short-lived", "gen-short-lived"),
        ("fragments", "gen-fragments"),
        ("full", "gen-full"),
        ("refill", "gen-refill"),
        ("tx", "gen-tx"),
        ("tx-overwrite", "gen-tx-overwrite"),
        ("tx-large", "gen-tx-large"),
        ("tx-threads", "gen-tx-threads"),
        ("tx-kept", "gen-tx-kept"),
    ];
    let all = all();
    NAMES
        .iter()
        .map(|(of, name)| {
            let workload = all.iter().find(|w| w.name == *of).expect("a workload of this name");
            let large = workload.format.options.contains(&"4096");
            let format = if large { GENERATIONS_4K } else { GENERATIONS };
            FileWorkload { name, format, ..workload.clone() }
        })
        .chain([FileWorkload { format: GENERATIONS, ..workload("gen-snapshots", idioms::snapshots) }])
        .chain([FileWorkload { format: GENERATIONS, ..workload("gen-parts", idioms::snapshot_parts) }])
        .chain([FileWorkload {
            name: "gen-writeback",
            format: GENERATIONS,
            prepare: Some(idioms::many_folders),
            ..workload("", idioms::in_many_folders)
        }])
        .map(|workload| FileWorkload { fsync: Fsync::Generation, ..workload })
        .collect()
}

/// On a volume without a journal, which promises something only for a run that ends in a sync.
pub fn without_journal(script: Script) -> FileWorkload {
    FileWorkload { format: NO_JOURNAL, ..workload("none", script) }
}

pub fn find(name: &str) -> Option<FileWorkload> {
    all().into_iter().chain(on_generations()).find(|w| w.name == name)
}
