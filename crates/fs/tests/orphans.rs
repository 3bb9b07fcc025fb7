//! Orphans on volumes of mke2fs: e2fsck cleans up exactly those that were recorded.

mod common;

use std::collections::HashSet;

use common::Image;
use common::volume::Volume;
use xact_fs::alloc::Allocator;
use xact_fs::orphan::Orphans;
use xact_fs::superblock;
use xact_layout::feature::ro_compat;
use xact_layout::inode::{Inode, mode};
use xact_types::{Error, Ino};

fn open_orphans(volume: &Volume) -> Orphans {
    Orphans::open(&volume.alloc, &volume.inodes).unwrap()
}

/// A regular file without a name.
fn nameless(volume: &Volume) -> Ino {
    let ino = volume.alloc.take_inode(Ino::ROOT, false).unwrap();
    let mut h = volume.begin(Allocator::LINK_INODE_CREDITS);
    volume.alloc.link_inode(&mut h, ino, false).unwrap();
    let mut inode = Inode::zeroed(volume.sb().inode_size());
    inode.set_mode(mode::REGULAR | 0o600);
    inode.set_extra_isize(32);
    volume.inodes.create(&mut h, ino, &inode).unwrap();
    ino
}

fn add(volume: &Volume, orphans: &Orphans, ino: Ino) {
    orphans.add(&mut volume.begin(Orphans::ADD_CREDITS), ino).unwrap();
}

fn remove(volume: &Volume, orphans: &Orphans, ino: Ino) {
    orphans.remove(&mut volume.begin(Orphans::REMOVE_CREDITS), ino).unwrap();
}

fn sorted(mut list: Vec<Ino>) -> Vec<Ino> {
    list.sort();
    list
}

const KINDS: &[&[&str]] = &[&[], &["-O", "orphan_file"], &["-O", "orphan_file,^metadata_csum"]];

fn image(options: &[&str]) -> Image {
    Image::mke2fs(32 << 20, &[&["-b", "1024"], options].concat())
}

#[test]
fn recorded_orphans_are_found_again_and_cleaned_up_by_e2fsck() {
    for options in KINDS {
        let volume = Volume::open(image(options));
        let orphans = open_orphans(&volume);
        orphans.begin_use(&mut volume.begin(1)).unwrap();
        assert!(orphans.list().is_empty());
        let inodes: Vec<Ino> = (0..12).map(|_| nameless(&volume)).collect();
        for ino in &inodes {
            add(&volume, &orphans, *ino);
            add(&volume, &orphans, *ino);
        }
        // The first, the last, one in the middle, and several in a row.
        let gone = [0, 11, 5, 6, 7].map(|i| inodes[i]);
        for ino in gone {
            remove(&volume, &orphans, ino);
            remove(&volume, &orphans, ino);
            assert!(!orphans.contains(ino));
            let mut h = volume.begin(10);
            volume.inodes.update(&mut h, ino, |inode| inode.set_dtime(1_700_000_000)).unwrap();
            volume.alloc.free_inode(&mut h, ino, false).unwrap();
        }
        let left: Vec<Ino> = inodes.iter().copied().filter(|ino| !gone.contains(ino)).collect();
        assert_eq!(sorted(orphans.list()), left);

        // A write of the whole inode by its owner does not break the list.
        let mut owner = volume.inodes.read(left[3]).unwrap();
        owner.set_dtime(77);
        owner.set_size(5);
        volume.inodes.write(&mut volume.begin(1), left[3], &owner).unwrap();
        assert_eq!(sorted(open_orphans(&volume).list()), left, "{options:?}");

        volume.alloc.write_counts(&mut volume.begin(1)).unwrap();
        let image = volume.close_unchecked();
        let log = common::tool("e2fsck", &["-fp", image.path_str()], |code| code <= 1);
        for ino in &left {
            assert!(log.contains(&format!("Clearing orphaned inode {} ", ino.0)), "{options:?}: {log}");
        }
        image.assert_clean();
    }
}

#[test]
fn the_feature_orphan_present_is_set_while_in_use() {
    let volume = Volume::open(image(KINDS[1]));
    let orphans = open_orphans(&volume);
    let present = || {
        let newest = superblock::read(&volume.engine, volume.sb()).unwrap();
        newest.has_ro_compat(ro_compat::ORPHAN_PRESENT)
    };
    orphans.begin_use(&mut volume.begin(1)).unwrap();
    assert!(present());
    let ino = nameless(&volume);
    add(&volume, &orphans, ino);
    orphans.end_use(&mut volume.begin(1)).unwrap();
    assert!(present(), "an orphan still exists");
    remove(&volume, &orphans, ino);
    let mut h = volume.begin(10);
    volume.inodes.update(&mut h, ino, |inode| inode.set_dtime(1_700_000_000)).unwrap();
    volume.alloc.free_inode(&mut h, ino, false).unwrap();
    drop(h);
    orphans.end_use(&mut volume.begin(1)).unwrap();
    assert!(!present());
    volume.close();
}

#[test]
fn a_full_orphan_file_leaves_the_rest_to_the_list() {
    let volume = Volume::open(image(KINDS[1]));
    let orphans = open_orphans(&volume);
    let real = nameless(&volume);
    let mut added = HashSet::new();
    // The orphan file does not check the inodes themselves.
    let mut number = real.0;
    loop {
        number += 1;
        if orphans.add(&mut volume.begin(2), Ino(number)).is_err() {
            break; // The list reads the inode, which was never used.
        }
        added.insert(Ino(number));
    }
    assert!(added.len() >= 254, "{} entries", added.len());
    add(&volume, &orphans, real);
    let newest = superblock::read(&volume.engine, volume.sb()).unwrap();
    assert_eq!(newest.last_orphan(), real.0);
    added.insert(real);
    assert_eq!(open_orphans(&volume).list().into_iter().collect::<HashSet<_>>(), added);
    for ino in added {
        remove(&volume, &orphans, ino);
    }
    assert!(orphans.list().is_empty() && open_orphans(&volume).list().is_empty());
    assert_eq!(superblock::read(&volume.engine, volume.sb()).unwrap().last_orphan(), 0);
}

#[test]
fn cycles_and_impossible_orphans_are_refused() {
    let volume = Volume::open(image(KINDS[0]));
    let (a, b) = (nameless(&volume), nameless(&volume));
    let set = |head: u32, a_next: u32, b_next: u32| {
        let mut h = volume.begin(3);
        superblock::update(&mut h, volume.sb(), |sb| sb.set_last_orphan(head)).unwrap();
        volume.inodes.update(&mut h, a, |inode| inode.set_dtime(a_next)).unwrap();
        volume.inodes.update(&mut h, b, |inode| inode.set_dtime(b_next)).unwrap();
        Orphans::open(&volume.alloc, &volume.inodes).map(|orphans| sorted(orphans.list()))
    };
    assert_eq!(set(a.0, b.0, 0).unwrap(), [a, b]);
    for (head, a_next, b_next) in
        [(a.0, a.0, 0), (a.0, b.0, a.0), (a.0, b.0, b.0), (2, 0, 0), (a.0, u32::MAX, 0), (a.0, 9000, 0)]
    {
        let result = set(head, a_next, b_next);
        assert!(matches!(result, Err(Error::Corrupt(_))), "{head} {a_next} {b_next}: {result:?}");
    }
}
