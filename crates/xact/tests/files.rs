//! Operations by path, on the base and in transactions.

use std::sync::Arc;

use xact::mkfs::{MkfsOptions, mkfs};
use xact::{
    Caller, Errno, Error, FileDevice, Files, Ino, MemoryDevice, OpenMode, TxOptions, View, Volume,
    VolumeOptions,
};

fn volume() -> Arc<Volume> {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    Volume::open(device, &VolumeOptions::default()).unwrap()
}

fn errno<T: std::fmt::Debug>(result: xact::Result<T>) -> Errno {
    result.unwrap_err().errno()
}

fn exercise(view: &dyn View) {
    view.create_dir_all("/a/b/c").unwrap();
    view.create_dir_all("a/b/d").unwrap();
    view.write_file("/a/b/c/file", b"first, and longer").unwrap();
    view.write_file("/a/b/c/file", b"second").unwrap();
    view.make_symlink(&Caller::ROOT, Ino::ROOT, b"link", b"a/b/../b/c").unwrap();
    assert_eq!(view.read_file("/link/file").unwrap(), b"second");
    assert_eq!(view.read_file("/a/./b/../b/c/file").unwrap(), b"second");
    view.make_symlink(&Caller::ROOT, Ino::ROOT, b"loop", b"/loop").unwrap();
    assert_eq!(errno(view.read_file("/loop")), Errno::ELOOP);
    assert_eq!(errno(view.read_file("/a/b/c/file/x")), Errno::ENOTDIR);
    assert_eq!(errno(view.create_dir_all("/a/b/c/file/x")), Errno::ENOTDIR);
    assert_eq!(errno(view.read_file("/none")), Errno::ENOENT);
    assert!(view.exists("/link/file").unwrap() && !view.exists("/none/x").unwrap());
    view.rename_path("/link/file", "/a/moved").unwrap();
    let mut names: Vec<_> = view.list_dir("/a").unwrap().into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(names, [b"b".to_vec(), b"moved".to_vec()]);
    view.remove_file("/a/moved").unwrap();
    view.remove_empty_dir("/a/b/c").unwrap();
    assert_eq!(errno(view.remove_empty_dir("/a")), Errno::ENOTEMPTY);
}

#[test]
fn paths_work_on_the_base_and_in_transactions() {
    let volume = volume();
    exercise(&*volume.base());
    let other = self::volume();
    let transaction = other.begin(Default::default());
    exercise(&*transaction);
    transaction.commit().unwrap();
    assert!(other.base().exists("/a/b/d").unwrap());
    for volume in [volume, other] {
        volume.close().unwrap();
    }
}

/// Files in one folder that others write beside are no conflict; the one that both write is, and
/// is named.
#[test]
fn a_conflict_names_the_path() {
    let volume = volume();
    let base = volume.base();
    base.create_dir_all("/mail/box").unwrap();
    base.write_file("/mail/box/index", b"0").unwrap();
    let [one, two, three] = [(); 3].map(|()| volume.begin(Default::default()));
    one.write_file("/mail/box/1", b"one").unwrap();
    two.write_file("/mail/box/2", b"two").unwrap();
    two.write_file("/mail/box/index", b"2").unwrap();
    let index = three.read_file("/mail/box/index").unwrap();
    three.write_file("/mail/box/3", &index).unwrap();
    one.commit().unwrap();
    two.commit().unwrap();
    match three.commit() {
        Err(Error::Conflict { path, .. }) => assert_eq!(path, "/mail/box/index"),
        other => panic!("{other:?}"),
    }
    assert!(!base.exists("/mail/box/3").unwrap());
    volume.close().unwrap();
}

/// A transaction that somebody has forgotten does not keep the image from being opened again.
#[test]
fn a_closed_image_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    mkfs(&FileDevice::open(&path, OpenMode::ReadWrite).unwrap(), &MkfsOptions::default()).unwrap();
    let volume = Volume::open_path(&path, &VolumeOptions::default()).unwrap();
    let forgotten = volume.begin(TxOptions::default());
    forgotten.write_file("/f", b"x").unwrap();
    assert!(Volume::open_path(&path, &VolumeOptions::default()).is_err());
    volume.close().unwrap();
    let again = Volume::open_path(&path, &VolumeOptions::default()).unwrap();
    assert!(forgotten.commit().is_err());
    assert!(!again.base().exists("/f").unwrap());
    again.close().unwrap();
}
