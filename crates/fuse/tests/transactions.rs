//! Transactions through the control channel: views, commit, conflict, abort.

#[allow(dead_code)]
#[macro_use]
mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Mounted, sh};
use xact::Resource;
use xact_control::abi::Reason;
use xact_control::client::{self, Channel};

on_both! {
    a_view_is_private_until_it_commits
    an_ended_view_is_stale_for_those_left_in_it
    stores_through_mappings_are_committed
    others_stay_out
    the_hidden_folder_is_the_servers
    many_at_once
}

/// Savepoints, with a kernel that has everything cached.
#[test]
fn a_rollback_reaches_the_kernels_caches() {
    let mount = Mounted::on_a_volume();
    fs::write(mount.at("f"), "before").unwrap();
    fs::write(mount.at("gone"), "here").unwrap();
    let channel = Channel::open(&mount.path()).unwrap();
    let (_, root) = channel.begin(0).unwrap();
    fs::write(root.join("f"), "outer").unwrap();
    let open = File::options().read(true).write(true).open(root.join("f")).unwrap();
    let inner = client::SavepointHandle::begin(&root).unwrap();
    fs::write(root.join("f"), "inner, and longer").unwrap();
    fs::write(root.join("made"), "x").unwrap();
    let made = File::open(root.join("made")).unwrap();
    fs::remove_file(root.join("gone")).unwrap();
    // Stores into a mapping that the kernel has not written yet.
    let script =
        "python3 -c 'import mmap; f = open(\"f\", \"r+b\"); m = mmap.mmap(f.fileno(), 0); m[0:2] = b\"IN\"'";
    sh(&root, script);
    assert_eq!(sh(&root, "cat f; ls -I lost+found"), "INner, and longerf\nmade\n");
    inner.roll_back().unwrap();
    assert_eq!(
        sh(&root, "cat f; ls -I lost+found; cat gone; test -e made || echo none"),
        "outerf\ngone\nherenone\n"
    );
    let mut bytes = [0; 100];
    assert_eq!(open.read_at(&mut bytes, 0).unwrap(), 5);
    assert!(made.read_at(&mut bytes, 0).is_err());
    open.write_all_at(b"OUT", 0).unwrap();
    // A file is created again under the name of one that was undone.
    let inner = client::SavepointHandle::begin(&root.join("f")).unwrap();
    fs::write(root.join("made"), "again").unwrap();
    inner.release().unwrap();
    assert_eq!(errno(client::SavepointHandle::begin(&mount.path())), libc::ENOTTY);
    channel.commit(0).unwrap();
    assert_eq!(sh(&mount.path(), "cat f made gone; ls -I lost+found"), "OUTeragainheref\ngone\nmade\n");
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Transactions of this user that are open.
fn open_transactions(mount: &Mounted) -> u64 {
    // SAFETY: geteuid has no arguments and cannot fail.
    let uid = unsafe { libc::geteuid() };
    mount.volume().accounts().of(uid).used(Resource::Transactions)
}

/// Waits for an effect that follows soon after a close.
fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn a_view_is_private_until_it_commits(mount: Mounted) {
    fs::write(mount.at("shared"), "old").unwrap();
    fs::write(mount.at("gone"), "x").unwrap();
    fs::create_dir(mount.at("dir")).unwrap();
    // Warm the kernel's caches: of existing and of missing names.
    assert!(!mount.at("dir/new").exists());
    assert_eq!(sh(&mount.path(), "ls -l dir | wc -l; cat shared"), "1\nold");

    let channel = Channel::open(&mount.path()).unwrap();
    assert_eq!(channel.version().unwrap(), xact_control::abi::ABI_VERSION);
    assert_eq!(channel.active().unwrap(), None);
    let (id, root) = channel.begin(0).unwrap();
    assert_eq!((channel.active().unwrap(), errno(channel.begin(0))), (Some(id), libc::EBUSY));
    assert_eq!(root, mount.at(&format!(".xact/tx/{id}/root")));
    fs::write(root.join("shared"), "changed").unwrap();
    fs::write(root.join("dir/new"), "made").unwrap();
    fs::remove_file(root.join("gone")).unwrap();
    let number = fs::metadata(root.join("dir/new")).unwrap().ino();
    assert_eq!(fs::metadata(&root).unwrap().ino(), 2);
    let base = sh(&mount.path(), "cat shared gone; ls dir | wc -l");
    assert_eq!(base, "oldx0\n");

    channel.commit(0).unwrap();
    assert_eq!(
        sh(&mount.path(), "cat shared dir/new; ls -A -I lost+found; ls dir"),
        "changedmadedir\nshared\nnew\n"
    );
    assert_eq!(fs::metadata(mount.at("dir/new")).unwrap().ino(), number);
    assert!(!mount.at(&format!(".xact/tx/{id}")).exists());
    // The channel is free for another.
    assert_eq!(channel.active().unwrap(), None);
    assert!(channel.begin(0).unwrap().0 > id);
    channel.abort().unwrap();
    assert_eq!(errno(channel.abort()), libc::ENOENT);
    assert_eq!(channel.commit(0).unwrap_err().errno, libc::ENOENT);
}

#[test]
fn a_conflict_says_where_and_undoes_everything() {
    let mount = Mounted::in_memory();
    let channel = Channel::open(&mount.path()).unwrap();
    let (_, root) = channel.begin(0).unwrap();
    fs::write(root.join("mine"), "x").unwrap();
    fs::write(root.join("theirs"), "x").unwrap();
    fs::write(mount.at("theirs"), "y").unwrap();
    let error = channel.commit(0).unwrap_err();
    assert_eq!((error.errno, error.reason), (libc::EAGAIN, Reason::Conflict));
    assert_eq!(error.path.unwrap().to_str(), Some("/theirs"));
    assert_eq!(error.why, "the name was changed concurrently, by a program outside of any transaction");
    assert_eq!(sh(&mount.path(), "ls -A -I lost+found"), "theirs\n");
}

#[test]
fn closing_the_channel_aborts() {
    let mount = Mounted::in_memory();
    let channel = Channel::open(&mount.path()).unwrap();
    let (_, root) = channel.begin(0).unwrap();
    let mut file = File::create(root.join("f")).unwrap();
    file.write_all(b"x").unwrap();
    // Another process has it too: the last one to close it counts.
    let other = std::os::fd::AsFd::as_fd(&channel).try_clone_to_owned().unwrap();
    let mut child = std::process::Command::new("sleep").arg("60").stdin(other).spawn().unwrap();
    drop(channel);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(open_transactions(&mount), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the abort", || open_transactions(&mount) == 0);
    eventually("the end of the view", || !root.exists());
    assert_eq!(errno(file.write_all(b"y")), libc::ESTALE);
    assert_eq!(sh(&mount.path(), "ls -A -I lost+found"), "");
}

fn an_ended_view_is_stale_for_those_left_in_it(mount: Mounted) {
    fs::write(mount.at("f"), "text").unwrap();
    let channel = Channel::open(&mount.path()).unwrap();
    let (_, root) = channel.begin(0).unwrap();
    let file = File::options().read(true).write(true).open(root.join("f")).unwrap();
    let dir = File::open(&root).unwrap();
    assert_eq!(fs::read(root.join("f")).unwrap(), b"text");
    channel.commit(0).unwrap();
    let mut byte = [0];
    assert_eq!(errno(file.read_at(&mut byte, 0)), libc::ESTALE);
    assert_eq!(errno(file.write_at(b"x", 0)), libc::ESTALE);
    assert_eq!(errno(file.metadata()), libc::ESTALE);
    // SAFETY: a valid descriptor and a C string.
    let found = unsafe { libc::faccessat(dir.as_raw_fd(), c"other".as_ptr(), libc::F_OK, 0) };
    assert_eq!((found, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ESTALE)));
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"text");
}

fn stores_through_mappings_are_committed(mount: Mounted) {
    fs::write(mount.at("f"), vec![b'a'; 8192]).unwrap();
    let channel = Channel::open(&mount.path()).unwrap();
    let (_, root) = channel.begin(0).unwrap();
    let outside = Mapping::new(&mount.at("f"));
    let inside = Mapping::new(&root.join("f"));
    assert_eq!((outside.get(5000), inside.get(5000)), (b'a', b'a'));
    inside.set(5000, b'b');
    assert_eq!(outside.get(5000), b'a');
    channel.commit(0).unwrap();
    assert_eq!(outside.get(5000), b'b');
    assert_eq!(fs::read(mount.at("f")).unwrap()[5000], b'b');

    // The validation finds a store from outside, although the daemon has received no request for
    // it.
    let (_, root) = channel.begin(0).unwrap();
    fs::write(root.join("f"), "inside").unwrap();
    outside.set(1, b'c');
    assert_eq!(channel.commit(0).unwrap_err().reason, Reason::Conflict);
    assert_eq!(&fs::read(mount.at("f")).unwrap()[..2], b"ac");
}

/// Two pages of a file, mapped shared.
struct Mapping(*mut libc::c_void);

impl Mapping {
    const LEN: usize = 8192;

    fn new(path: &std::path::Path) -> Mapping {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a fresh mapping, which this struct owns.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Self::LEN, protection, libc::MAP_SHARED, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Mapping(at)
    }

    fn get(&self, at: usize) -> u8 {
        assert!(at < Self::LEN);
        // SAFETY: within the mapping.
        unsafe { self.0.cast::<u8>().add(at).read_volatile() }
    }

    fn set(&self, at: usize, byte: u8) {
        assert!(at < Self::LEN);
        // SAFETY: within the mapping.
        unsafe { self.0.cast::<u8>().add(at).write_volatile(byte) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and nothing refers to it.
        unsafe { libc::munmap(self.0, Self::LEN) };
    }
}

fn others_stay_out(mount: Mounted) {
    fs::write(mount.at("f"), "x").unwrap();
    common::set_mode(&mount.path(), 0o777);
    let channel = Channel::open(&mount.path()).unwrap();
    let (id, _) = channel.begin(0).unwrap();
    let script = format!("setpriv --reuid 99 --regid 99 --clear-groups ls .xact/tx/{id}/root 2>&1 || true");
    assert!(sh(&mount.path(), &script).contains("Permission denied"));
    // An unprivileged user begins one; Python stands for any language.
    let python = r#"
import os, fcntl, struct
ch = os.open(".xact", os.O_TMPFILE | os.O_RDWR, 0o600)
begin = bytearray(16)
fcntl.ioctl(ch, 0xc010ea01, begin)
id = struct.unpack("IIQ", begin)[2]
open(f".xact/tx/{id}/root/by-99", "w").write("hello")
assert not os.path.exists("by-99")
fcntl.ioctl(ch, 0xd118ea02, bytearray(24 + 4096 + 256))
print(open("by-99").read(), os.stat("by-99").st_uid)
"#;
    let script = format!("setpriv --reuid 99 --regid 99 --clear-groups python3 -c '{python}'");
    assert_eq!(sh(&mount.path(), &script), "hello 99\n");
}

fn the_hidden_folder_is_the_servers(mount: Mounted) {
    let said = sh(
        &mount.path(),
        "ls -A -I lost+found; ls -A .xact .xact/tx; stat -c '%a %F' .xact .xact/tx
         for c in 'mkdir .xact' 'rmdir .xact' 'mv .xact y' 'touch .xact/x' 'mkdir .xact/tx/1' 'rm -r .xact'; do
           $c 2>/dev/null && echo \"$c worked\"; done; touch f; mv f .xact 2>/dev/null && echo moved; ls -I lost+found",
    );
    assert_eq!(said, ".xact:\n\n.xact/tx:\n733 directory\n711 directory\nf\n");
    let channel = Channel::open(&mount.path()).unwrap();
    let (_, root) = channel.begin(0).unwrap();
    assert!(!root.join(".xact").exists());
    assert_eq!(errno(fs::create_dir(root.join(".xact"))), libc::EPERM);
    // Nothing passes between views.
    assert_eq!(errno(fs::rename(root.join("f"), mount.at("g"))), libc::EXDEV);
    assert_eq!(errno(fs::hard_link(mount.at("f"), root.join("g"))), libc::EXDEV);
    fs::copy(mount.at("f"), root.join("g")).unwrap();
    assert_eq!(client::version(&mount.path()).unwrap(), xact_control::abi::ABI_VERSION);
    assert_eq!(errno(client::version(std::path::Path::new("/tmp"))), libc::ENOTTY);
}

fn many_at_once(mount: Mounted) {
    std::thread::scope(|scope| {
        for t in 0..32 {
            let mount = &mount;
            scope.spawn(move || {
                let channel = Channel::open(&mount.path()).unwrap();
                let (_, root) = channel.begin(0).unwrap();
                fs::write(root.join(format!("t{t}")), "x").unwrap();
                // Different names in one folder do not conflict.
                channel.commit(0).unwrap();
            });
        }
    });
    assert_eq!(sh(&mount.path(), "ls -A -I lost+found | wc -l"), "32\n");
}

/// Counts the refused commits of eight threads, by the kind of their writes.
#[test]
fn rates_of_conflicts() {
    const THREADS: u64 = 8;
    const EACH: u64 = 40;
    let mount = Mounted::on_a_volume();
    fs::write(mount.at("pages"), vec![0; THREADS as usize * 4096]).unwrap();
    let page = |root: &std::path::Path, page: u64, n: u64| {
        let file = File::options().write(true).open(root.join("pages")).unwrap();
        file.write_all_at(&[n as u8 + 1; 4096], page * 4096)
    };
    let refused = |what: &str, work: &(dyn Fn(&std::path::Path, u64, u64) -> std::io::Result<()> + Sync)| {
        let refused = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for t in 0..THREADS {
                let (mount, refused) = (&mount, &refused);
                scope.spawn(move || {
                    let channel = Channel::open(&mount.path()).unwrap();
                    for n in 0..EACH {
                        let (_, root) = channel.begin(0).unwrap();
                        // A write that collides fails at once, and then the commit.
                        let written = work(&root, t, n).err().and_then(|e| e.raw_os_error());
                        assert!(written.is_none_or(|number| number == libc::EAGAIN), "{written:?}");
                        if let Err(e) = channel.commit(0) {
                            assert_eq!(e.reason, Reason::Conflict, "{e:?}");
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let refused = refused.into_inner();
        println!("{what}: {refused} of {} commits refused", THREADS * EACH);
        refused
    };
    assert_eq!(
        refused("different names in one folder", &|root, t, n| fs::write(
            root.join(format!("n{t}.{n}")),
            "x"
        )),
        0
    );
    assert_eq!(refused("different pages of one file", &|root, t, n| page(root, t, n)), 0);
    let same = refused("the same page", &|root, _, n| page(root, 0, n));
    assert!(same < THREADS * EACH, "of those that collide one commits");
}

#[test]
fn a_session_that_ends_aborts_what_is_open() {
    let mut mount = Mounted::in_memory();
    let channel = Channel::open(&mount.path()).unwrap();
    let (_, root) = channel.begin(0).unwrap();
    fs::write(root.join("f"), "x").unwrap();
    assert!(mount.volume().tx_space_use().inodes > 0, "an inode is reserved for it");
    mount.unmounter().unmount().unwrap();
    drop(channel);
    mount.wait();
    assert_eq!(mount.volume().tx_space_use().inodes, 0);
}
