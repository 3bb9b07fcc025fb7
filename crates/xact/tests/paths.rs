//! File operations by path, on the volume and in transactions; open files.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use xact::mkfs::{MkfsOptions, mkfs, mkfs_generations};
use xact::{
    BlockDevice, Errno, Error, FileDevice, FileKind, MemoryDevice, OpenMode, OpenOptions, PathExt, Paths,
    Volume, VolumeOptions,
};

fn volume() -> Arc<Volume> {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    Volume::open(device, &VolumeOptions::default()).unwrap()
}

fn errno<T: std::fmt::Debug>(result: xact::Result<T>) -> Errno {
    result.unwrap_err().errno()
}

fn names(place: &impl PathExt, dir: &str) -> Vec<OsString> {
    let mut names: Vec<_> = place.read_dir(dir).unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

fn exercise_paths(place: &impl PathExt) {
    place.create_dir_all("/a/b/c").unwrap();
    place.create_dir_all("a/b/d").unwrap();
    assert_eq!(errno(place.create_dir("/a")), Errno::EEXIST);
    assert_eq!(errno(place.create_dir("/none/x")), Errno::ENOENT);
    place.write("/a/b/c/file", b"first, and longer").unwrap();
    place.write("/a/b/c/file", b"second").unwrap();
    place.symlink("a/b/../b/c", "/link").unwrap();
    assert_eq!(place.read_link("/link").unwrap().to_str(), Some("a/b/../b/c"));
    assert_eq!(place.read("/link/file").unwrap(), b"second");
    assert_eq!(place.read_to_string("/a/./b/../b/c/file").unwrap(), "second");
    place.symlink("/loop", "/loop").unwrap();
    assert_eq!(errno(place.read("/loop")), Errno::ELOOP);
    assert_eq!(errno(place.read("/a/b/c/file/x")), Errno::ENOTDIR);
    assert_eq!(errno(place.create_dir_all("/a/b/c/file/x")), Errno::ENOTDIR);
    assert_eq!(errno(place.read("/none")), Errno::ENOENT);
    assert!(place.exists("/link/file").unwrap() && !place.exists("/none/x").unwrap());
    place.rename("/link/file", "/a/moved").unwrap();
    assert_eq!(names(place, "/a"), ["b", "moved"]);

    assert_eq!(place.metadata("/link").unwrap().kind, FileKind::Directory);
    assert_eq!(place.symlink_metadata("/link").unwrap().kind, FileKind::Symlink);
    place.hard_link("/a/moved", "/a/second name").unwrap();
    // In this order: a new owner takes the set-user-ID bit away, as chown(2) does.
    place.set_owner("/a/moved", Some(7), None).unwrap();
    place.set_permissions("/a/moved", 0o4750).unwrap();
    let attr = place.metadata("/a/second name").unwrap();
    assert_eq!((attr.size, attr.nlink, attr.perm, attr.uid, attr.gid), (6, 2, 0o4750, 7, 0));
    place.set_xattr("/a/moved", "user.kind", "test").unwrap();
    assert_eq!(place.xattr("/a/second name", "user.kind").unwrap(), b"test");
    assert_eq!(place.list_xattrs("/a/moved").unwrap(), ["user.kind"]);
    place.remove_xattr("/a/moved", "user.kind").unwrap();
    assert_eq!(errno(place.xattr("/a/moved", "user.kind")), Errno::ENODATA);
    assert_eq!(place.copy("/a/moved", "/a/copy").unwrap(), 6);
    assert_eq!(place.metadata("/a/copy").unwrap().perm, 0o4750);

    place.remove_file("/a/moved").unwrap();
    place.remove_dir("/a/b/c").unwrap();
    assert_eq!(errno(place.remove_dir("/a")), Errno::ENOTEMPTY);
    assert_eq!(errno(place.remove_file("/a/b")), Errno::EISDIR);
    assert_eq!(errno(place.remove_dir_all("/link")), Errno::ENOTDIR);
    place.symlink("/", "/a/b/root").unwrap();
    place.create_dir_all("/gone/deep/deeper").unwrap();
    place.write("/gone/deep/file", "x").unwrap();
    place.symlink("/a", "/gone/to a").unwrap();
    place.remove_dir_all("/gone").unwrap();
    assert!(!place.exists("/gone").unwrap() && place.exists("/a/copy").unwrap());

    // More than one operation's worth.
    let large: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
    place.write("/large", &large).unwrap();
    assert!(place.read("/large").unwrap() == large);
    place.write("/text", [0xff]).unwrap();
    assert_eq!(errno(place.read_to_string("/text")), Errno(libc::EILSEQ));
}

fn exercise_files(place: &impl PathExt) {
    let mut file = place.create("/log").unwrap();
    writeln!(file, "one\ntwo").unwrap();
    assert_eq!(file.read(&mut [0; 4]).unwrap_err().raw_os_error(), None);
    assert_eq!(errno(file.read_at(&mut [0; 4], 0)), Errno::EBADF);
    drop(file);
    let mut lines = BufReader::new(place.open("/log").unwrap()).lines().map(io::Result::unwrap);
    assert_eq!(
        (lines.next().as_deref(), lines.next().as_deref(), lines.next()),
        (Some("one"), Some("two"), None)
    );

    let mut file = OpenOptions::new().read(true).write(true).open(place, "/log").unwrap();
    assert_eq!(file.seek(SeekFrom::End(-4)).unwrap(), 4);
    file.write_all(b"TWO").unwrap();
    assert_eq!(file.seek(SeekFrom::Current(-3)).unwrap(), 4);
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "TWO\n");
    assert!(file.seek(SeekFrom::Current(-100)).is_err());
    file.write_all_at(b"X", 0).unwrap();
    file.set_len(3).unwrap();
    file.set_permissions(0o600).unwrap();
    assert_eq!((file.metadata().unwrap().size, file.metadata().unwrap().perm), (3, 0o600));
    file.sync_data().unwrap();
    file.sync_all().unwrap();

    let mut first = OpenOptions::new().append(true).open(place, "/log").unwrap();
    let mut second = OpenOptions::new().append(true).open(place, "/log").unwrap();
    first.write_all(b"1").unwrap();
    second.write_all(b"2").unwrap();
    first.write_all(b"3").unwrap();
    assert_eq!(place.read("/log").unwrap(), b"Xne123");

    let new = OpenOptions::new().write(true).create_new(true).mode(0o640);
    assert_eq!(new.open(place, "/new").unwrap().metadata().unwrap().perm, 0o640);
    assert_eq!(errno(new.open(place, "/new").map(drop)), Errno::EEXIST);
    assert_eq!(errno(OpenOptions::new().open(place, "/new").map(drop)), Errno::EINVAL);
    assert_eq!(errno(OpenOptions::new().read(true).create(true).open(place, "/x").map(drop)), Errno::EINVAL);
    assert_eq!(errno(OpenOptions::new().write(true).open(place, "/").map(drop)), Errno::EISDIR);
    assert_eq!(errno(place.open("/none").map(drop)), Errno::ENOENT);

    // A deleted file exists as long as it is open.
    let mut open = OpenOptions::new().read(true).write(true).open(place, "/new").unwrap();
    place.remove_file("/new").unwrap();
    open.write_all(b"still here").unwrap();
    open.rewind().unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
}

#[test]
fn operations_by_path_work_on_the_volume_and_in_transactions() {
    let direct = volume();
    exercise_paths(&*direct);
    let other = volume();
    let transaction = other.begin(Default::default());
    exercise_paths(&transaction);
    transaction.commit().unwrap();
    assert!(other.exists("/a/b/d").unwrap());
    for volume in [direct, other] {
        volume.close().unwrap();
    }
}

#[test]
fn open_files_read_write_and_seek() {
    let direct = volume();
    exercise_files(&*direct);
    let other = volume();
    let mut transaction = other.begin(Default::default());
    exercise_files(&transaction);
    let savepoint = transaction.savepoint().unwrap();
    savepoint.write("/log", "undone").unwrap();
    drop(savepoint);
    transaction.commit().unwrap();
    assert_eq!(other.read("/log").unwrap(), b"Xne123");
    for volume in [direct, other] {
        volume.close().unwrap();
    }
}

#[test]
fn errors_of_streams_have_their_kind_and_their_cause() {
    let volume = volume();
    volume.write("/f", "text").unwrap();
    let mut file = volume.open("/f").unwrap();
    let error = file.write(b"x").unwrap_err();
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    assert!(matches!(cause, Some(Error::Posix(Errno::EBADF))), "{error:?}");
    let missing = io::Error::from(volume.read("/none").unwrap_err());
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    drop(file);
    volume.close().unwrap();
}

#[test]
fn paths_of_a_snapshot() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(32 << 20));
    mkfs_generations(&device, &MkfsOptions { zeroed: true, ..MkfsOptions::default() }, None).unwrap();
    let volume = Volume::open(device, &VolumeOptions::default()).unwrap();
    volume.write("/f", "then").unwrap();
    volume.create_snapshot("s").unwrap();
    volume.write("/f", "now").unwrap();
    let snapshot = volume.open_snapshot("s").unwrap();
    let then = Paths::of(snapshot.view().unwrap());
    assert_eq!(then.read("/f").unwrap(), b"then");
    assert!(matches!(then.write("/f", "changed"), Err(Error::ReadOnly)));
    drop((then, snapshot));
    volume.close().unwrap();
}

/// An open transaction does not keep the image from being opened again.
#[test]
fn a_closed_image_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    mkfs(&FileDevice::open(&path, OpenMode::ReadWrite).unwrap(), &MkfsOptions::default()).unwrap();
    let volume = Volume::open_path(&path, &VolumeOptions::default()).unwrap();
    let forgotten = volume.begin(Default::default());
    forgotten.write("/f", b"x").unwrap();
    assert!(Volume::open_path(&path, &VolumeOptions::default()).is_err());
    volume.close().unwrap();
    let again = Volume::open_path(&path, &VolumeOptions::default()).unwrap();
    assert!(forgotten.commit().is_err());
    assert!(!again.exists("/f").unwrap());
    again.close().unwrap();
}
