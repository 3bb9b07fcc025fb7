//! Large directories through the whole stack are valid for e2fsck and the kernel, and a full index
//! refuses names without other effects.

mod common;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use common::Image;
use common::mount::Mount;
use xact_fs::{Caller, LiveFs, RenameHow, View, VolumeOptions};
use xact_types::{Error, Ino};

const ROOT: Caller = Caller::ROOT;

fn open(image: &Image) -> Arc<LiveFs> {
    xact_fs::open(image.device(), &VolumeOptions::default()).unwrap()
}

/// The names of a listing in portions, without `.` and `..`.
fn list(fs: &LiveFs, dir: Ino) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    let (mut cookie, mut count) = (0, 0);
    loop {
        let mut portion = 0;
        fs.read_dir(dir, cookie, &mut |item| {
            if portion == 100 {
                return false;
            }
            portion += 1;
            cookie = item.next_cookie;
            names.insert(item.name.to_vec());
            true
        })
        .unwrap();
        count += portion;
        if portion == 0 {
            break;
        }
    }
    assert_eq!(names.len(), count, "each name once");
    assert!(names.remove(&b"."[..]) && names.remove(&b".."[..]));
    names
}

#[test]
fn fifty_thousand_files_are_listed_once_here_and_by_the_kernel() {
    for block_size in ["1024", "4096"] {
        let image = Image::mke2fs(256 << 20, &["-b", block_size, "-N", "60000"]);
        let fs = open(&image);
        let dir = fs.make_dir(&ROOT, Ino::ROOT, b"large", 0o755).unwrap().ino;
        let name = |i: u32| format!("datei-für-den-großen-ordner-{i}").into_bytes();
        for i in 0..50_000 {
            fs.make_node(&ROOT, dir, &name(i), 0o100644, 0).unwrap();
        }
        for i in (0..50_000).step_by(5) {
            fs.unlink(&ROOT, dir, &name(i)).unwrap();
        }
        let expected: BTreeSet<_> = (0..50_000).filter(|i| i % 5 != 0).map(name).collect();
        assert!(list(&fs, dir) == expected);
        fs.close().unwrap();
        drop(fs);
        image.assert_clean();

        let mount = Mount::new(&image);
        let listed: BTreeSet<_> = std::fs::read_dir(mount.path("large"))
            .unwrap()
            .map(|item| item.unwrap().file_name().into_vec())
            .collect();
        assert!(listed == expected, "the kernel's listing");
        for name in &expected {
            let path = mount.path("large").join(String::from_utf8(name.clone()).unwrap());
            assert!(path.metadata().unwrap().ino() > 10);
        }
        mount.unmount();
    }
}

/// An index that cannot grow refuses names before any change, so the volume stays usable.
#[test]
fn a_full_index_refuses_names_without_poisoning_the_volume() {
    let image = Image::mke2fs(64 << 20, &["-b", "1024"]);
    let fs = open(&image);
    let dir = fs.make_dir(&ROOT, Ino::ROOT, b"full", 0o755).unwrap().ino;
    let file = fs.make_node(&ROOT, Ino::ROOT, b"file", 0o100644, 0).unwrap().ino;
    let tail = "x".repeat(245);
    let name = |i: u32| format!("{i:010}{tail}").into_bytes();
    let full = (0..).find(|&i| match fs.link(&ROOT, file, dir, &name(i)) {
        Ok(_) => false,
        Err(Error::DoesNotFit(_)) => true,
        Err(error) => panic!("{error}"),
    });
    let full = full.unwrap();
    assert!(full > 10_000, "{full} names");
    let refused =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::DoesNotFit(_))), "{result:?}");
    refused(fs.make_node(&ROOT, dir, &name(full), 0o100644, 0).map(drop));
    refused(fs.make_dir(&ROOT, dir, &name(full), 0o755).map(drop));
    refused(fs.make_symlink(&ROOT, dir, &name(full), b"target").map(drop));
    refused(fs.rename(&ROOT, (Ino::ROOT, b"file"), (dir, &name(full)), RenameHow::Replace));
    assert!(list(&fs, Ino::ROOT).contains(&b"file"[..]));

    // It still accepts names that fit, and removes names.
    fs.unlink(&ROOT, dir, &name(0)).unwrap();
    fs.link(&ROOT, file, dir, &name(0)).unwrap();
    fs.make_node(&ROOT, Ino::ROOT, b"elsewhere", 0o100644, 0).unwrap();
    assert_eq!(list(&fs, dir).len(), full as usize);
    fs.close().unwrap();
    drop(fs);
    image.assert_clean();
}
