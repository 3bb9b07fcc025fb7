//! Whole volumes under the explorer: every workload, a sample of its crash states.

use xact::{DataMode, InodeUpdate};
use xact_testkit::explorer::{Plan, Summary, explore, report};
use xact_testkit::files::FileWorkload;
use xact_testkit::model::Promise;
use xact_testkit::workloads;

fn clean(names: &[&str]) {
    println!("{}", Summary::HEADER);
    for name in names {
        let workload = workloads::find(name).expect("a workload of this name");
        let summary = report(&workload, &Plan::quick()).unwrap();
        assert!(summary.findings.is_empty(), "{name}: {:?}", summary.findings);
        assert!(summary.states > 20, "{summary:?}");
    }
}

#[test]
fn random_operations() {
    clean(&["names", "data", "mix"]);
}

#[test]
fn other_formats() {
    clean(&["mix-4k", "mix-old", "mix-new", "mix-nosum"]);
}

#[test]
fn block_mapped_files() {
    clean(&["data-ext3", "mix-ext3", "reuse-ext3", "arrays-ext3", "tx-ext3"]);
}

#[test]
fn several_threads() {
    clean(&["threads"]);
}

#[test]
fn idioms() {
    clean(&["replace", "replace-unsynced", "append", "fragments"]);
}

#[test]
fn log_wrap_around_and_reuse_of_blocks() {
    clean(&["wrap", "reuse"]);
}

#[test]
fn orphans_and_a_full_volume() {
    clean(&["orphans", "full", "refill"]);
}

#[test]
fn usage_counted_by_quotas() {
    clean(&["mix-quota", "orphans-quota", "tx-quota"]);
}

#[test]
fn freed_blocks_are_discarded() {
    clean(&["discard-reuse", "discard-refill", "discard-tx"]);
}

#[test]
fn transactions() {
    clean(&[
        "tx",
        "tx-4k",
        "tx-overwrite",
        "tx-large",
        "tx-savepoints",
        "tx-parts",
        "tx-kept",
        "tx-old-versions",
    ]);
}

#[test]
fn transactions_of_several_threads() {
    clean(&["tx-threads"]);
}

#[test]
fn commits_in_a_single_write() {
    clean(&["single-mix", "single-mix-4k", "single-mix-nosum", "single-append"]);
    clean(&["single-wrap", "single-reuse", "single-tx", "single-threads"]);
}

#[test]
fn data_through_the_journal() {
    clean(&["journal-mix", "journal-data", "journal-tx", "journal-reuse"]);
}

#[test]
fn overwritten_data_through_the_journal() {
    clean(&["selective-mix", "selective-data", "selective-tx"]);
}

#[test]
fn data_of_small_syncs_through_the_journal() {
    clean(&["adaptive-mix", "adaptive-mix-4k", "adaptive-append", "adaptive-replace", "adaptive-wrap"]);
    clean(&["adaptive-tx", "adaptive-full", "adaptive-threads"]);
}

#[test]
fn small_syncs_survive_as_a_whole() {
    clean(&["small-syncs", "small-syncs-4k", "small-syncs-ext3"]);
    clean(&["small-syncs-selective", "small-syncs-journal"]);
}

#[test]
fn files_that_change_their_mode() {
    clean(&["switch", "single-switch", "mode-reuse", "single-mode-reuse"]);
    clean(&["choices", "choices-two-step", "choices-ordered"]);
}

#[test]
fn sub_block_records() {
    // The other workloads, in two steps, with transactions, threads and without extents, run in
    // `make crash-long`.
    clean(&["patches-mix", "patches-reuse", "patches-switch"]);
}

#[test]
fn sizes_follow_their_data() {
    clean(&["two-appends", "appends-in-parts", "adaptive-appends-in-parts"]);
}

/// The fault of stock ext4 (DIU-4): another file's fsync commits a size whose data is missing.
#[test]
fn immediate_inode_updates_show_half_a_write() {
    let workload = FileWorkload {
        inode_update: InodeUpdate::Immediate,
        timestamps: InodeUpdate::Immediate,
        ..workloads::find("two-appends").expect("a workload of this name")
    };
    let summary = explore(&workload, &Plan { second_one_in: 0, ..Plan::quick() }).unwrap();
    assert!(!summary.findings.is_empty());
}

#[test]
fn data_that_follows_its_commit() {
    clean(&["writeback-single", "writeback-tx"]);
}

/// ext4's documentation of data=writeback: blocks may show their previous contents. The explorer
/// finds that.
#[test]
fn writeback_shows_previous_contents_of_blocks() {
    let workload = FileWorkload {
        data_mode: DataMode::Writeback,
        held_to: Some(Promise::Sectors),
        ..workloads::find("single-append").expect("a workload of this name")
    };
    let summary = explore(&workload, &Plan { second_one_in: 0, ..Plan::quick() }).unwrap();
    assert!(!summary.findings.is_empty());
}
