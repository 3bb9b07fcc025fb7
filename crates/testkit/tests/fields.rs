//! A sample of the sweep over all fields: `xact check` agrees with e2fsck.

use xact_testkit::fields::Sweep;

#[test]
fn some_of_all_fields() {
    let summary = Sweep::new(&[]).unwrap().run(100, None).unwrap();
    assert_eq!(summary.print(), 0, "differences without a reason");
    assert!(summary.tried > 200 && summary.sound > 20, "{summary:?}");
}
