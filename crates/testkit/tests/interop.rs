//! Volumes that go from mke2fs to the kernel to xact and back to the kernel: the same tree each
//! time, in contents, attributes, times and links, and no remark from e2fsck.

use std::ffi::CString;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use xact::{Caller, FileDevice, Ino, OpenMode, PathExt, RenameHow, SetAttr, Volume, VolumeOptions};
use xact_fs::{Allocate, WriteHow, XattrHow};
use xact_testkit::rng::Rng;
use xact_testkit::tools::{KernelMount, e2fsck, mke2fs, scratch};
use xact_testkit::tree::Tree;

/// mke2fs's options and size.
const FORMATS: &[(&str, &[&str], &str)] = &[
    ("defaults", &[], "64M"),
    ("debian-12", &["-O", "^metadata_csum_seed,^orphan_file"], "64M"),
    ("newest", &["-O", "metadata_csum_seed,orphan_file"], "64M"),
    ("1k", &["-b", "1024"], "64M"),
    ("2k", &["-b", "2048"], "64M"),
    ("4k", &["-b", "4096"], "64M"),
    ("no-checksums", &["-b", "1024", "-O", "^metadata_csum"], "64M"),
    ("no-64bit", &["-O", "^64bit,^metadata_csum"], "64M"),
    ("no-flex", &["-b", "1024", "-O", "^flex_bg"], "64M"),
    ("no-journal", &["-O", "^has_journal"], "64M"),
    ("small-inodes", &["-I", "128"], "64M"),
    ("128M", &[], "128M"),
    ("many-inodes", &["-i", "2048", "-g", "8192"], "64M"),
];

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).take(len).collect()
}

fn mknod(path: &Path, mode: u32, device: u64) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: mknod reads a string that outlives the call.
    assert_eq!(unsafe { libc::mknod(path.as_ptr(), mode, device) }, 0, "{}", std::io::Error::last_os_error());
}

/// Something of everything.
fn populate(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::write(at("empty"), b"").unwrap();
    fs::write(at("small"), b"a few bytes").unwrap();
    fs::write(at("large"), pattern(1, 3_000_000)).unwrap();
    let sparse = File::create(at("sparse")).unwrap();
    for n in 0..40u64 {
        sparse.write_all_at(&pattern(n, 5000), n * 100_000 + n * 333).unwrap();
    }
    sparse.set_len(10_000_000).unwrap();
    let reserved = File::create(at("reserved")).unwrap();
    reserved.write_all_at(b"written", 50_000).unwrap();
    // SAFETY: fallocate takes a descriptor that is open and no memory.
    assert_eq!(unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&reserved), 0, 0, 200_000) }, 0);
    fs::create_dir(at("dir")).unwrap();
    fs::create_dir_all(at("dir/a/b/c/d")).unwrap();
    fs::hard_link(at("small"), at("dir/small-too")).unwrap();
    symlink("small", at("short-link")).unwrap();
    symlink("x/".repeat(200), at("dir/long-link")).unwrap();
    fs::create_dir(at("many")).unwrap();
    for n in 0..1200 {
        let path = at("many").join(format!("a-name-that-is-not-short-at-all-{n}"));
        fs::write(&path, format!("{n}")).unwrap();
        if n % 5 == 0 {
            fs::remove_file(&path).unwrap();
        }
    }
    mknod(&at("fifo"), libc::S_IFIFO | 0o640, 0);
    mknod(&at("char"), libc::S_IFCHR | 0o600, libc::makedev(5, 3));
    mknod(&at("block"), libc::S_IFBLK | 0o600, libc::makedev(300, 70_000));
    mknod(&at("socket"), libc::S_IFSOCK | 0o666, 0);
    fs::set_permissions(at("small"), Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(at("dir"), Permissions::from_mode(0o3777)).unwrap();
    chown(at("large"), Some(1234), Some(70_000)).unwrap();
    xattr::set(at("small"), "user.short", b"value").unwrap();
    xattr::set(at("small"), "user.longer", &pattern(7, 400)).unwrap();
    xattr::set(at("dir"), "trusted.of-a-folder", b"t").unwrap();
    xattr::set(at("large"), "security.test", b"").unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    sparse.set_times(FileTimes::new().set_modified(old).set_accessed(old)).unwrap();
}

fn open(path: &Path) -> Arc<Volume> {
    let device = FileDevice::open(path, OpenMode::ReadWrite).unwrap();
    Volume::open(Arc::new(device), &VolumeOptions::default()).unwrap()
}

/// Closes the image too.
fn close(volume: Arc<Volume>) {
    volume.close().unwrap();
}

/// Changes something of everything; `place` is the live volume or a transaction.
fn change(place: &impl PathExt, round: u64) {
    let view = place.view();
    let root = &Caller::ROOT;
    let ino = |path: &str| place.symlink_metadata(path).unwrap().ino;
    let dir = view.make_dir(root, Ino::ROOT, format!("of-xact-{round}").as_bytes(), 0o750).unwrap().ino;
    // The journal, which is small here, limits a transaction.
    let files = if round == 0 { 300 } else { 40 };
    for n in 0..files {
        let name = format!("another-name-of-some-length-{n}");
        let file = view.make_node(root, dir, name.as_bytes(), 0o100_644, 0).unwrap().ino;
        view.write(file, 0, &pattern(n, n as usize * 40), WriteHow::default()).unwrap();
    }
    for n in (0..files).step_by(3) {
        view.unlink(root, dir, format!("another-name-of-some-length-{n}").as_bytes()).unwrap();
    }
    view.make_symlink(root, dir, b"link", &b"y/".repeat(150)).unwrap();
    view.make_node(root, dir, b"device", 0o020_600, libc::makedev(400, 5)).unwrap();
    view.link(root, ino("/large"), dir, b"large-too").unwrap();
    let many = ino("/many");
    for n in 600 * round..600 * round + files.min(250) {
        if n % 5 != 0 {
            view.unlink(root, many, format!("a-name-that-is-not-short-at-all-{n}").as_bytes()).unwrap();
        }
    }
    let from = format!("a-name-that-is-not-short-at-all-{}", 600 * round + 301);
    view.rename(root, (many, from.as_bytes()), (dir, b"moved"), RenameHow::Replace).unwrap();
    let sparse = ino("/sparse");
    view.write(sparse, 777_777, &pattern(99 + round, 60_000), WriteHow::default()).unwrap();
    view.allocate(&Caller::ROOT, sparse, 2_000_000, 555_555, Allocate::PunchHole).unwrap();
    let size =
        SetAttr { size: Some(8_000_001 - round), perm: Some(0o640), uid: Some(77), ..SetAttr::default() };
    view.set_attr(root, sparse, &size).unwrap();
    view.allocate(
        &Caller::ROOT,
        ino("/reserved"),
        100_000,
        300_000,
        Allocate::Reserve { keep_size: round == 1 },
    )
    .unwrap();
    let small = ino("/small");
    view.set_xattr(root, small, b"user.of-xact", &pattern(5, 300), XattrHow::Set).unwrap();
    if round == 0 {
        view.remove_xattr(root, small, b"user.short").unwrap();
    }
}

#[track_caller]
fn same(ours: &Tree, theirs: &Tree, what: &str) {
    assert!(ours == theirs, "{what}: {}", ours.difference(theirs));
}

fn kernel_tree(image: &Path) -> Tree {
    let mount = KernelMount::new(image, "noatime").unwrap();
    let tree = Tree::of_path(mount.path()).unwrap();
    mount.unmount();
    tree
}

fn there_and_back(name: &str, options: &[&str], size: &str) {
    let dir = scratch();
    let image = dir.path().join("volume");
    mke2fs(&image, options, size);
    let mount = KernelMount::new(&image, "noatime").unwrap();
    populate(mount.path());
    mount.unmount();
    let theirs = kernel_tree(&image);
    e2fsck(&image).unwrap();

    let volume = open(&image);
    let ours = Tree::of_view(&*volume.base()).unwrap();
    same(&ours, &theirs, &format!("{name}: what the kernel made, read by xact"));
    change(&*volume, 0);
    let transaction = volume.begin(Default::default());
    change(&transaction, 1);
    transaction.commit().unwrap();
    let ours = Tree::of_view(&*volume.base()).unwrap();
    close(volume);
    e2fsck(&image).unwrap_or_else(|e| panic!("{name}, after xact: {e}"));
    same(&ours, &kernel_tree(&image), &format!("{name}: what xact made, read by the kernel"));

    let mount = KernelMount::new(&image, "noatime").unwrap();
    fs::remove_dir_all(mount.path().join("of-xact-0")).unwrap();
    fs::write(mount.path().join("large"), pattern(8, 500_000)).unwrap();
    mount.unmount();
    e2fsck(&image).unwrap_or_else(|e| panic!("{name}, after the kernel: {e}"));
    let volume = open(&image);
    let ours = Tree::of_view(&*volume.base()).unwrap();
    close(volume);
    same(&ours, &kernel_tree(&image), &format!("{name}: and back"));
}

macro_rules! formats {
    ($($test:ident $index:literal $name:literal)*) => {
        $(#[test]
        fn $test() {
            let (name, options, size) = FORMATS[$index];
            assert_eq!(name, $name);
            there_and_back(name, options, size);
        })*
    };
}

formats! {
    defaults 0 "defaults"
    debian_12 1 "debian-12"
    newest 2 "newest"
    blocks_of_1k 3 "1k"
    blocks_of_2k 4 "2k"
    blocks_of_4k 5 "4k"
    no_checksums 6 "no-checksums"
    no_64bit 7 "no-64bit"
    no_flex_bg 8 "no-flex"
    no_journal 9 "no-journal"
    small_inodes 10 "small-inodes"
    size_128m 11 "128M"
    many_inodes 12 "many-inodes"
}

/// The image of a volume that the kernel has mounted is as a crash would leave it.
#[test]
fn journals_that_the_kernel_left() {
    for (options, mount_options) in [
        (&["-b", "4096"][..], "noatime"),
        (&["-b", "1024"][..], "noatime"),
        (&["-b", "1024"][..], "noatime,data=journal"),
        (&["-b", "1024", "-O", "metadata_csum_seed,orphan_file"][..], "noatime"),
    ] {
        let dir = scratch();
        let image = dir.path().join("volume");
        mke2fs(&image, options, "64M");
        let mount = KernelMount::new(&image, mount_options).unwrap();
        populate(mount.path());
        // Deleted and open: an orphan for the recovery to free.
        let held = File::create(mount.path().join("held")).unwrap();
        held.write_all_at(&pattern(3, 100_000), 0).unwrap();
        fs::remove_file(mount.path().join("held")).unwrap();
        // syncfs(2) flushes the file system; the log stays unchanged until the unmount. SAFETY:
        // syncfs takes a descriptor that is open.
        assert_eq!(unsafe { libc::syncfs(std::os::fd::AsRawFd::as_raw_fd(&held)) }, 0);
        let (for_us, for_them) = (dir.path().join("ours"), dir.path().join("theirs"));
        fs::copy(&image, &for_us).unwrap();
        fs::copy(&image, &for_them).unwrap();
        drop(held);
        mount.unmount();
        let volume = open(&for_us);
        let ours = Tree::of_view(&*volume.base()).unwrap();
        close(volume);
        e2fsck(&for_us).unwrap();
        same(&ours, &kernel_tree(&for_them), &format!("{options:?} {mount_options}"));
        assert!(ours.entries.len() > 900, "the log held the tree");
    }
}
