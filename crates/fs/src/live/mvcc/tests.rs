//! How many old versions are kept: what an open view could still read, whatever others change.

use std::ops::Range;
use std::sync::Arc;

use tempfile::TempDir;
use xact_device::{BlockDevice, FileDevice, MemoryDevice, OpenMode};
use xact_types::{Error, FileBlock, Ino};

use crate::api::{Allocate, Caller, RenameHow, SeekTo, SetAttr, View, WriteHow, XattrHow};
use crate::live::{LiveFs, ReadView};
use crate::mkfs::{MkfsOptions, mkfs, mkfs_generations};
use crate::versioned_fs::ReadAsOf;
use crate::volume::{VolumeOptions, open};

const ROOT: Caller = Caller::ROOT;
const BLOCK: usize = 4096;

/// Makes an empty volume, with a journal or with generations.
fn format<D: BlockDevice + 'static>(device: Arc<D>, generations: bool) -> Arc<D> {
    let options =
        MkfsOptions { zeroed: true, block_size: Some(4096), reserved_percent: 0, ..MkfsOptions::default() };
    if generations {
        let device: Arc<dyn BlockDevice> = device.clone();
        mkfs_generations(&device, &options, Some(16 << 20)).unwrap();
    } else {
        mkfs(&*device, &options).unwrap();
    }
    device
}

fn in_memory(size_mib: u64) -> [Arc<MemoryDevice>; 2] {
    [false, true].map(|generations| format(Arc::new(MemoryDevice::new(size_mib << 20)), generations))
}

fn options(cache_bytes: u64) -> VolumeOptions {
    VolumeOptions { flusher: false, cache_bytes, ..VolumeOptions::default() }
}

fn volumes(size_mib: u64) -> [Arc<LiveFs>; 2] {
    in_memory(size_mib).map(|device| open(device, &options(256 << 20)).unwrap())
}

fn file(fs: &LiveFs, name: &str) -> Ino {
    fs.make_node(&ROOT, Ino::ROOT, name.as_bytes(), 0o100644, 0).unwrap().ino
}

fn write(fs: &LiveFs, ino: Ino, at: usize, byte: u8, len: usize) {
    fs.write(ino, at as u64, &vec![byte; len], WriteHow::default()).unwrap();
}

/// The first byte of a block as a view sees it; `None` for a hole.
fn seen(fs: &LiveFs, ino: Ino, block: u32, view: &ReadView) -> Option<u8> {
    fs.read_block_at(ino, FileBlock(block), view.stamp()).unwrap().map(|bytes| bytes[0])
}

#[test]
fn a_block_has_one_version_for_each_view() {
    for fs in volumes(64) {
        let ino = file(&fs, "f");
        write(&fs, ino, 0, 0, BLOCK);
        let mut views = Vec::new();
        for k in 1..=4_u8 {
            views.push(fs.open_view());
            for i in 0..1000_u32 {
                write(&fs, ino, 0, if i == 999 { k } else { 99 }, BLOCK);
                if i % 100 == 0 {
                    fs.sync_file(ino, true).unwrap();
                }
            }
            let contents = u64::from(k) * BLOCK as u64;
            let bytes = fs.version_bytes();
            assert!((contents..contents + 1000 * u64::from(k)).contains(&bytes), "{k} views: {bytes} bytes");
            for (before, view) in views.iter().enumerate() {
                assert_eq!(seen(&fs, ino, 0, view), Some(before as u8));
            }
        }
        // The end of a view in the middle drops what it alone could read.
        let before = fs.version_bytes();
        drop(views.remove(1));
        assert!((before - fs.version_bytes()) >= BLOCK as u64, "{before} bytes, now {}", fs.version_bytes());
        assert_eq!(seen(&fs, ino, 0, &views[0]), Some(0));
        assert_eq!(seen(&fs, ino, 0, &views[1]), Some(2));
        views.clear();
        assert_eq!(fs.version_bytes(), 0);
        fs.close().unwrap();
    }
}

/// A log grows while a view is open: the view needs the block at the old end and nothing behind it.
#[test]
fn a_log_that_grows_needs_no_memory() {
    for fs in volumes(64) {
        let ino = file(&fs, "log");
        write(&fs, ino, 0, 1, 5000);
        let view = fs.open_view();
        let then = fs.attr(ino).unwrap();
        let line = [2; 200];
        for i in 0..50_000 {
            fs.write(ino, 5000 + i * 200, &line, WriteHow::default()).unwrap();
            if i % 1000 == 0 {
                fs.sync_file(ino, false).unwrap();
            }
        }
        assert!(fs.version_bytes() < 2 * BLOCK as u64, "{} bytes", fs.version_bytes());
        assert_eq!(fs.attr_at(ino, view.stamp()).unwrap(), then);
        let last = fs.read_block_at(ino, FileBlock(1), view.stamp()).unwrap().unwrap();
        assert!(last[..5000 - BLOCK].iter().all(|&byte| byte == 1));
        // Nevertheless, the changed blocks are known.
        for blocks in [1..2, 2..3, 2000..2001, 1..u32::MAX] {
            let blocks = FileBlock(blocks.start)..FileBlock(blocks.end);
            assert!(fs.blocks_changed_since(ino, blocks, view.stamp()).unwrap().is_some());
        }
        assert!(fs.blocks_changed_since(ino, FileBlock(0)..FileBlock(1), view.stamp()).unwrap().is_none());
        // A younger view sees more of it, and that is kept.
        let younger = fs.open_view();
        write(&fs, ino, 10 * BLOCK, 3, BLOCK);
        assert_eq!(seen(&fs, ino, 10, &younger), Some(2));
        assert!(
            fs.blocks_changed_since(ino, FileBlock(9)..FileBlock(10), younger.stamp()).unwrap().is_none()
        );
        drop((view, younger));
        assert_eq!(fs.version_bytes(), 0);
        fs.close().unwrap();
    }
}

/// Each kind of change, many times, keeps no more than after a few times.
#[test]
fn every_kind_of_item_has_few_versions() {
    type Change<'a> = (&'a str, Box<dyn Fn(&LiveFs, u64) + 'a>);
    for fs in volumes(64) {
        let ino = file(&fs, "f");
        write(&fs, ino, 0, 1, 10 * BLOCK);
        let dir = fs.make_dir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
        let dirs = [b"x", b"y"].map(|name| fs.make_dir(&ROOT, dir, name, 0o755).unwrap().ino);
        fs.make_dir(&ROOT, dirs[0], b"moved", 0o755).unwrap();
        let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        let changes: Vec<Change<'_>> = vec![
            ("overwriting", Box::new(|fs, i| write(fs, ino, i as usize % 10 * BLOCK, i as u8, 100))),
            (
                "truncation and growth",
                Box::new(|fs, i| {
                    fs.set_attr(&ROOT, ino, &set(i % 7 * 3000)).unwrap();
                    write(fs, ino, 20_000, i as u8, 3000);
                }),
            ),
            (
                "punching holes",
                Box::new(|fs, i| {
                    fs.allocate(&ROOT, ino, i % 5 * 4096, 4096, Allocate::PunchHole).unwrap();
                    write(fs, ino, i as usize % 5 * BLOCK, 1, 10);
                }),
            ),
            (
                "permissions",
                Box::new(|fs, i| {
                    let change = SetAttr { perm: Some((i % 512) as u16), ..SetAttr::default() };
                    fs.set_attr(&ROOT, ino, &change).unwrap();
                }),
            ),
            (
                "attributes",
                Box::new(|fs, i| {
                    fs.set_xattr(&ROOT, ino, b"user.a", &[i as u8; 30], XattrHow::Set).unwrap();
                }),
            ),
            (
                "renaming",
                Box::new(|fs, i| {
                    let names: [&[u8]; 2] = [b"f", b"g"];
                    let (from, to) = (names[i as usize % 2], names[(i as usize + 1) % 2]);
                    fs.rename(&ROOT, (Ino::ROOT, from), (Ino::ROOT, to), RenameHow::Replace).unwrap();
                }),
            ),
            (
                "moving a folder",
                Box::new(|fs, i| {
                    let (from, to) = (dirs[i as usize % 2], dirs[(i as usize + 1) % 2]);
                    fs.rename(&ROOT, (from, b"moved"), (to, b"moved"), RenameHow::Replace).unwrap();
                }),
            ),
            (
                "temporary files with new names",
                Box::new(|fs, i| {
                    let name = format!("tmp-{i}");
                    let new = file(fs, &name);
                    write(fs, new, 0, 1, 3 * BLOCK);
                    fs.set_xattr(&ROOT, new, b"user.b", b"new", XattrHow::Set).unwrap();
                    fs.unlink(&ROOT, Ino::ROOT, name.as_bytes()).unwrap();
                }),
            ),
            (
                "replacing a file",
                Box::new(|fs, i| {
                    let new = file(fs, "new");
                    write(fs, new, 0, i as u8, 3 * BLOCK);
                    fs.rename(&ROOT, (Ino::ROOT, b"new"), (Ino::ROOT, b"replaced"), RenameHow::Replace)
                        .unwrap();
                }),
            ),
            (
                "temporary folders",
                Box::new(|fs, _| {
                    let made = fs.make_dir(&ROOT, dir, b"tmp", 0o755).unwrap().ino;
                    fs.make_node(&ROOT, made, b"inside", 0o100644, 0).unwrap();
                    fs.unlink(&ROOT, made, b"inside").unwrap();
                    fs.remove_dir(&ROOT, dir, b"tmp").unwrap();
                }),
            ),
        ];
        let view = fs.open_view();
        let mut next = 0;
        for (what, change) in changes {
            let mut times = |n: u64| {
                (next..next + n).for_each(|i| change(&fs, i));
                next += n;
                fs.sync_all().unwrap();
                (fs.version_bytes(), fs.mvcc.unlinked_count())
            };
            let few = times(20);
            assert_eq!(times(1000), few, "{what}");
        }
        assert_eq!(seen(&fs, ino, 0, &view), Some(1));
        drop(view);
        assert_eq!(fs.version_bytes(), 0);
        fs.close().unwrap();
    }
}

/// A file that no view sees is deleted with its last name, and gives back its space.
#[test]
fn a_file_younger_than_all_views_is_deleted_at_once() {
    for fs in volumes(64) {
        let old = file(&fs, "old");
        write(&fs, old, 0, 1, 100 * BLOCK);
        fs.sync_all().unwrap();
        let view = fs.open_view();
        let new = file(&fs, "new");
        write(&fs, new, 0, 1, 1000 * BLOCK);
        fs.sync_all().unwrap();
        assert!(fs.attr_at(new, view.stamp()).is_err());
        let younger = fs.open_view();
        fs.unlink(&ROOT, Ino::ROOT, b"new").unwrap();
        assert_eq!(fs.mvcc.unlinked(), [new]);
        drop(younger);
        assert_eq!(fs.mvcc.unlinked(), []);
        assert!(fs.attr(new).is_err());
        fs.unlink(&ROOT, Ino::ROOT, b"old").unwrap();
        assert_eq!(fs.mvcc.unlinked(), [old]);
        assert_eq!(seen(&fs, old, 99, &view), Some(1));
        drop(view);
        assert!(fs.attr(old).is_err());
        fs.close().unwrap();
    }
}

/// An eighth of this is for old versions.
const SMALL_CACHE: u64 = 4 << 20;

/// Writes a file of as many blocks as given, each with its own byte, to the device.
fn numbered(fs: &LiveFs, blocks: usize) -> Ino {
    let ino = file(fs, "numbered");
    (0..blocks).for_each(|at| write(fs, ino, at * BLOCK, at as u8, BLOCK));
    fs.sync_all().unwrap();
    ino
}

fn overwrite(fs: &LiveFs, ino: Ino, blocks: usize) {
    (0..blocks).for_each(|at| write(fs, ino, at * BLOCK, 0xEE, BLOCK));
    fs.sync_all().unwrap();
}

fn assert_numbered(fs: &LiveFs, ino: Ino, blocks: usize, view: &ReadView) {
    for at in 0..blocks as u32 {
        assert_eq!(seen(fs, ino, at, view), Some(at as u8), "block {at}");
    }
}

#[test]
fn versions_beyond_memory_are_on_the_volume() {
    const BLOCKS: usize = 2500;
    // A device that really discards.
    let dir = TempDir::new().unwrap();
    let image = dir.path().join("volume");
    let make = || {
        std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        Arc::new(FileDevice::open(&image, OpenMode::ReadWrite).unwrap())
    };
    for generations in [false, true] {
        let device = format(make(), generations);
        let fs = open(device, &options(SMALL_CACHE)).unwrap();
        let ino = numbered(&fs, BLOCKS);
        let free = fs.space().unwrap().free_blocks;
        let view = fs.open_view();
        overwrite(&fs, ino, BLOCKS);
        assert!(fs.version_bytes() <= SMALL_CACHE / 8, "{} bytes", fs.version_bytes());
        let spilled = fs.spilled_versions();
        assert!(spilled > BLOCKS as u64 * 9 / 10, "{spilled} blocks");
        assert_eq!(fs.space().unwrap().free_blocks, free - spilled);
        // Nobody takes or discards them.
        let other = file(&fs, "other");
        write(&fs, other, 0, 0xDD, 1000 * BLOCK);
        fs.sync_all().unwrap();
        assert!(fs.trim(0..u64::MAX, 0).unwrap() > 0);
        assert_numbered(&fs, ino, BLOCKS, &view);
        // A crash now finds them free.
        let crashed = Arc::new(MemoryDevice::from_bytes(std::fs::read(&image).unwrap()));
        let crashed = open(crashed, &options(SMALL_CACHE)).unwrap();
        assert_eq!(crashed.space().unwrap().free_blocks, free - 1000);
        crashed.close().unwrap();
        drop(view);
        assert_eq!((fs.spilled_versions(), fs.version_bytes()), (0, 0));
        assert_eq!(fs.space().unwrap().free_blocks, free - 1000);
        fs.close().unwrap();
    }
}

/// Space with old versions is free for others: the view expires instead.
#[test]
fn versions_on_the_volume_do_not_make_it_full() {
    const BLOCKS: usize = 2000;
    for device in in_memory(64) {
        let fs = open(device, &options(SMALL_CACHE)).unwrap();
        let ino = numbered(&fs, BLOCKS);
        let free = fs.space().unwrap().available_blocks;
        let view = fs.open_view();
        overwrite(&fs, ino, BLOCKS);
        assert!(fs.spilled_versions() > 1000);
        let other = file(&fs, "other");
        // Some blocks are for the extent tree.
        for at in 0..free as usize - 20 {
            write(&fs, other, at * BLOCK, 0xDD, BLOCK);
        }
        fs.sync_all().unwrap();
        assert_eq!(fs.spilled_versions(), 0);
        assert!(matches!(fs.attr_at(ino, view.stamp()), Err(Error::TooOld)));
        drop(view);
        fs.close().unwrap();
    }
}

#[test]
fn versions_take_their_share_of_the_free_space_only() {
    const BLOCKS: usize = 2000;
    for device in in_memory(64) {
        let fs = open(device, &VolumeOptions { version_space_percent: 5, ..options(SMALL_CACHE) }).unwrap();
        let ino = numbered(&fs, BLOCKS);
        let most = fs.space().unwrap().free_blocks * 5 / 100;
        let view = fs.open_view();
        for at in 0..BLOCKS {
            write(&fs, ino, at * BLOCK, 0xEE, BLOCK);
            assert!(fs.spilled_versions() <= most, "{} blocks, at most {most}", fs.spilled_versions());
        }
        assert!(matches!(fs.attr_at(ino, view.stamp()), Err(Error::TooOld)));
        assert_eq!(fs.spilled_versions(), 0);
        drop(view);
        fs.close().unwrap();
    }
}

/// A large file that is truncated keeps its blocks in place, with one record for each extent.
#[test]
fn a_large_truncated_file_needs_little_memory() {
    const BLOCKS: usize = 20_000;
    for device in in_memory(256) {
        let fs = open(device, &options(SMALL_CACHE)).unwrap();
        let ino = numbered(&fs, BLOCKS);
        let view = fs.open_view();
        let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        fs.set_attr(&ROOT, ino, &set(1000 * BLOCK as u64 + 5)).unwrap();
        let between = fs.open_view();
        fs.set_attr(&ROOT, ino, &set(0)).unwrap();
        fs.sync_all().unwrap();
        assert!(fs.version_bytes() <= SMALL_CACHE / 8, "{} bytes", fs.version_bytes());
        write(&fs, ino, 500 * BLOCK, 0xEE, 100 * BLOCK);
        write(&fs, ino, 15_000 * BLOCK, 0xEE, BLOCK);
        assert_numbered(&fs, ino, BLOCKS, &view);
        assert_numbered(&fs, ino, 1001, &between);
        let at = FileBlock(2000);
        assert_eq!(fs.seek_at(ino, at, SeekTo::Data, view.stamp()).unwrap(), Some(at));
        assert_eq!(fs.seek_at(ino, at, SeekTo::Hole, view.stamp()).unwrap(), Some(FileBlock(BLOCKS as u32)));
        let changed = |view: &ReadView, blocks: Range<u32>| {
            let blocks = FileBlock(blocks.start)..FileBlock(blocks.end);
            fs.blocks_changed_since(ino, blocks, view.stamp()).unwrap().is_some()
        };
        assert!(changed(&view, 0..1) && changed(&view, 12_345..12_346));
        assert!(changed(&between, 999..1000) && changed(&between, 1..u32::MAX));
        let now = fs.open_view();
        assert_eq!(fs.seek_at(ino, FileBlock(0), SeekTo::Data, now.stamp()).unwrap(), Some(FileBlock(500)));
        assert!(!changed(&now, 0..u32::MAX));
        drop(between);
        assert_numbered(&fs, ino, BLOCKS, &view);
        drop((view, now));
        assert_eq!((fs.version_bytes(), fs.spilled_versions()), (0, 0));
        fs.close().unwrap();
    }
}
