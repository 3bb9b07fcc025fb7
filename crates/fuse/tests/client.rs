//! The client of the control ioctls against a mount: the effect of each call, and each field of
//! its answer.

#[allow(dead_code, unused_macros)]
#[macro_use]
mod common;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use common::Mounted;
use xact_control::abi::{self, ChangeKind, Reason, TxStatus};
use xact_control::client::{self, Channel, SavepointHandle, WriteRequest};

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// A path with text in front of a NUL or of the end.
fn text(bytes: &[u8], len: u32) -> String {
    String::from_utf8(bytes[..len as usize].to_vec()).unwrap()
}

#[test]
fn changes_come_with_both_sides() {
    let mount = Mounted::in_memory();
    fs::write(mount.at("kept"), "before").unwrap();
    fs::write(mount.at("gone"), "x").unwrap();
    fs::write(mount.at("old name"), "y").unwrap();
    let numbers = ["kept", "gone", "old name"].map(|name| fs::metadata(mount.at(name)).unwrap().ino());
    let channel = Channel::open(&mount.path()).unwrap();
    let (id, root) = channel.begin(0).unwrap();
    fs::write(root.join("kept"), "afterwards").unwrap();
    fs::remove_file(root.join("gone")).unwrap();
    fs::rename(root.join("old name"), root.join("new name")).unwrap();
    fs::write(root.join("made"), "").unwrap();
    common::set_mode(&root.join("made"), 0o640);
    let changes = channel.diff(id).unwrap();
    let seen: Vec<_> = changes
        .iter()
        .map(|change| (change.kind, std::str::from_utf8(&change.path).unwrap(), change.from.as_deref()))
        .collect();
    assert_eq!(
        seen,
        [
            (ChangeKind::Deleted, "/gone", None),
            (ChangeKind::Modified, "/kept", None),
            (ChangeKind::Added, "/made", None),
            (ChangeKind::Renamed, "/new name", Some(&b"/old name"[..])),
        ]
    );
    let (gone, kept, made) = (&changes[0], &changes[1], &changes[2]);
    assert_eq!((gone.old.unwrap().ino, gone.new), (numbers[1], None));
    assert_eq!((kept.old.unwrap().size, kept.new.unwrap().size), (6, 10));
    assert_eq!((made.old, made.new.unwrap().mode), (None, 0o100_640));
    assert_eq!(changes[3].new.unwrap().ino, numbers[2]);
    assert_eq!(channel.read_side(id, numbers[0], false, 0).unwrap(), b"before");
    assert_eq!(channel.read_side(id, numbers[0], true, 0).unwrap(), b"afterwards");
    assert_eq!(channel.read_side(id, numbers[0], true, 5).unwrap(), b"wards");
    assert!(channel.read_side(id, numbers[0], true, 10).unwrap().is_empty());
    // File by file, a renamed file stays one change; a renamed folder would not.
    let by_file = channel.diff_by_file(id).unwrap();
    assert_eq!(
        by_file.iter().map(|change| &change.path).collect::<Vec<_>>(),
        changes.iter().map(|c| &c.path).collect::<Vec<_>>()
    );
    assert_eq!(errno(channel.diff(id + 1)), libc::ENOENT);
    channel.abort().unwrap();
    assert!(!root.exists());
}

#[test]
fn lists_longer_than_a_page_are_whole() {
    let mount = Mounted::in_memory();
    let channel = Channel::open(&mount.path()).unwrap();
    let (id, root) = channel.begin(0).unwrap();
    for n in 0..400 {
        fs::write(root.join(format!("{n:03} and a longer name")), "").unwrap();
    }
    let changes = channel.diff(id).unwrap();
    let paths: Vec<_> = changes.iter().map(|c| String::from_utf8(c.path.clone()).unwrap()).collect();
    assert_eq!(paths, (0..400).map(|n| format!("/{n:03} and a longer name")).collect::<Vec<_>>());
    fs::write(root.join("long"), vec![b'l'; abi::PAGE_BYTES + 5]).unwrap();
    let ino = channel.diff(id).unwrap().last().unwrap().new.unwrap().ino;
    assert_eq!(channel.read_side(id, ino, true, 0).unwrap().len(), abi::PAGE_BYTES);
    assert_eq!(channel.read_side(id, ino, true, abi::PAGE_BYTES as u64).unwrap(), b"lllll");
}

#[test]
fn kept_transactions_are_listed_and_attached() {
    let mount = Mounted::in_memory();
    let channel = Channel::open(&mount.path()).unwrap();
    assert!(channel.list().unwrap().is_empty());
    let (running, _) = channel.begin(0).unwrap();
    let other = Channel::open(&mount.path()).unwrap();
    let (id, root) = other.begin(0).unwrap();
    assert_eq!(other.root(id), root);
    fs::write(root.join("f"), "kept").unwrap();
    other.keep(1000, b"a label", 0).unwrap();
    let info = other.info(id, false).unwrap();
    assert_eq!((info.id, info.status, info.persistent), (id, TxStatus::LeftOpen, false));
    let infos = channel.list().unwrap();
    // SAFETY: geteuid has no arguments and cannot fail.
    let uid = unsafe { libc::geteuid() };
    assert_eq!(infos.iter().map(|info| info.id).collect::<Vec<_>>(), [running, id]);
    assert_eq!((infos[0].status, infos[1].status), (TxStatus::Running, TxStatus::LeftOpen));
    assert_eq!((&infos[0].label[..], &infos[1].label[..]), (&b""[..], &b"a label"[..]));
    assert_eq!((infos[0].left, infos[1].uid), (None, uid));
    let left = infos[1].left.unwrap();
    assert!(left > Duration::from_secs(900) && left <= Duration::from_secs(1000), "{left:?}");
    assert!(infos[0].age < Duration::from_secs(100));
    channel.abort().unwrap();
    assert_eq!(errno(channel.attach(id)), libc::EBUSY);
    drop(other);
    assert_eq!(errno(channel.attach(id + 100)), libc::ENOENT);
    // The daemon notices the close soon.
    while let Err(error) = channel.attach(id) {
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(channel.active().unwrap(), Some(id));
    channel.commit(0).unwrap();
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"kept");
    assert_eq!(channel.info(id, false).unwrap().status, TxStatus::Committed);
    assert_eq!(errno(channel.info(id, true)), libc::ENOENT);
    // A label is cut at its longest.
    let (id, _) = channel.begin(0).unwrap();
    channel.keep(0, &[b'x'; 300], abi::KEEP_PERSISTENT).unwrap();
    let info = channel.info(id - 1, true).unwrap();
    assert_eq!((info.id, info.label.len(), info.left, info.persistent), (id, 256, None, true));
    channel.abort().unwrap();
}

#[test]
fn chosen_changes_commit_or_go() {
    let mount = Mounted::in_memory();
    let channel = Channel::open(&mount.path()).unwrap();
    let (id, root) = channel.begin(0).unwrap();
    for name in ["a", "b", "c", "theirs"] {
        fs::write(root.join(name), name).unwrap();
    }
    // Nothing is chosen yet.
    assert!(channel.commit_selected(0).unwrap().is_none());
    assert!(!mount.at("a").exists());
    assert!(channel.select(&[b'x'; abi::PATH_MAX + 1]).is_err());
    channel.select(b"a").unwrap();
    assert!(channel.commit_selected(0).unwrap().is_none());
    assert_eq!((fs::read(mount.at("a")).unwrap(), mount.at("b").exists()), (b"a".to_vec(), false));
    channel.select(b"b").unwrap();
    channel.drop_selected().unwrap();
    assert!(!root.join("b").exists() && root.join("c").exists());
    assert_eq!(channel.active().unwrap(), Some(id));
    // A conflict of the rest is reported with the commit of a part that has none.
    fs::write(mount.at("theirs"), "first").unwrap();
    channel.select(b"c").unwrap();
    let rest = channel.commit_selected(0).unwrap().unwrap();
    assert_eq!((rest.errno, rest.reason, rest.conflicting_tx), (0, Reason::None, None));
    assert_eq!(rest.path.as_deref(), Some(Path::new("/theirs")));
    let error = channel.commit(abi::COMMIT_RETAIN).unwrap_err();
    assert_eq!((error.errno, error.reason), (libc::EAGAIN, Reason::Conflict));
    assert_eq!(channel.active().unwrap(), Some(id));
    channel.abort().unwrap();
    assert!(!channel.is_doomed().unwrap());
    // A call that fails because of others dooms the transaction.
    let (_, root) = channel.begin(0).unwrap();
    fs::write(root.join("a"), "mine").unwrap();
    assert!(!channel.is_doomed().unwrap());
    fs::write(mount.at("a"), "yours").unwrap();
    assert!(!channel.is_doomed().unwrap());
    fs::write(root.join("a"), "mine again").unwrap_err();
    assert!(channel.is_doomed().unwrap());
    channel.abort().unwrap();
    // The transaction that came first is named.
    let first = Channel::open(&mount.path()).unwrap();
    let (first_id, root) = first.begin(0).unwrap();
    let (_, other) = channel.begin(0).unwrap();
    fs::write(other.join("d"), "2").unwrap();
    fs::write(root.join("d"), "1").unwrap();
    first.commit(0).unwrap();
    assert_eq!(channel.commit(0).unwrap_err().conflicting_tx, Some(first_id));
}

#[test]
fn savepoints_are_released_and_rolled_back() {
    let mount = Mounted::in_memory();
    let channel = Channel::open(&mount.path()).unwrap();
    assert_eq!(errno(channel.savepoint()), libc::ENOENT);
    let (_, root) = channel.begin(0).unwrap();
    let outer = channel.savepoint().unwrap();
    fs::write(root.join("outer"), "").unwrap();
    let folder = File::open(&root).unwrap();
    let inner = SavepointHandle::of(&folder).unwrap();
    assert_ne!(outer.number(), inner.number());
    fs::write(root.join("inner"), "").unwrap();
    SavepointHandle::with_number(&folder, inner.number()).unwrap().roll_back().unwrap();
    assert!(root.join("outer").exists() && !root.join("inner").exists());
    assert!(inner.release().is_err(), "it has ended");
    outer.release().unwrap();
    assert!(root.join("outer").exists());
    channel.commit(0).unwrap();
    assert!(mount.at("outer").exists());
}

#[test]
fn writes_of_files_are_one_batch() {
    let mount = Mounted::in_memory();
    for name in ["a", "b"] {
        fs::write(mount.at(name), "0123456789").unwrap();
    }
    let files = ["a", "b"].map(|name| File::options().read(true).write(true).open(mount.at(name)).unwrap());
    let channel = Channel::open(&mount.path()).unwrap();
    let key = channel.key().unwrap();
    assert_ne!(key, Channel::open(&mount.path()).unwrap().key().unwrap());
    let mut request = WriteRequest::new(key);
    assert!(request.is_empty());
    assert!(request.add_bytes(2, b"abc") && request.add_bytes(8, b"XYZ12345") && request.add_truncate(12));
    assert!(!request.is_empty());
    request.send(files[0].as_fd(), 0).unwrap();
    assert!(request.is_empty());
    assert_eq!(fs::read(mount.at("a")).unwrap(), b"0123456789");
    assert!(request.add_bytes(0, b"other"));
    request.send(files[1].as_fd(), abi::WRITE_COMMIT).unwrap();
    assert_eq!(fs::read(mount.at("a")).unwrap(), b"01abc567XYZ1");
    assert_eq!(fs::read(mount.at("b")).unwrap(), b"other56789");
    // The largest part fits, and nothing after it; a failed send leaves the request empty too.
    let mut request = WriteRequest::new(key + 1);
    assert!(!request.add_bytes(0, &vec![1; client::PART_MAX + 1]));
    assert!(request.is_empty());
    assert!(request.add_bytes(0, &vec![1; client::PART_MAX]));
    assert!(!request.add_truncate(1));
    assert!(request.send(files[0].as_fd(), abi::WRITE_COMMIT).is_err());
    assert!(request.is_empty());
    assert_eq!(fs::read(mount.at("a")).unwrap(), b"01abc567XYZ1");
    let mut request = WriteRequest::new(key);
    assert!(request.add_bytes(0, &vec![b'z'; client::PART_MAX]));
    request.send(files[0].as_fd(), abi::WRITE_COMMIT).unwrap();
    assert_eq!(fs::read(mount.at("a")).unwrap(), vec![b'z'; client::PART_MAX]);
    // Two parts that end with the request, and one that is a byte too long.
    let mut request = WriteRequest::new(key);
    let rest = client::PART_MAX - size_of::<abi::WritePart>() - 8;
    assert!(request.add_bytes(0, b"12345678") && !request.add_bytes(8, &vec![b'y'; rest + 1]));
    assert!(request.add_bytes(8, &vec![b'y'; rest]));
    request.send(files[1].as_fd(), abi::WRITE_COMMIT).unwrap();
    assert_eq!(fs::read(mount.at("b")).unwrap(), [b"12345678", &vec![b'y'; rest][..]].concat());
}

#[test]
fn the_volume_reports_its_use() {
    let mount = Mounted::in_memory();
    let path = mount.path();
    let before = client::counters(&path).unwrap();
    fs::write(mount.at("f"), vec![7; 40_960]).unwrap();
    client::sync(&path).unwrap();
    let after = client::counters(&path).unwrap();
    assert!(after.commits > before.commits && after.new_blocks >= before.new_blocks + 10);
    fs::write(mount.at("g"), "x").unwrap();
    Channel::open(&path).unwrap().sync().unwrap();
    assert!(client::counters(&path).unwrap().commits > after.commits);
    assert!(client::latencies(&path).unwrap().commit.buckets.iter().sum::<u32>() > 0);
    let ino = fs::metadata(mount.at("f")).unwrap().ino();
    let (files, others) = client::files(&path).unwrap();
    let f = files.iter().find(|file| file.ino == ino).unwrap();
    assert_eq!((f.new_blocks, f.overwritten_blocks, others.ino), (40, 0, 0), "blocks of 1 KiB");
    // More files than one call returns.
    for n in 0..abi::FILES_MAX + 10 {
        fs::write(mount.at(&format!("n{n}")), "x").unwrap();
    }
    client::sync(&path).unwrap();
    let (files, _) = client::files(&path).unwrap();
    let mut numbers: Vec<u64> = files.iter().map(|file| file.ino).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), abi::FILES_MAX + 12);

    let channel = Channel::open(&path).unwrap();
    channel.begin(0).unwrap();
    // SAFETY: geteuid has no arguments and cannot fail.
    let uid = unsafe { libc::geteuid() };
    let (users, limits) = client::users(&path).unwrap();
    let me = users.iter().find(|user| user.uid == uid).unwrap();
    assert_eq!((me.channels, me.transactions, me.savepoints), (1, 1, 0));
    assert!(limits.channels > 0 && limits.transactions > 0);
    assert_eq!(client::pool(&path).unwrap(), abi::Pool::default());
    assert_eq!(channel.pool().unwrap(), abi::Pool::default());

    let mut info = abi::MountInfo::new("").unwrap();
    client::mount_info(&path, &mut info).unwrap();
    assert_eq!(info.flags & (abi::MOUNT_JOURNAL | abi::MOUNT_GENERATIONS), abi::MOUNT_JOURNAL);
    let mut info = abi::MountInfo::new("no-such-option").unwrap();
    let (error, reason) = client::mount_info(&path, &mut info).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    assert_eq!((reason.is_empty(), reason), (false, text(&info.errmsg, info.errmsg_len)));
    assert!(abi::MountInfo::new(&"x".repeat(abi::MOUNT_OPTIONS_MAX)).is_some());
    assert!(abi::MountInfo::new(&"x".repeat(abi::MOUNT_OPTIONS_MAX + 1)).is_none());
    assert_eq!(abi::MountInfo::new("a,b").unwrap().options(), b"a,b");
    for call in [client::counters(Path::new("/")).map(drop), client::sync(Path::new("/"))] {
        assert_eq!(errno(call), libc::ENOTTY);
    }
    assert_eq!(errno(client::outcome_socket(Path::new("/"))), libc::ENOTTY);
    client::outcome_socket(&path).unwrap();
}

#[test]
fn modes_of_the_volume_and_of_files() {
    let mount = Mounted::in_memory();
    let get = || {
        let mut request = abi::Modes::new(abi::MODES_GET, [0; 8]);
        client::modes(&mount.path(), &mut request).unwrap();
        request
    };
    assert_eq!(get().stored, [0; 8]);
    assert_ne!(get().effective, [0; 8]);
    let mut set = abi::Modes::new(abi::MODES_SET, [1, 0, 0, 0, 0, 0, 0, 0]);
    client::modes(&mount.path(), &mut set).unwrap();
    assert_eq!(get().stored, [1, 0, 0, 0, 0, 0, 0, 0]);
    let mut wrong = abi::Modes::new(abi::MODES_SET, [0xEE; 8]);
    let (error, reason) = client::modes(&mount.path(), &mut wrong).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    assert_eq!(reason, text(&wrong.errmsg, wrong.errmsg_len));

    let path = mount.at("f");
    fs::write(&path, "x").unwrap();
    let mut set = abi::FileMode::new(abi::FILE_MODE_SET, abi::FILE_MODE_DATA);
    client::file_mode(&path, &mut set).unwrap();
    let mut get = abi::FileMode::new(abi::FILE_MODE_GET, 0);
    client::file_mode(&path, &mut get).unwrap();
    assert_eq!((get.own, get.effective), (abi::FILE_MODE_DATA, abi::FILE_MODE_DATA));
    let mut wrong = abi::FileMode::new(abi::FILE_MODE_SET, 99);
    let (error, reason) = client::file_mode(&path, &mut wrong).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    assert_eq!(reason, text(&wrong.errmsg, wrong.errmsg_len));
    let (error, _) = client::file_mode(Path::new("/nowhere"), &mut get).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn snapshots_are_created_listed_compared_and_deleted() {
    let mount = Mounted::with_generations();
    let path = mount.path();
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/f"), "one").unwrap();
    fs::write(mount.at("e"), "e").unwrap();
    assert!(client::list_snapshots(&path).unwrap().is_empty());
    client::create_snapshot(&path, "first", &[]).unwrap();
    fs::write(mount.at("d/f"), "second").unwrap();
    client::create_snapshot(&path, "part", &[b"d".to_vec(), b"e".to_vec()]).unwrap();
    let list = client::list_snapshots(&path).unwrap();
    let names: Vec<_> = list.iter().map(|snapshot| &snapshot.name[..]).collect();
    assert_eq!(names, ["first", "part"]);
    assert!(list[0].generation < list[1].generation && list[0].time > 1_700_000_000);
    assert!(list[0].paths.is_empty());
    assert_eq!(list[1].paths, [b"d".to_vec(), b"e".to_vec()]);

    let channel = Channel::open(&path).unwrap();
    let mut request = abi::SnapshotDiff::new("first", "").unwrap();
    let changes = channel.diff_snapshots(&mut request).unwrap();
    assert_eq!(changes.len(), 1);
    assert_eq!((changes[0].kind, &changes[0].path[..]), (ChangeKind::Modified, &b"/d/f"[..]));
    let mut request = abi::SnapshotDiff::new("missing", "").unwrap();
    let (error, reason) = channel.diff_snapshots(&mut request).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    assert!(reason.contains("missing"));
    assert_eq!(reason, text(&request.errmsg, request.errmsg_len));
    let mut get = abi::Snapshot::new(abi::SNAPSHOT_GET, "").unwrap();
    get.index = 1;
    channel.snapshot(&mut get).unwrap();
    assert_eq!(text(&get.name, get.name_len), "part");

    let pool = client::pool(&path).unwrap();
    assert!(pool.size > pool.used && pool.used > 0);
    assert_eq!(channel.pool().unwrap().size, pool.size);
    for result in [
        client::create_snapshot(&path, "first", &[]),
        client::create_snapshot(&path, "first", &[b"d".to_vec()]),
        client::delete_snapshot(&path, "missing"),
    ] {
        assert!(!result.unwrap_err().1.is_empty());
    }
    // A name or path that does not fit a request is not sent.
    let name = "n".repeat(abi::SNAPSHOT_NAME_MAX + 1);
    for paths in [vec![], vec![b"d".to_vec()]] {
        let (error, reason) = client::create_snapshot(&path, &name, &paths).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        assert!(reason.contains("at most"));
    }
    let long = vec![b'p'; abi::SNAPSHOT_PATHS_MAX];
    assert!(client::create_snapshot(&path, "long", &[long]).unwrap_err().1.contains("too long"));
    client::delete_snapshot(&path, "first").unwrap();
    client::delete_snapshot(&path, "part").unwrap();
    assert!(client::list_snapshots(&path).unwrap().is_empty());
}

#[test]
fn numbers_have_their_meanings() {
    assert_eq!(
        (0..=6).map(|n| TxStatus::from_number(n).map(|s| s as u32)).collect::<Vec<_>>(),
        [None, Some(1), Some(2), Some(3), Some(4), Some(5), None]
    );
    assert_eq!(
        (0..=6).map(|n| ChangeKind::from_number(n).map(|k| k as u32)).collect::<Vec<_>>(),
        [None, Some(1), Some(2), Some(3), Some(4), Some(5), None]
    );
    for number in 0..10 {
        assert_eq!(Reason::from_number(number) as u32, number);
    }
    assert_eq!(Reason::from_number(10), Reason::Other);
    let snapshot = xact_types::LatencySnapshot { sum_ns: 7, worst_ns: 5, buckets: [3; abi::LATENCY_BUCKETS] };
    let times = abi::Times::from(&snapshot);
    assert_eq!((times.sum_ns, times.worst_ns), (7, 5));
    let again = xact_types::LatencySnapshot::from(&times);
    assert_eq!((again.sum_ns, again.worst_ns, again.buckets), (7, 5, snapshot.buckets));
}
