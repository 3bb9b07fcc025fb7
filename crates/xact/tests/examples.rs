//! The examples run, and end without an error.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use xact::{FileDevice, OpenMode, mkfs};

/// The program of an example, which `cargo test` has built beside this one.
fn program(example: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent).unwrap().join("examples").join(example);
    assert!(path.exists(), "build it first: cargo build -p xact --examples (with the test's profile)");
    path
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn first_steps_on_an_image() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(64 << 20).unwrap();
    let device = Arc::new(FileDevice::open(image.path(), OpenMode::ReadWrite).unwrap());
    mkfs::mkfs(&*device, &Default::default()).unwrap();
    drop(device);
    assert_eq!(output(Command::new(program("first_steps")).arg(image.path())), "ann has 70\n");
}

#[test]
fn examples_with_arguments_print_their_usage() {
    for arguments in [&[][..], &["--help"]] {
        let output = Command::new(program("first_steps")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "usage: first_steps IMG\n", "{arguments:?}");
    }
}

#[test]
fn snapshots_are_compared_and_restored() {
    let printed = output(&mut Command::new(program("snapshots")));
    assert_eq!(printed, "Modified /notes/today\nAdded /notes/tomorrow\n");
}

#[test]
fn no_count_is_lost() {
    assert_eq!(output(&mut Command::new(program("retry"))), "4 threads have counted to 100\n");
}
