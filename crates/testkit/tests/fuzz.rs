//! The fuzz targets without a fuzzer: on their corpus, on earlier findings (`tests/regress`), and
//! on a few fixed made-up inputs.

use std::path::{Path, PathBuf};

use xact_testkit::fuzz::TARGETS;
use xact_testkit::rng::Rng;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files of a folder, which may be missing.
fn inputs(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder").path()).collect();
    files.sort();
    files
}

fn replay(name: &str) {
    let (_, run) = TARGETS.into_iter().find(|(target, _)| *target == name).expect("a target");
    let corpus = inputs(&root().join("fuzz/corpus").join(name));
    assert!(!corpus.is_empty(), "the corpus of {name} is missing");
    for path in corpus.into_iter().chain(inputs(&root().join("tests/regress").join(name))) {
        // The harness shows it only if the target panics.
        println!("{}", path.display());
        run(&std::fs::read(&path).expect("an input"));
    }
}

/// Inputs of the kind that a fuzzer might begin with.
fn made_up(name: &str, count: u64, longest: u64) {
    let (_, run) = TARGETS.into_iter().find(|(target, _)| *target == name).expect("a target");
    for seed in 0..count {
        let mut rng = Rng::of(&[seed, longest]);
        let len = 1 + rng.below(longest);
        let bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
        println!("made up: {seed}");
        run(&bytes);
    }
}

#[test]
fn codecs() {
    replay("codecs");
    made_up("codecs", 20_000, 1500);
}

#[test]
fn logs() {
    replay("replay");
    made_up("replay", 400, 400);
}

#[test]
fn volumes() {
    replay("volume");
    made_up("volume", 60, 60);
}

#[test]
fn checks() {
    replay("check");
    made_up("check", 200, 60);
}

#[test]
fn operations() {
    replay("operations");
    made_up("operations", 60, 500);
}
