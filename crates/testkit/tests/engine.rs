//! The journal engine under the explorer.

use xact_testkit::blocks::BlockWorkload;
use xact_testkit::explorer::{Plan, Summary, report};

#[test]
fn the_journal_engine_keeps_its_promises() {
    println!("{}", Summary::HEADER);
    for workload in BlockWorkload::all() {
        let summary = report(&workload, &Plan::quick()).unwrap();
        assert!(summary.findings.is_empty(), "{}: {:?}", workload.name, summary.findings);
        assert!(summary.states > 100, "{summary:?}");
    }
}
