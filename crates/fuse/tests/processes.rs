//! Tests that concern a whole process: signals, and mounting as an ordinary user. A program without
//! test harness, since the harness's threads would take the signal.

#[allow(dead_code)]
mod common;

use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::Ordering;

use common::{Mounted, sh};
use xact::{PathExt, Volume, VolumeOptions};
use xact_fuse::Session;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("unprivileged") {
        return serve_unprivileged();
    }
    Session::block_signals();
    a_signal_unmounts();
    println!("a signal unmounts: ok");
    a_second_signal_ends_it_while_it_is_in_use();
    println!("a second one ends it while it is in use: ok");
    an_ordinary_user_mounts_through_fusermount3();
    println!("an ordinary user mounts through fusermount3: ok");
}

fn terminate() {
    // SAFETY: a signal to this very process, which has it blocked in all threads.
    unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
}

fn a_signal_unmounts() {
    let mut mount = Mounted::in_memory();
    mount.session().unmount_on_signals().unwrap();
    std::fs::write(mount.at("f"), "text").unwrap();
    let before = mount.device().flushes.load(Ordering::Acquire);
    terminate();
    mount.wait();
    // It is durable before the volume is closed.
    assert!(mount.device().flushes.load(Ordering::Acquire) > before);
    let crashed = Volume::open(mount.device().copy(), &VolumeOptions::default()).unwrap();
    assert_eq!(crashed.read("/f").unwrap(), b"text");
    crashed.close().unwrap();
}

fn a_second_signal_ends_it_while_it_is_in_use() {
    let mut mount = Mounted::in_memory();
    mount.session().unmount_on_signals().unwrap();
    let path = mount.at("f");
    let mut file = File::create(&path).unwrap();
    terminate();
    while path.exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    file.write_all(b"it is served on").unwrap();
    terminate();
    mount.wait();
    let error = file.write_all(b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
}

/// Runs this program again, as user 1000, from a path that this user may execute.
fn an_ordinary_user_mounts_through_fusermount3() {
    let dir = tempfile::tempdir().unwrap();
    common::set_mode(dir.path(), 0o755);
    let copy = dir.path().join("processes");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    common::set_mode(&copy, 0o755);
    // With a /dev/fuse as udev makes it, whatever this machine has.
    let script = "mount -t tmpfs none /mnt; mknod -m 666 /mnt/fuse c 10 229; mount --bind /mnt/fuse /dev/fuse
                  exec setpriv --reuid 1000 --regid 1000 --clear-groups \"$0\" unprivileged";
    let status = Command::new("unshare")
        .args(["--mount", "bash", "-euc", script])
        .arg(&copy)
        .current_dir("/")
        .status()
        .unwrap();
    assert!(status.success());
}

fn serve_unprivileged() {
    let mut mount = Mounted::in_memory();
    // Root owns the root of the volume in memory.
    let said = sh(&mount.path(), "cat missing 2>&1 || ls -A; findmnt -no FSTYPE,OPTIONS -T . ");
    assert!(said.starts_with("cat: missing: No such file"), "{said}");
    assert!(said.contains("nosuid,nodev") && said.contains("user_id=1000"), "{said}");
    assert!(!said.contains("allow_other"), "{said}");
    // A transaction too, and more workers than one, which share a descriptor.
    let channel = xact_control::client::Channel::open(&mount.path()).unwrap();
    let (_, root) = channel.begin(0).unwrap();
    assert!(root.join("..").metadata().is_ok());
    sh(&root, "for i in $(seq 20); do (for j in $(seq 20); do stat . > /dev/null; done) & done; wait");
    channel.commit(0).unwrap();
    drop(channel);
    assert!(mount.unmounter().unmount().unwrap());
    mount.wait();
}
