//! Every sequence of one operation, and a sample of those of two, in every setting.

use std::collections::HashSet;

use xact_consistency::Fault;
use xact_testkit::ace::{self, AceWorkload, Bounds};
use xact_testkit::explorer::{
    ExploredStates, Finding, Plan, Replay, Subject, explore, explore_more, replay, report,
};

const THREADS: usize = 2;

#[test]
fn all_sequences_of_one_operation() {
    for setting in ace::SETTINGS {
        let outcome = ace::report_all(&Bounds::new(setting, 1, 1), THREADS, None).unwrap();
        assert!(outcome.summary.findings.is_empty(), "{:?}", outcome.summary.findings);
        // Without a journal nothing is promised before the end of a sequence.
        let states = if setting == "none" { 400 } else { 2000 };
        let met = outcome.summary.states + outcome.summary.known;
        assert!(outcome.sequences > 400 && met > states, "{outcome:?}");
    }
}

#[test]
fn some_sequences_of_two_operations() {
    for setting in ace::SETTINGS {
        let bounds = Bounds { sample: Some(112), ..Bounds::new(setting, 2, 1) };
        let outcome = ace::report_all(&bounds, THREADS, None).unwrap();
        assert!(outcome.summary.findings.is_empty(), "{:?}", outcome.summary.findings);
        assert_eq!(outcome.sequences, 112);
    }
}

/// The kernel recovers the same trees.
#[test]
fn the_kernel_agrees() {
    let bounds = Bounds::new("adaptive", 2, 7);
    let plan = Plan { second_one_in: 40, ..bounds.plan };
    let outcome = ace::report_all(&Bounds { sample: Some(64), plan, ..bounds }, THREADS, None).unwrap();
    assert!(outcome.summary.findings.is_empty(), "{:?}", outcome.summary.findings);
    assert!(outcome.summary.second_opinions > 5, "{outcome:?}");
}

/// An earlier finding: a file that had only grown and was renamed over another lost its growth.
#[test]
fn earlier_findings() {
    for name in ["ace/adaptive/durable/33.0/11.2", "ace/ordered/durable/33.0/18.2"] {
        let workload = AceWorkload::find(name).unwrap();
        let summary = report(&workload, &Bounds::new("adaptive", 2, 1).plan).unwrap();
        assert!(summary.findings.is_empty() && summary.states > 3, "{summary:?}");
    }
}

/// A sequence's name repeats it.
#[test]
fn names_replay() {
    let line: Replay = "ace/ordered/durable/0.1:1:00000000:p0:".parse().unwrap();
    let workload = AceWorkload::find(&line.workload).unwrap();
    let replayed = replay(&workload, &line, &Plan::quick()).unwrap();
    assert!(replayed.finding.is_none());
    assert!(AceWorkload::find("ace/ordered/durable/0.99").is_err());
}

/// So that common parts of sequences leave identical devices.
#[test]
fn runs_repeat() {
    for setting in ace::SETTINGS {
        for steps in ["0.1/12.3", "8.0/30.1", "62.0/7.1", "63.1/64.2", "20.2/41.1"] {
            for start in ["fresh", "durable"] {
                let workload = AceWorkload::find(&format!("ace/{setting}/{start}/{steps}")).unwrap();
                let written = || {
                    let recording = workload.record(1).unwrap().0;
                    let actions: Vec<_> =
                        recording.events.iter().map(|e| format!("{:?}", e.action)).collect();
                    (recording.base.digest(), actions)
                };
                assert!(written() == written(), "{}", workload.name());
            }
        }
    }
}

/// Every finding of a sequence alone is also found after other sequences were explored.
#[test]
fn skipping_explored_states_hides_no_finding() {
    const CASES: [(&str, Fault); 3] = [
        ("ordered", Fault::NoFlushBeforeCommitBlock),
        ("adaptive", Fault::NoFlushOfData),
        ("generations", Fault::NoFlushBeforeRoot),
    ];
    for (setting, fault) in CASES {
        let plan = Plan { findings: usize::MAX, ..Bounds::new(setting, 2, 1).plan };
        let known = ExploredStates::of_many();
        let (mut shown_before, mut shown, mut states) = (HashSet::new(), 0, [0; 2]);
        for name in (0..40).map(|letter| format!("ace/{setting}/fresh/0.1/{letter}.1")) {
            let Ok(workload) = AceWorkload::find(&name) else { continue };
            let workload = workload.without(fault);
            let together = explore_more(&workload, &plan, &known).unwrap();
            let alone = explore(&workload, &plan).unwrap();
            assert_eq!(together.states + together.known, alone.states, "{name}");
            // The first line has the promises, the state and the fault.
            let first_line = |finding: &Finding| finding.what.lines().next().map(str::to_owned);
            shown_before.extend(together.findings.iter().map(first_line));
            for finding in &alone.findings {
                assert!(shown_before.contains(&first_line(finding)), "{name}: {}", finding.what);
            }
            shown += alone.findings.len();
            states = [states[0] + together.states, states[1] + alone.states];
        }
        assert!(shown > 10 && states[0] < states[1], "{setting}: {shown} findings, {states:?} states");
    }
}

/// Omitted rules are noticed by the enumeration, each in a line that replays it.
#[test]
fn faults_are_found() {
    const CASES: [(&str, Fault); 6] = [
        ("ordered", Fault::NoFlushBeforeCommitBlock),
        ("ordered", Fault::NoFlushAfterCommitBlock),
        ("ordered", Fault::SizeBeforeData),
        ("adaptive", Fault::NoFlushOfData),
        ("generations", Fault::NoFlushBeforeRoot),
        ("none", Fault::NoFlushAfterHome),
    ];
    for (setting, fault) in CASES {
        let bounds = Bounds { fault: Some(fault), ..Bounds::new(setting, 2, 1) };
        let outcome = ace::report_all(&bounds, THREADS, None).unwrap();
        let finding = outcome.summary.findings.first().unwrap_or_else(|| panic!("{setting}: {fault:?}"));
        let line: Replay = finding.replay.parse().unwrap();
        let workload = AceWorkload::find(&line.workload).unwrap().without(fault);
        assert!(replay(&workload, &line, &bounds.plan).unwrap().finding.is_some(), "{}", finding.replay);
    }
}
