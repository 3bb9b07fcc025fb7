//! Every sequence of one operation, and a sample of those of two, in every setting.

use xact_testkit::ace::{self, AceWorkload, Bounds};
use xact_testkit::explorer::{Plan, Replay, replay, report};

const THREADS: usize = 2;

#[test]
fn all_sequences_of_one_operation() {
    for setting in ace::SETTINGS {
        let outcome = ace::report_all(&Bounds::new(setting, 1, 1), THREADS).unwrap();
        assert!(outcome.summary.findings.is_empty(), "{:?}", outcome.summary.findings);
        // Without a journal nothing is promised before the end of a sequence.
        let states = if setting == "none" { 400 } else { 2000 };
        assert!(outcome.sequences > 400 && outcome.summary.states > states, "{outcome:?}");
    }
}

#[test]
fn some_sequences_of_two_operations() {
    for setting in ace::SETTINGS {
        let bounds = Bounds { sample: Some(112), ..Bounds::new(setting, 2, 1) };
        let outcome = ace::report_all(&bounds, THREADS).unwrap();
        assert!(outcome.summary.findings.is_empty(), "{:?}", outcome.summary.findings);
        assert_eq!(outcome.sequences, 112);
    }
}

/// The kernel recovers the same trees.
#[test]
fn the_kernel_agrees() {
    let bounds = Bounds::new("adaptive", 2, 7);
    let plan = Plan { second_one_in: 40, ..bounds.plan };
    let outcome = ace::report_all(&Bounds { sample: Some(64), plan, ..bounds }, THREADS).unwrap();
    assert!(outcome.summary.findings.is_empty(), "{:?}", outcome.summary.findings);
    assert!(outcome.summary.second_opinions > 5, "{outcome:?}");
}

/// What was found once: a file that has only grown, renamed over another, came without its growth.
#[test]
fn findings_of_the_past() {
    for name in ["ace/adaptive/durable/33.0/11.2", "ace/ordered/durable/33.0/18.2"] {
        let workload = AceWorkload::find(name).unwrap();
        let summary = report(&workload, &Bounds::new("adaptive", 2, 1).plan).unwrap();
        assert!(summary.findings.is_empty() && summary.states > 3, "{summary:?}");
    }
}

/// A sequence's name brings it back.
#[test]
fn names_replay() {
    let line: Replay = "ace/ordered/durable/0.1:1:00000000:p0:".parse().unwrap();
    let workload = AceWorkload::find(&line.workload).unwrap();
    let replayed = replay(&workload, &line, &Plan::quick()).unwrap();
    assert!(replayed.finding.is_none());
    assert!(AceWorkload::find("ace/ordered/durable/0.99").is_err());
}
