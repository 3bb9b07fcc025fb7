//! Snapshots of chosen files and folders: their contents, their space, and the reports of the
//! tools.

use std::sync::Arc;

use xact::{BlockDevice, Caller, Error, Ino, PathExt, Volume, What};
use xact_fs::{SetAttr, TimeChange, WriteHow, XattrHow};
use xact_testkit::device::SimDevice;
use xact_testkit::files::quiet_options;
use xact_testkit::generations::{export, give};
use xact_testkit::image::Image;
use xact_testkit::tools::{ImageFile, KernelMount, e2fsck, formatted, must_run};
use xact_testkit::tree::Tree;
use xact_types::Timestamp;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn paths(paths: &[&str]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| path.as_bytes().to_vec()).collect()
}

fn volume(options: &[&str], size: &str, pool: u64) -> (Arc<SimDevice>, Arc<Volume>) {
    opened(&formatted(options, size), pool)
}

fn opened(plain: &Image, pool: u64) -> (Arc<SimDevice>, Arc<Volume>) {
    let device = SimDevice::new(give(plain, pool));
    let volume = Volume::open(device.clone(), &quiet_options()).unwrap();
    (device, volume)
}

fn ino(volume: &Volume, path: &str) -> Ino {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(Ino::ROOT, |dir, name| volume.base().lookup(dir, name.as_bytes()).unwrap().ino)
}

/// Overwrites a file, in place if the volume does so.
fn overwrite(volume: &Volume, path: &str, contents: &[u8]) {
    volume.base().write(ino(volume, path), 0, contents, WriteHow::default()).unwrap();
}

/// The snapshot as an ext4 image: e2fsck accepts it, and the kernel sees this tree.
fn exported(image: &Image, name: &str, tree: &Tree) {
    let out = SimDevice::new(export(image, Some(name)).unwrap());
    // The first opening releases deleted files that were open.
    let volume = Volume::open(out.clone(), &quiet_options()).unwrap();
    let ours = Tree::of_view(&*volume.base()).unwrap();
    assert!(ours == *tree, "{}", tree.difference(&ours));
    volume.close().unwrap();
    let mut file = ImageFile::default();
    file.put(&out.image()).unwrap();
    e2fsck(file.path()).unwrap();
    let mount = KernelMount::new(file.path(), "ro,noload").unwrap();
    let theirs = Tree::of_path(mount.path()).unwrap();
    mount.unmount();
    assert!(theirs == *tree, "{}", tree.difference(&theirs));
}

fn sound(device: Arc<dyn BlockDevice>) {
    let report = xact_check::check(device, &mut |_, _| ()).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// Two of 100 files are kept: these two unchanged, and space for them alone.
#[test]
fn only_the_chosen_are_held() {
    const FILES: u64 = 100;
    const LEN: usize = 64 << 10;
    for block_size in ["1024", "4096"] {
        let (device, volume) = volume(&["-b", block_size, "-O", "^has_journal"], "32M", 16 * MIB);
        for n in 0..FILES {
            volume.create_dir_all(format!("/d{}", n % 4)).unwrap();
            volume.write(format!("/d{}/{n}", n % 4), vec![n as u8; LEN]).unwrap();
        }
        volume.sync().unwrap();
        let before = Tree::of_view(&*volume.base()).unwrap();
        let chosen = ["/d1/41", "/d2/78"];
        volume.create_snapshot_of("two", &paths(&chosen)).unwrap();
        let own = || volume.snapshots().unwrap()[0].own_bytes;
        let fresh = own();
        assert!(fresh < 128 * KIB, "{block_size}: metadata alone: {fresh}");
        for n in 0..FILES {
            overwrite(&volume, &format!("/d{}/{n}", n % 4), &vec![200; LEN]);
        }
        volume.sync().unwrap();
        let two = 2 * LEN as u64;
        assert!((two..two + fresh + 64 * KIB).contains(&own()), "{block_size}: {} and {fresh}", own());
        let pool = volume.pool_use().unwrap().unwrap();
        assert!(pool.for_snapshots_bytes() < two + fresh + 64 * KIB, "{pool:?}");
        for n in 0..FILES {
            volume.remove_file(format!("/d{}/{n}", n % 4)).unwrap();
        }
        volume.sync().unwrap();
        // Another file takes the freed blocks.
        volume.write("/filler", vec![7; 12 * MIB as usize]).unwrap();
        volume.sync().unwrap();
        assert!(own() < two + fresh + 64 * KIB, "{block_size}: {}", own());
        let info = &volume.snapshots().unwrap()[0];
        assert_eq!(info.paths, paths(&["d1/41", "d2/78"]));
        let tree = before.cut_down(&chosen);
        assert_eq!(tree.entries.len(), 5, "the root, two folders, two files");
        let view = volume.open_snapshot("two").unwrap();
        let seen = Tree::of_view(&*view.view().unwrap()).unwrap();
        assert!(seen == tree, "{}", tree.difference(&seen));
        drop(view);
        volume.close().unwrap();
        exported(&device.image(), "two", &tree);
        sound(device.clone());
        let volume = Volume::open(device.clone(), &quiet_options()).unwrap();
        volume.delete_snapshot("two").unwrap();
        volume.sync().unwrap();
        let pool = volume.pool_use().unwrap().unwrap();
        assert_eq!((pool.snapshots_bytes, pool.displaced_bytes), (0, 0), "{pool:?}");
        volume.close().unwrap();
        sound(device);
    }
}

/// A volume with structures that Linux creates and xact does not: attribute blocks that inodes
/// share, and with the feature folders in their inodes.
fn made_by_linux(options: &[&str], size: &str) -> Image {
    if options.iter().any(|option| option.contains("quota")) {
        // Not every kernel mounts it for writing.
        return formatted(options, size);
    }
    let mut file = ImageFile::default();
    file.put(&formatted(options, size)).unwrap();
    let mount = KernelMount::new(file.path(), "").unwrap();
    let root = mount.path();
    std::fs::create_dir_all(root.join("shared/way/in")).unwrap();
    for name in ["shared/a", "shared/b", "shared/way/c", "shared/way/in/d"] {
        std::fs::write(root.join(name), "short").unwrap();
        let value = "w".repeat(900);
        let path = root.join(name);
        must_run("setfattr", &["-n", "user.shared", "-v", &value, path.to_str().unwrap()]);
    }
    mount.unmount();
    Image::from_file(&std::fs::File::open(file.path()).unwrap()).unwrap()
}

/// Everything that a volume can have, chosen and not.
fn fill(volume: &Volume) {
    let base = volume.base();
    let by = &Caller::ROOT;
    if base.lookup(Ino::ROOT, b"shared").is_err() {
        volume.create_dir_all("/shared/way/in").unwrap();
        volume.write("/shared/a", b"").unwrap();
    }
    for dir in ["/way/deep", "/way/whole/below", "/many", "/elsewhere"] {
        volume.create_dir_all(dir).unwrap();
    }
    for n in 0..600 {
        volume.write(format!("/many/a rather long name, so that there is an index {n}"), b"x").unwrap();
        volume.write(format!("/way/whole/another long name in a folder with an index {n}"), b"y").unwrap();
    }
    volume.write("/way/deep/linked", vec![1; 5000]).unwrap();
    base.link(by, ino(volume, "/way/deep/linked"), ino(volume, "/elsewhere"), b"outside").unwrap();
    base.link(by, ino(volume, "/way/deep/linked"), ino(volume, "/way/whole"), b"inside").unwrap();
    base.make_symlink(by, ino(volume, "/way/whole"), b"short", b"../deep").unwrap();
    base.make_symlink(by, ino(volume, "/way/whole"), b"long", &[b'x'; 200]).unwrap();
    base.make_node(by, ino(volume, "/way/whole"), b"pipe", 0o010644, 0).unwrap();
    base.make_node(by, ino(volume, "/way/whole"), b"null", 0o020666, 0x103).unwrap();
    volume.write("/way/whole/sparse", b"start").unwrap();
    let sparse = ino(volume, "/way/whole/sparse");
    for at in [900 * KIB, 3 * MIB, 3 * MIB + 64 * KIB, 5 * MIB, 6 * MIB, 7 * MIB + 512] {
        base.write(sparse, at, &[9; 3000], WriteHow::default()).unwrap();
    }
    let large = vec![b'v'; 700];
    for path in ["/way/whole/sparse", "/way/deep/linked", "/elsewhere", "/way", "/many"] {
        base.set_xattr(by, ino(volume, path), b"user.large", &large, XattrHow::Set).unwrap();
        base.set_xattr(by, ino(volume, path), b"user.small", b"s", XattrHow::Set).unwrap();
    }
    let time = TimeChange::To(Timestamp { secs: 1_000_000_000, nanos: 5 });
    let old = SetAttr { mtime: Some(time), uid: Some(1000), perm: Some(0o640), ..SetAttr::default() };
    base.set_attr(by, ino(volume, "/way/whole/below"), &old).unwrap();
    base.set_attr(by, ino(volume, "/way/deep/linked"), &old).unwrap();
    volume.sync().unwrap();
}

/// On volumes of all kinds: the kept files stay unchanged, whatever happens to the volume.
#[test]
fn every_kind_of_file_can_be_chosen() {
    const KINDS: [&[&str]; 9] = [
        &["-b", "1024", "-N", "4096"],
        &["-b", "4096", "-N", "4096"],
        &["-b", "1024", "-N", "4096", "-O", "metadata_csum_seed,orphan_file"],
        &["-b", "1024", "-N", "4096", "-O", "^metadata_csum,uninit_bg"],
        &["-b", "1024", "-N", "4096", "-O", "^flex_bg"],
        &["-b", "1024", "-N", "4096", "-O", "meta_bg,^resize_inode"],
        &["-b", "1024", "-N", "4096", "-I", "256", "-O", "inline_data"],
        &["-b", "1024", "-N", "4096", "-I", "256", "-O", "quota,project"],
        &["-b", "2048", "-N", "4096", "-I", "128", "-O", "^64bit,^has_journal"],
    ];
    const CHOICES: [&[&str]; 5] = [
        &["/way/whole"],
        &["/way/deep/linked", "/many/a rather long name, so that there is an index 333"],
        &["/elsewhere/outside", "/way/deep"],
        &["/way", "/many", "/elsewhere"],
        &["/shared/a", "/shared/way/in"],
    ];
    for kind in KINDS {
        let (device, volume) = opened(&made_by_linux(kind, "48M"), 16 * MIB);
        fill(&volume);
        // Deleted and open, and so in use without a name.
        volume.write("/way/deep/open", vec![6; 300 << 10]).unwrap();
        let open = ino(&volume, "/way/deep/open");
        volume.base().hold(open).unwrap();
        volume.remove_file("/way/deep/open").unwrap();
        volume.sync().unwrap();
        let before = Tree::of_view(&*volume.base()).unwrap();
        for (n, choice) in CHOICES.iter().enumerate() {
            volume.create_snapshot_of(&format!("s{n}"), &paths(choice)).unwrap();
        }
        overwrite(&volume, "/way/whole/sparse", &vec![3; 64 << 10]);
        overwrite(&volume, "/way/deep/linked", &vec![4; 5000]);
        for n in (0..600).step_by(2) {
            let path = format!("/many/a rather long name, so that there is an index {n}");
            volume.remove_file(path).unwrap();
        }
        volume.write("/filler", vec![5; 8 * MIB as usize]).unwrap();
        volume.sync().unwrap();
        volume.delete_snapshot("s2").unwrap();
        volume.base().release(open, 1);
        volume.close().unwrap();
        for n in [0, 1, 3, 4] {
            println!("{kind:?}: {:?}", CHOICES[n]);
            exported(&device.image(), &format!("s{n}"), &before.cut_down(CHOICES[n]));
        }
        sound(device);
    }
}

/// A volume of many groups costs little more than one of one group: groups without a chosen file
/// are empty.
#[test]
fn unchosen_files_cost_nothing() {
    let mut own = Vec::new();
    for size in ["64M", "2G"] {
        let (device, volume) = volume(&["-b", "1024", "-O", "^has_journal"], size, 64 * MIB);
        for n in 0..300 {
            volume.create_dir_all(format!("/{n}")).unwrap();
            volume.write(format!("/{n}/file"), vec![n as u8; 20 << 10]).unwrap();
        }
        volume.create_snapshot_of("one", &paths(&["/150/file"])).unwrap();
        own.push(volume.snapshots().unwrap()[0].own_bytes);
        let tree = Tree::of_view(&*volume.base()).unwrap().cut_down(&["/150/file"]);
        volume.close().unwrap();
        exported(&device.image(), "one", &tree);
    }
    // A descriptor of 64 bytes for each of 248 more groups, a bitmap for each sixteen of them, and
    // their nodes.
    assert!(own[1] < own[0] + 160 * KIB, "{own:?}");
}

#[test]
fn differences_are_listed_for_chosen_files_only() {
    let (_device, volume) = volume(&["-b", "1024", "-O", "^has_journal"], "48M", 8 * MIB);
    for dir in ["/a/in", "/b", "/c"] {
        volume.create_dir_all(dir).unwrap();
        for n in 0..20 {
            volume.write(format!("{dir}/{n}"), b"as it was").unwrap();
        }
    }
    volume.create_snapshot_of("part", &paths(&["/a/in", "/b/3", "/b/4", "/b/5"])).unwrap();
    volume.create_snapshot("whole").unwrap();
    let lines = |old: &str, new: Option<&str>| -> Vec<String> {
        let found = volume.diff_snapshots(old, new).unwrap();
        found.iter().map(|d| format!("{:?} {}", d.what, String::from_utf8_lossy(&d.path))).collect()
    };
    let none = Vec::<String>::new();
    assert_eq!(lines("part", None), none);
    assert_eq!(lines("part", Some("whole")), none);
    for path in ["/a/in/1", "/a/1", "/b/3", "/b/7", "/c/1"] {
        volume.write(path, b"modified").unwrap();
    }
    volume.write("/a/in/new", b"").unwrap();
    volume.write("/a/new", b"").unwrap();
    volume.remove_file("/b/4").unwrap();
    volume.remove_file("/b/9").unwrap();
    volume.rename("/a/in/5", "/a/in/renamed").unwrap();
    volume.rename("/a/in/6", "/c/moved out").unwrap();
    volume.create_dir_all("/a/in/folder").unwrap();
    let expected = [
        "Modified /a/in/1",
        "Deleted /a/in/6",
        "Added /a/in/folder",
        "Added /a/in/new",
        "Renamed /a/in/renamed",
        "Modified /b/3",
        "Deleted /b/4",
    ];
    assert_eq!(lines("part", None), expected);
    // Inodes that the part does not contain.
    for n in 0..2000 {
        volume.write(format!("/a/in/new{n}"), b"").unwrap();
    }
    assert_eq!(lines("part", None).len(), expected.len() + 2000);
    for n in 0..2000 {
        volume.remove_file(format!("/a/in/new{n}")).unwrap();
    }
    volume.remove_file("/b/5").unwrap();
    volume.write("/b/5", b"another of the name").unwrap();
    let expected = [&expected[..], &["Modified /b/5"]].concat();
    assert_eq!(lines("part", None), expected);
    volume.create_snapshot("later").unwrap();
    assert_eq!(lines("part", Some("later")), expected);
    volume.create_snapshot_of("other", &paths(&["/b", "/a/in/1"])).unwrap();
    assert_eq!(
        lines("part", Some("other")),
        ["Modified /a/in/1", "Modified /b/3", "Deleted /b/4", "Modified /b/5"]
    );
    let back = volume.diff_snapshots("other", Some("part")).unwrap();
    assert!(back.iter().any(|d| d.what == What::Added && d.path == b"/b/4"), "{back:?}");
}

#[test]
fn invalid_choices_are_refused_and_leave_nothing() {
    let (device, volume) = volume(&["-b", "1024", "-O", "^has_journal"], "24M", 4 * MIB);
    volume.create_dir_all("/a").unwrap();
    volume.write("/a/file", b"1").unwrap();
    let usage = |name: &str, of: &[&str]| {
        let made = volume.create_snapshot_of(name, &paths(of));
        assert!(matches!(made, Err(Error::Usage(_))), "{of:?}: {made:?}");
        made.unwrap_err().to_string()
    };
    for (of, says) in [
        (&["/a", "/none"][..], "/none does not exist"),
        (&["/a/file/x"], "no folder leads there"),
        (&["/"], "the root is the whole volume"),
        (&["/a/../a"], "no '..'"),
    ] {
        let why = usage("s", of);
        assert!(why.contains(says), "{of:?}: {why}");
        assert!(volume.snapshots().unwrap().is_empty(), "{of:?}");
    }
    volume.create_snapshot_of("s", &paths(&["/a/file"])).unwrap();
    assert!(usage("s", &["/a"]).contains("already"));
    assert!(usage("..", &["/a"]).contains("invalid snapshot name"));
    let long: Vec<String> = (0..40).map(|n| format!("/{}{n}", "x".repeat(240))).collect();
    long.iter().for_each(|path| volume.write(path, b"").unwrap());
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    assert!(usage("long", &long).contains("choose a folder"));
    assert_eq!(volume.snapshot_names().unwrap(), ["s"]);
    volume.close().unwrap();
    let engine = xact_consistency::open_generations(device.clone(), Default::default()).unwrap();
    let refused = engine.snapshots().unwrap().restore("s");
    assert!(matches!(&refused, Err(Error::Usage(why)) if why.contains("chosen paths only")), "{refused:?}");
    drop(engine);
    // Without checksums of groups, unused parts cannot be left out.
    let (_device, volume) = self::volume(&["-b", "1024", "-O", "^metadata_csum,^uninit_bg"], "24M", 4 * MIB);
    volume.write("/file", b"1").unwrap();
    let made = volume.create_snapshot_of("s", &paths(&["/file"]));
    assert!(matches!(made, Err(Error::Unsupported(_))), "{made:?}");
    assert!(volume.snapshots().unwrap().is_empty());
    sound(device);
}
