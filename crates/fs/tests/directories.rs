//! Large directories through the whole stack, judged by e2fsck and the kernel.

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

/// Names as a listing in portions gives them, without `.` and `..`.
fn list(base: &LiveFs, dir: Ino) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    let (mut cookie, mut count) = (0, 0);
    loop {
        let mut portion = 0;
        base.read_dir(dir, cookie, &mut |item| {
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
fn fifty_thousand_files() {
    for block_size in ["1024", "4096"] {
        let image = Image::mke2fs(256 << 20, &["-b", block_size, "-N", "60000"]);
        let base = open(&image);
        let dir = base.make_dir(&ROOT, Ino::ROOT, b"large", 0o755).unwrap().ino;
        let name = |i: u32| format!("datei-für-den-großen-ordner-{i}").into_bytes();
        for i in 0..50_000 {
            base.make_node(&ROOT, dir, &name(i), 0o100644, 0).unwrap();
        }
        for i in (0..50_000).step_by(5) {
            base.unlink(&ROOT, dir, &name(i)).unwrap();
        }
        let expected: BTreeSet<_> = (0..50_000).filter(|i| i % 5 != 0).map(name).collect();
        assert!(list(&base, dir) == expected);
        base.close().unwrap();
        drop(base);
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

/// An index that can grow no more refuses names before anything is done, so that the volume
/// stays in use.
#[test]
fn a_full_index_refuses_names_and_no_more() {
    let image = Image::mke2fs(64 << 20, &["-b", "1024"]);
    let base = open(&image);
    let dir = base.make_dir(&ROOT, Ino::ROOT, b"full", 0o755).unwrap().ino;
    let file = base.make_node(&ROOT, Ino::ROOT, b"file", 0o100644, 0).unwrap().ino;
    let tail = "x".repeat(245);
    let name = |i: u32| format!("{i:010}{tail}").into_bytes();
    let full = (0..).find(|&i| match base.link(&ROOT, file, dir, &name(i)) {
        Ok(_) => false,
        Err(Error::DoesNotFit(_)) => true,
        Err(error) => panic!("{error}"),
    });
    let full = full.unwrap();
    assert!(full > 10_000, "{full} names");
    let refused =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::DoesNotFit(_))), "{result:?}");
    refused(base.make_node(&ROOT, dir, &name(full), 0o100644, 0).map(drop));
    refused(base.make_dir(&ROOT, dir, &name(full), 0o755).map(drop));
    refused(base.make_symlink(&ROOT, dir, &name(full), b"target").map(drop));
    refused(base.rename(&ROOT, (Ino::ROOT, b"file"), (dir, &name(full)), RenameHow::Replace));
    assert!(list(&base, Ino::ROOT).contains(&b"file"[..]));

    // It takes names where there is room, and gives names back.
    base.unlink(&ROOT, dir, &name(0)).unwrap();
    base.link(&ROOT, file, dir, &name(0)).unwrap();
    base.make_node(&ROOT, Ino::ROOT, b"elsewhere", 0o100644, 0).unwrap();
    assert_eq!(list(&base, dir).len(), full as usize);
    base.close().unwrap();
    drop(base);
    image.assert_clean();
}
