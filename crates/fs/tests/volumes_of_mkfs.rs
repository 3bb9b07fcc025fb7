//! Volumes of `mkfs` in use: after they are filled, emptied and filled again through [`LiveFs`],
//! they are clean for e2fsck and read by the kernel.

mod common;

use std::sync::Arc;

use common::Image;
use common::mount::Mount;
use xact_fs::LiveFs;
use xact_fs::api::{Caller, SeekTo, View, WriteHow};
use xact_fs::mkfs::{JournalSize, MkfsOptions, mkfs};
use xact_fs::volume::{VolumeOptions, open};
use xact_types::{Error, Ino};

const ME: Caller = Caller::ROOT;

fn name(number: usize) -> Vec<u8> {
    format!("file{number:05}").into_bytes()
}

fn make_file(view: &dyn View, dir: Ino, number: usize, len: usize) -> xact_types::Result<()> {
    let ino = view.make_node(&ME, dir, &name(number), 0o100_644, 0)?.ino;
    let data: Vec<u8> = (0..len).map(|i| (i * 7 + number) as u8).collect();
    view.write(ino, 0, &data, WriteHow::default())?;
    Ok(())
}

/// Closes the volume and its device.
fn close(fs: Arc<LiveFs>) {
    fs.close().unwrap();
}

fn all_options() -> Vec<(u64, MkfsOptions)> {
    let new = MkfsOptions::default;
    vec![
        (16 << 20, new()),
        (100 << 20, MkfsOptions { block_size: Some(2048), ..new() }),
        (600 << 20, MkfsOptions { zeroed: true, ..new() }),
        (64 << 20, MkfsOptions { csum_seed: false, orphan_file: false, ..new() }),
        (64 << 20, MkfsOptions { journal: JournalSize::None, ..new() }),
        (64 << 20, MkfsOptions { inode_size: 128, block_size: Some(4096), ..new() }),
    ]
}

fn fresh(size_bytes: u64, options: &MkfsOptions) -> Image {
    let image = Image::empty(size_bytes);
    if !options.zeroed {
        image.device().write_at(&vec![0xA5; size_bytes as usize], 0).unwrap();
    }
    mkfs(&*image.device(), options).unwrap();
    image
}

#[test]
fn trees_are_created_removed_and_read_by_the_kernel() {
    for (size, options) in all_options() {
        let image = fresh(size, &options);
        let fs = open(image.device(), &VolumeOptions::default()).unwrap();
        for folder in 0..5 {
            let dir = fs.make_dir(&ME, Ino::ROOT, format!("d{folder}").as_bytes(), 0o755).unwrap().ino;
            for file in 0..80 {
                make_file(&*fs, dir, file, file * 300).unwrap();
            }
            for file in (0..80).step_by(3) {
                fs.unlink(&ME, dir, &name(file)).unwrap();
            }
        }
        close(fs);
        image.assert_clean();

        let mount = Mount::new(&image);
        let kept = std::fs::read(mount.path("d3/file00040")).unwrap();
        assert!(kept.len() == 40 * 300 && kept.iter().enumerate().all(|(i, b)| *b == (i * 7 + 40) as u8));
        std::fs::write(mount.path("d3/by-the-kernel"), "x").unwrap();
        mount.unmount();
        image.assert_clean();

        let fs = open(image.device(), &VolumeOptions::default()).unwrap();
        let dir = fs.lookup(Ino::ROOT, b"d3").unwrap().ino;
        assert_eq!(fs.lookup(dir, b"by-the-kernel").unwrap().size, 1);
        assert!(fs.lookup(dir, &name(39)).is_err());
        close(fs);
        image.assert_clean();
    }
}

#[test]
fn a_full_volume_deletes_and_can_be_filled_again() {
    for options in [MkfsOptions::default(), MkfsOptions { block_size: Some(4096), ..Default::default() }] {
        let image = fresh(12 << 20, &options);
        let fs = open(image.device(), &VolumeOptions::default()).unwrap();
        let empty = fs.space().unwrap();
        let mut counts = Vec::new();
        for _ in 0..3 {
            let dir = fs.make_dir(&ME, Ino::ROOT, b"dir", 0o755).unwrap().ino;
            let mut count = 0;
            let full = loop {
                match make_file(&*fs, dir, count, 20_000) {
                    Ok(()) => count += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(full, Error::NoSpace), "{full}");
            counts.push(count);
            fs.sync_all().unwrap();
            for file in 0..=count {
                match fs.unlink(&ME, dir, &name(file)) {
                    Ok(()) => {}
                    Err(error) => assert!(file == count, "file {file} of {count}: {error}"),
                }
            }
            fs.remove_dir(&ME, Ino::ROOT, b"dir").unwrap();
        }
        assert!(counts[0] > 100 && counts.iter().all(|count| count.abs_diff(counts[0]) <= 2), "{counts:?}");
        fs.sync_all().unwrap();
        let after = fs.space().unwrap();
        assert_eq!((after.free_blocks, after.free_inodes), (empty.free_blocks, empty.free_inodes));
        close(fs);
        image.assert_clean();
    }
}

#[test]
fn a_volume_without_free_inodes_returns_no_space_and_recovers() {
    let options = MkfsOptions { inode_ratio: Some(64 << 10), ..Default::default() };
    let image = fresh(16 << 20, &options);
    let fs = open(image.device(), &VolumeOptions::default()).unwrap();
    let before = fs.space().unwrap().free_inodes;
    for round in 0..2 {
        let mut count = 0;
        let error = loop {
            match make_file(&*fs, Ino::ROOT, count, 0) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::NoSpace), "{error}");
        assert_eq!(count as u64, before, "round {round}");
        (0..count).for_each(|file| fs.unlink(&ME, Ino::ROOT, &name(file)).unwrap());
    }
    close(fs);
    image.assert_clean();
}

/// A file in its inode counts as space used, as in the kernel. One that `mke2fs -d` made of a hole
/// is larger than its bytes, and the rest of it is a hole of any length.
#[test]
fn contents_in_inodes_are_no_holes() {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("small"), vec![b'p'; 1500]).unwrap();
    std::fs::File::create(files.path().join("hole")).unwrap().set_len(1 << 40).unwrap();
    let from = files.path().to_str().unwrap();
    let image = Image::mke2fs(16 << 20, &["-b", "4096", "-I", "2048", "-O", "inline_data", "-d", from]);
    let fs = open(image.device(), &VolumeOptions::default()).unwrap();
    let small = fs.lookup(Ino::ROOT, b"small").unwrap();
    assert_eq!((small.size, small.sectors), (1500, 3));
    let hole = fs.lookup(Ino::ROOT, b"hole").unwrap();
    assert_eq!(hole.size, 1 << 40);
    let read = |offset: u64, len| {
        let mut out = Vec::new();
        fs.read(hole.ino, offset, len, &mut out).unwrap();
        out
    };
    assert_eq!(read(0, 5000), vec![0; 5000]);
    assert_eq!(read((1 << 40) - 100, 5000), vec![0; 100]);
    // Without a step for each of its blocks.
    assert_eq!(fs.seek(hole.ino, 4096, SeekTo::Hole).unwrap(), 4096);
    assert!(fs.seek(hole.ino, 4096, SeekTo::Data).is_err());
    fs.write(hole.ino, 1 << 30, b"xyz", WriteHow::default()).unwrap();
    close(fs);
    image.assert_clean();
    let fs = open(image.device(), &VolumeOptions::default()).unwrap();
    let mut out = Vec::new();
    fs.read(hole.ino, (1 << 30) - 1, 5, &mut out).unwrap();
    assert_eq!(out, b"\0xyz\0");
    close(fs);
}
