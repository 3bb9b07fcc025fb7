//! Trees of folders that are deeper than any path, through the library. The cost is in proportion
//! to the depth; with the square of it, these tests would take minutes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xact::mkfs::{MkfsOptions, mkfs_generations};
use xact::{
    BlockDevice, Caller, FileKind, Ino, MemoryDevice, PathExt, View, Volume, VolumeOptions, What, WriteHow,
};

const DEPTH: usize = 5000;
const NAME: [u8; 100] = [b'n'; 100];
/// Linear work takes less than a second.
const TIME_MAX: Duration = Duration::from_secs(15);

fn volume() -> Arc<Volume> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(256 << 20));
    let options = MkfsOptions {
        block_size: Some(1024),
        inode_ratio: Some(2048),
        zeroed: true,
        ..MkfsOptions::default()
    };
    mkfs_generations(&device, &options, Some(64 << 20)).unwrap();
    Volume::open(device, &VolumeOptions::default()).unwrap()
}

/// Makes a chain of folders in a folder of the root, each with a file.
fn make_chain(view: &dyn View, top: &[u8], depth: usize) {
    let mut at = view.make_dir(&Caller::ROOT, Ino::ROOT, top, 0o755).unwrap().ino;
    for _ in 0..depth {
        at = view.make_dir(&Caller::ROOT, at, &NAME, 0o755).unwrap().ino;
        view.make_node(&Caller::ROOT, at, b"f", FileKind::Regular.mode_bits() | 0o644, 0).unwrap();
    }
}

/// Writes to the file in each folder of a chain.
fn change_chain(view: &dyn View, top: &[u8]) {
    let mut at = view.lookup(Ino::ROOT, top).unwrap().ino;
    while let Ok(next) = view.lookup(at, &NAME) {
        at = next.ino;
        let file = view.lookup(at, b"f").unwrap().ino;
        view.write(file, 0, b"text", WriteHow::default()).unwrap();
    }
}

#[test]
fn snapshots_of_a_deep_tree_are_compared_in_linear_time() {
    let start = Instant::now();
    let volume = volume();
    make_chain(&*volume.base(), b"top", DEPTH);
    volume.create_snapshot("old").unwrap();
    volume.create_snapshot_of("part", &[b"top".to_vec()]).unwrap();
    change_chain(&*volume.base(), b"top");
    let of = |what: What, snapshot: &str| {
        let all = volume.diff_snapshots(snapshot, None).unwrap();
        assert!(all.iter().all(|found| found.path.len() < 5000));
        all.into_iter().filter(|found| found.what == what).count()
    };
    assert_eq!((of(What::Modified, "old"), of(What::Modified, "part")), (DEPTH, DEPTH));
    make_chain(&*volume.base(), b"second", DEPTH);
    assert_eq!((of(What::Added, "old"), of(What::Added, "part")), (2 * DEPTH + 1, 0));
    volume.remove_dir_all("/top").unwrap();
    assert!(!volume.exists("/top").unwrap());
    assert_eq!((of(What::Deleted, "old"), of(What::Deleted, "part")), (2 * DEPTH + 1, 2 * DEPTH + 1));
    assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
}

/// Many folders in one folder, each with a difference: the folder above is listed once.
#[test]
fn snapshots_of_a_wide_tree_are_compared_in_linear_time() {
    const FOLDERS: usize = 10_000;
    let start = Instant::now();
    let volume = volume();
    let view = volume.base();
    let name = |number: usize| number.to_string().into_bytes();
    let folders: Vec<Ino> = (0..FOLDERS)
        .map(|number| view.make_dir(&Caller::ROOT, Ino::ROOT, &name(number), 0o755).unwrap().ino)
        .collect();
    volume.create_snapshot("old").unwrap();
    for folder in folders {
        view.make_node(&Caller::ROOT, folder, b"f", FileKind::Regular.mode_bits() | 0o644, 0).unwrap();
    }
    assert_eq!(volume.diff_snapshots("old", None).unwrap().len(), FOLDERS);
    assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
}

#[test]
fn an_unsaved_file_deep_in_a_tree_is_named() {
    // With the path of each folder, the search would find nothing in its time.
    const DEPTH: usize = 25_000;
    let volume = volume();
    make_chain(&*volume.base(), b"top", DEPTH);
    let mut at = volume.base().lookup(Ino::ROOT, b"top").unwrap().ino;
    while let Ok(next) = volume.base().lookup(at, &NAME) {
        at = next.ino;
    }
    let file = volume.base().lookup(at, b"f").unwrap().ino;
    let path = volume.path_of(file).expect("found in the time of a search");
    assert_eq!(path.len(), b"/top".len() + DEPTH * (1 + NAME.len()) + b"/f".len());
}
