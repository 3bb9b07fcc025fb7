//! SNAP-6 for metadata: changes that cancel out within a commit are not written, for any number of
//! files and on both engines.

use std::sync::Arc;
use std::time::Duration;

use xact::mkfs::{JournalSize, MkfsOptions, mkfs, mkfs_generations};
use xact::{BlockDevice, Caller, Ino, MemoryDevice, View, Volume, VolumeOptions};
use xact_fs::{RenameHow, WriteHow, XattrHow};

const BLOCK: u32 = 4096;
/// A folder's inode and its blocks, a bitmap, a descriptor.
const MOST_BLOCKS: u64 = 5;

#[derive(Debug, Clone, Copy)]
struct Kind {
    generations: bool,
    /// The inode tables are marked as zeroed. mke2fs leaves that to the kernel.
    zeroed: bool,
}

const KINDS: [Kind; 4] = [
    Kind { generations: false, zeroed: true },
    Kind { generations: true, zeroed: true },
    Kind { generations: false, zeroed: false },
    Kind { generations: true, zeroed: false },
];

fn open(kind: Kind) -> (Arc<Volume>, Arc<dyn View>) {
    open_on(&(Arc::new(MemoryDevice::new(256 << 20)) as Arc<dyn BlockDevice>), kind, 32)
}

/// A new volume, with `log` MiB for a journal or a pool.
fn open_on(device: &Arc<dyn BlockDevice>, kind: Kind, log: u64) -> (Arc<Volume>, Arc<dyn View>) {
    let format = MkfsOptions { block_size: Some(BLOCK), zeroed: kind.zeroed, ..MkfsOptions::default() };
    if kind.generations {
        mkfs_generations(device, &format, Some(log << 20)).unwrap();
    } else {
        mkfs(&**device, &MkfsOptions { journal: JournalSize::Bytes(log << 20), ..format }).unwrap();
    }
    let commit_interval = Duration::from_secs(3600);
    let options = VolumeOptions { flusher: false, commit_interval, ..VolumeOptions::default() };
    let volume = Volume::open(device.clone(), &options).unwrap();
    let base = volume.base();
    base.make_node(&Caller::ROOT, Ino::ROOT, b"stays", 0o100644, 0).unwrap();
    volume.sync().unwrap();
    (volume, base)
}

/// The number of blocks of the commit that makes `work` durable.
fn blocks_of(volume: &Volume, work: impl FnOnce()) -> u64 {
    let before = volume.stats();
    work();
    volume.sync().unwrap();
    let after = volume.stats();
    assert!(after.commits <= before.commits + 1, "one commit");
    after.committed_blocks - before.committed_blocks
}

fn make(base: &dyn View, name: &str) -> Ino {
    base.make_node(&Caller::ROOT, Ino::ROOT, name.as_bytes(), 0o100644, 0).unwrap().ino
}

fn unlink(base: &dyn View, name: &str) {
    base.unlink(&Caller::ROOT, Ino::ROOT, name.as_bytes()).unwrap();
}

#[test]
fn files_that_are_deleted_at_once_leave_no_dirty_blocks() {
    for kind in KINDS {
        for files in [1000, 5000] {
            let (volume, base) = open(kind);
            let blocks = blocks_of(&volume, || {
                for n in 0..files {
                    let name = format!("short{n}");
                    make(&*base, &name);
                    unlink(&*base, &name);
                }
            });
            assert!(blocks <= MOST_BLOCKS, "{kind:?}: {files} files made {blocks} dirty blocks");
            volume.close().unwrap();
        }
    }
}

/// The files need three groups, two of which were unused before.
#[test]
fn groups_that_are_unused_again_leave_no_dirty_blocks() {
    for kind in KINDS {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(512 << 20));
        let (volume, base) = open_on(&device, kind, 192);
        let blocks = blocks_of(&volume, || {
            for n in 0..20_000 {
                let name = format!("short{n}");
                make(&*base, &name);
                unlink(&*base, &name);
            }
        });
        assert!(blocks <= 2, "{kind:?}: {blocks} dirty blocks");
        // The groups can be used as before, in the same commit and in the next ones.
        for n in 0..9000 {
            let name = format!("again{n}");
            make(&*base, &name);
            if n > 8500 {
                unlink(&*base, &name);
                make(&*base, &name);
            }
        }
        volume.sync().unwrap();
        (8000..9000).for_each(|n| unlink(&*base, &format!("again{n}")));
        volume.close().unwrap();
        let report = xact::check::check(device, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "{kind:?}: {:?}", report.problems);
    }
}

/// All of them exist at one time: the folder grows by blocks, gets an index, and shrinks again.
#[test]
fn a_folder_that_grew_within_a_commit_shrinks_again() {
    for kind in KINDS {
        for files in [1000, 5000] {
            let (volume, base) = open(kind);
            let size = base.attr(Ino::ROOT).unwrap().size;
            let blocks = blocks_of(&volume, || {
                let name = |n: u32| format!("short{n}-{}", "x".repeat(50));
                for n in 0..files {
                    make(&*base, &name(n));
                }
                assert!(base.attr(Ino::ROOT).unwrap().size > size);
                (0..files).rev().for_each(|n| unlink(&*base, &name(n)));
            });
            assert!(blocks <= MOST_BLOCKS, "{kind:?}: {files} files made {blocks} dirty blocks");
            assert_eq!(base.attr(Ino::ROOT).unwrap().size, size);
            base.lookup(Ino::ROOT, b"stays").unwrap();
            // With another new file, all of the rest counts.
            for n in 0..files {
                make(&*base, &format!("other{n}"));
            }
            (1..files).for_each(|n| unlink(&*base, &format!("other{n}")));
            volume.sync().unwrap();
            base.lookup(Ino::ROOT, b"other0").unwrap();
            assert!(base.attr(Ino::ROOT).unwrap().size > size);
            volume.close().unwrap();
        }
    }
}

/// Folders, symbolic and hard links, attributes in blocks of their own, large files, files that are
/// open when they lose their name.
#[test]
fn files_of_all_kinds_leave_no_dirty_blocks() {
    for kind in KINDS {
        let (volume, base) = open(kind);
        let blocks = blocks_of(&volume, || {
            for n in 0..200 {
                let file = make(&*base, &format!("file{n}"));
                let large = vec![7; if n % 50 == 0 { 4 << 20 } else { 9000 }];
                base.write(file, 0, &large, WriteHow::default()).unwrap();
                base.set_xattr(&Caller::ROOT, file, b"user.long", &[n as u8; 2000], XattrHow::Set).unwrap();
                base.link(&Caller::ROOT, file, Ino::ROOT, format!("link{n}").as_bytes()).unwrap();
                let target = "a-target/".repeat(30);
                let symlink = format!("symlink{n}");
                base.make_symlink(&Caller::ROOT, Ino::ROOT, symlink.as_bytes(), target.as_bytes()).unwrap();
                let folder = format!("folder{n}");
                let dir = base.make_dir(&Caller::ROOT, Ino::ROOT, folder.as_bytes(), 0o755).unwrap().ino;
                base.make_node(&Caller::ROOT, dir, b"in", 0o100644, 0).unwrap();
                base.rename(&Caller::ROOT, (dir, b"in"), (Ino::ROOT, b"out"), RenameHow::Replace).unwrap();
                unlink(&*base, "out");
                base.hold(file).unwrap();
                for name in [format!("file{n}"), format!("link{n}"), symlink] {
                    unlink(&*base, &name);
                }
                base.remove_dir(&Caller::ROOT, Ino::ROOT, folder.as_bytes()).unwrap();
                base.release(file, 1);
            }
        });
        assert!(blocks <= MOST_BLOCKS, "{kind:?}: {blocks} dirty blocks");
        volume.close().unwrap();
    }
}

/// The deletion of a file that existed before the commit is written.
#[test]
fn a_deletion_of_what_was_durable_is_written() {
    for kind in KINDS {
        let (volume, base) = open(kind);
        let blocks = blocks_of(&volume, || unlink(&*base, "stays"));
        assert!((4..=MOST_BLOCKS).contains(&blocks), "{kind:?}: {blocks} blocks");
        // And the name comes back as another file.
        let blocks = blocks_of(&volume, || {
            make(&*base, "stays");
        });
        assert!((4..=MOST_BLOCKS).contains(&blocks), "{kind:?}: {blocks} blocks");
        volume.close().unwrap();
    }
}

/// A number whose inode left nothing in the table gets another generation with its next inode: NFS
/// clients tell the two files apart by it.
#[test]
fn generations_of_inodes_differ() {
    let (volume, base) = open(KINDS[0]);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let ino = make(&*base, "short");
        assert!(seen.insert((ino, base.attr(ino).unwrap().generation)));
        unlink(&*base, "short");
        volume.sync().unwrap();
    }
    let numbers: std::collections::BTreeSet<Ino> = seen.iter().map(|(ino, _)| *ino).collect();
    assert!(numbers.len() < seen.len(), "a number was used again");
    volume.close().unwrap();
}
