//! xact reads and changes directories of the kernel, and the kernel those of xact; e2fsck finds no
//! problem.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use xact_types::Ino;

use super::super::DirEntry;
use super::image::Image;
use crate::api::{Entry, FileKind};

type Names = BTreeSet<Vec<u8>>;

/// Names of all lengths, some with bytes above 127: these distinguish the signed from the unsigned
/// hash.
fn name(number: usize) -> Vec<u8> {
    match number % 4 {
        0 => format!("{number}"),
        1 => format!("a-file-with-number-{number}.txt"),
        2 => format!("größer-als-{number}-äöü"),
        _ => format!("{number}-{}", "long ".repeat(number % 47)),
    }
    .into_bytes()
}

/// One directory `d`. All its names are links to the file `target` in the root.
struct Trial {
    image: Image,
    dir: Ino,
    target: Ino,
    names: Names,
    types: bool,
}

impl Trial {
    /// Lets the kernel create `count` names.
    fn new(image: Image, count: usize, types: bool) -> Trial {
        let names: Names = (0..count).map(name).collect();
        image.mounted(|root| {
            std::fs::create_dir(root.join("d")).expect("mkdir");
            std::fs::write(root.join("target"), "").expect("target");
            link(root, names.iter());
        });
        let (dir, target) = (image.find("d"), image.find("target"));
        Trial { image, dir, target, names, types }
    }

    /// xact finds all names, by listing and by look-up.
    fn read(&self) {
        let sample = self.image.open(self.dir);
        let listed = sample.list().expect("listing");
        assert!(listed.keys().eq(self.names.iter()), "listing");
        let entry = DirEntry { ino: self.target, kind: self.types.then_some(FileKind::Regular) };
        assert!(listed.values().all(|&listed| listed == entry));
        for name in &self.names {
            assert_eq!(sample.lookup(name).expect("lookup"), Some(entry));
        }
        assert_eq!(sample.lookup(b"missing").expect("lookup"), None);
        assert_eq!(sample.dir().parent(&sample.blocks).expect("parent"), Ino::ROOT);
        if sample.blocks.indexed {
            sample.check_index();
        }
    }

    /// xact removes and adds names.
    fn change(&mut self, remove: usize, add: impl Iterator<Item = usize>) {
        let gone: Names = self.names.iter().step_by(3).take(remove).cloned().collect();
        let new: Names = add.map(name).filter(|name| !self.names.contains(name)).collect();
        let entry = Entry { ino: self.target, kind: FileKind::Regular };
        self.image.change(self.dir, |sample| {
            for name in &gone {
                sample.remove(name).expect("remove");
            }
            for name in &new {
                sample.add(name, entry).expect("add");
            }
        });
        self.names = &(&self.names - &gone) | &new;
        let links = self.names.len() + 1;
        self.image.debugfs(&[format!("sif <{}> links_count {links}", self.target.0)]);
        if self.image.open(self.dir).sb.flags() & 3 != 0 {
            self.image.fsck();
        }
    }

    /// The kernel finds all names, by listing and by look-up, and then removes and adds names.
    fn kernel(&mut self, remove: usize, add: impl Iterator<Item = usize>) {
        let gone: Names = self.names.iter().step_by(2).take(remove).cloned().collect();
        let new: Names = add.map(name).filter(|name| !self.names.contains(name)).collect();
        self.image.mounted(|root| {
            let dir = root.join("d");
            let listed = std::fs::read_dir(&dir).expect("readdir");
            let listed: Names = listed.map(|item| item.expect("readdir").file_name().into_vec()).collect();
            assert!(listed == self.names, "the kernel's listing");
            for name in &self.names {
                let ino = dir.join(OsStr::from_bytes(name)).metadata().expect("stat by the kernel").ino();
                assert_eq!(ino, u64::from(self.target.0));
            }
            for name in &gone {
                std::fs::remove_file(dir.join(OsStr::from_bytes(name))).expect("unlink");
            }
            link(root, new.iter());
        });
        self.names = &(&self.names - &gone) | &new;
        self.image.fsck();
        self.read();
    }
}

fn link<'a>(root: &Path, names: impl Iterator<Item = &'a Vec<u8>>) {
    for name in names {
        std::fs::hard_link(root.join("target"), root.join("d").join(OsStr::from_bytes(name))).expect("link");
    }
}

#[test]
fn fifty_thousand_names_of_the_kernel() {
    let mut trial = Trial::new(Image::make(128, &["-b", "4096"]), 50_000, true);
    trial.read();
    trial.change(10_000, 50_000..60_000);
    trial.kernel(1000, 60_000..61_000);
}

#[test]
fn fifty_thousand_names_of_ours() {
    let mut trial = Trial::new(Image::make(128, &["-b", "4096"]), 0, true);
    trial.change(0, 0..50_000);
    trial.kernel(10_000, 50_000..60_000);
}

/// xact and the kernel change a directory in turns.
fn both_sides(options: &[&str], tune: impl Fn(&Image), count: usize, types: bool) {
    for first in [0, count] {
        let image = Image::make(64, options);
        tune(&image);
        let mut trial = Trial::new(image, first, types);
        trial.read();
        trial.change(first / 4, count..2 * count);
        trial.kernel(count / 4, 2 * count..3 * count);
        trial.change(count / 4, 3 * count..4 * count);
        trial.kernel(0, 0..0);
    }
}

#[test]
fn small_blocks_two_levels_deep() {
    both_sides(&["-b", "1024"], |_| (), 6000, true);
}

#[test]
fn small_blocks_without_checksums() {
    both_sides(&["-b", "1024", "-O", "^metadata_csum,^64bit"], |_| (), 6000, true);
}

#[test]
fn blocks_of_2_kib() {
    both_sides(&["-b", "2048", "-O", "^has_journal"], |_| (), 3000, true);
}

#[test]
fn block_maps_and_no_types() {
    both_sides(&["-b", "4096", "-O", "^extent,^filetype,^64bit,^metadata_csum"], |_| (), 2000, false);
}

#[test]
fn without_dir_index() {
    both_sides(&["-b", "1024", "-O", "^dir_index"], |_| (), 400, true);
}

#[test]
fn signed_hashes() {
    both_sides(&["-b", "4096"], |image| image.debugfs(&["ssv flags 1".into()]), 1000, true);
}

#[test]
fn unsigned_hashes() {
    both_sides(&["-b", "4096"], |image| image.debugfs(&["ssv flags 2".into()]), 1000, true);
}

/// With neither flag, the kernel uses unsigned `char`, and e2fsck that of its build; so only the
/// kernel checks this one. It then sets the flag.
#[test]
fn hashes_without_a_sign_flag() {
    let image = Image::make(64, &["-b", "1024"]);
    image.debugfs(&["ssv flags 0".into()]);
    let mut trial = Trial::new(image, 0, true);
    trial.image.debugfs(&["ssv flags 0".into()]);
    trial.change(0, 0..1000);
    assert_eq!(trial.image.open(trial.dir).sb.flags() & 3, 0);
    trial.kernel(100, 1000..1500);
}

#[test]
fn legacy_hashes() {
    both_sides(&["-b", "1024"], |image| image.tune2fs(&["-E", "hash_alg=legacy"]), 2000, true);
}

#[test]
fn tea_hashes() {
    both_sides(&["-b", "1024"], |image| image.tune2fs(&["-E", "hash_alg=tea"]), 2000, true);
}

/// An index made before the feature `dir_index` was removed: it is read as the linear directory
/// that it looks like, and a change converts it to one.
#[test]
fn an_index_without_the_feature_is_read_as_a_linear_directory() {
    let mut trial = Trial::new(Image::make(64, &["-b", "1024", "-O", "^metadata_csum"]), 500, true);
    assert!(trial.image.open(trial.dir).blocks.indexed);
    trial.image.tune2fs(&["-O", "^dir_index"]);
    let sample = trial.image.open(trial.dir);
    assert_eq!(sample.list().expect("listing").len(), 500);
    drop(sample);
    trial.change(100, 500..700);
    assert!(!trial.image.open(trial.dir).blocks.indexed);
    trial.kernel(100, 700..900);
}
