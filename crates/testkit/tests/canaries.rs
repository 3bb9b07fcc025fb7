//! The omission of each ordering rule is noticed by a workload.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use xact_consistency::Fault;
use xact_testkit::canaries::{ALL, Canary};

#[test]
fn every_fault_is_found() {
    const THREADS: usize = 2;
    println!("{}", Canary::HEADER);
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let hunt = || {
        while let Some(canary) = ALL.get(next.fetch_add(1, Relaxed)) {
            match canary.hunt() {
                Ok(found) => println!("{}", canary.row(&found)),
                Err(why) => missed.lock().push(why),
            }
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(hunt))));
    assert!(missed.lock().is_empty(), "{:?}", missed.lock());
}

#[test]
fn every_fault_has_its_canary() {
    for fault in Fault::all() {
        assert!(ALL.iter().any(|canary| canary.fault == fault), "{fault:?} needs a line in canaries.rs");
        let documented = include_str!("../../../docs/CRASH.md").contains(&format!("`{fault:?}`"));
        assert!(documented, "{fault:?} needs a place in the table of docs/CRASH.md");
    }
}
