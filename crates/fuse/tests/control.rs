//! Runs the fuzz target `control` without a fuzzer: on its corpus, on earlier findings, and on
//! generated inputs, the same in each run.

#[path = "control/target.rs"]
mod target;

use std::path::Path;

use xact_fs::inode_ops::random::Rng;

#[test]
fn control_as_an_unprivileged_user() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for folder in ["fuzz/corpus/control", "tests/regress/control"] {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            target::run(&std::fs::read(path).unwrap());
        }
    }
    let count = std::env::var("INPUTS").map_or(300, |text| text.parse().unwrap());
    for seed in 0..count {
        let mut rng = Rng(seed);
        let bytes: Vec<u8> = (0..rng.below(1500)).map(|_| rng.below(256) as u8).collect();
        println!("made up: {seed}");
        target::run(&bytes);
    }
}
