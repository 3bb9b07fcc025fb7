//! The check continues where the superblock, group descriptors or the journal are damaged: by their
//! copies, or without a replay.

#[path = "../../fs/tests/common/mod.rs"]
mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use common::{Image, tool};
use xact_check::Report;
use xact_device::{FileDevice, OpenMode};
use xact_layout::superblock::SUPERBLOCK_OFFSET;
use xact_types::{Error, Site};

/// A volume with ten files.
fn volume(size_bytes: u64, options: &[&str]) -> Image {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..10 {
        std::fs::write(folder.path().join(format!("file-{n}")), vec![n as u8; 5000]).unwrap();
    }
    let options = [options, &["-N", "512", "-d", folder.path().to_str().unwrap()]].concat();
    Image::mke2fs(size_bytes, &options)
}

fn check(image: &Image) -> Result<Report, Error> {
    let device = Arc::new(FileDevice::open(&image.path, OpenMode::ReadOnly).unwrap());
    xact_check::check(device, &mut |_, _| ())
}

fn wipe(image: &Image, from: u64, len: u64) {
    let file = File::options().write(true).open(&image.path).unwrap();
    file.write_all_at(&vec![0; len as usize], from).unwrap();
}

/// The report of a damaged volume, on which all files are found.
fn report_of_all_files(image: &Image) -> Report {
    let report = check(image).unwrap();
    assert_eq!(report.totals.files, 10, "{:?}", report.problems);
    report
}

#[test]
fn a_copy_of_the_superblock() {
    const MIB: u64 = 1 << 20;
    for (size, options) in [
        (24 * MIB, &["-b", "1024"][..]),
        (40 * MIB, &["-b", "2048"]),
        (136 * MIB, &["-b", "4096"]),
        (24 * MIB, &["-b", "1024", "-O", "sparse_super2,^resize_inode"]),
        (24 * MIB, &["-b", "1024", "-O", "meta_bg,^resize_inode"]),
        (24 * MIB, &["-b", "1024", "-O", "^sparse_super,^metadata_csum,^resize_inode"]),
        (24 * MIB, &["-b", "1024", "-O", "^has_journal"]),
    ] {
        let image = volume(size, options);
        assert!(check(&image).unwrap().is_sound(), "{options:?}");
        wipe(&image, SUPERBLOCK_OFFSET, 1024);
        let report = report_of_all_files(&image);
        let first = report.problems[0].to_string();
        assert!(first.contains("no magic number") && first.ends_with("by its copy in group 1"), "{first}");
        // All others are counts, which the copy has as they were when the volume was made.
        let others = report.problems.iter().skip(1).filter(|problem| !problem.what.starts_with("counts "));
        assert_eq!(others.count(), 0, "{options:?}: {:?}", report.problems);
    }
}

/// The rest of a damaged superblock says how large the groups are. With nothing wrong but the
/// checksum, it is better than an old copy.
#[test]
fn a_superblock_with_a_wrong_checksum() {
    let image = volume(16 << 20, &["-b", "1024", "-g", "2048", "-O", "metadata_csum"]);
    let file = File::options().write(true).open(&image.path).unwrap();
    file.write_all_at(b"damaged", SUPERBLOCK_OFFSET + 0x78).unwrap();
    let problems = report_of_all_files(&image).problems;
    assert_eq!(problems[0].to_string(), "superblock: checksum does not match; checked as it is");
    assert_eq!(problems.len(), 1, "{problems:?}");
    // The number of inodes per group.
    file.write_all_at(&[7], SUPERBLOCK_OFFSET + 0x28).unwrap();
    let first = report_of_all_files(&image).problems[0].to_string();
    assert_eq!(first, "superblock: checksum does not match; checked by its copy in group 1");
}

#[test]
fn copies_of_the_group_descriptors() {
    for options in [&["-b", "1024"][..], &["-b", "1024", "-O", "meta_bg,^resize_inode"]] {
        let image = volume(24 << 20, options);
        // The superblock and the descriptors of all groups.
        wipe(&image, SUPERBLOCK_OFFSET, 2048);
        let report = report_of_all_files(&image);
        let of_groups = report.problems.iter().filter(|problem| {
            matches!(problem.site, Site::Group(_)) && problem.what.contains("checked by its copy in block")
        });
        assert_eq!(of_groups.count(), 3, "{options:?}: {:?}", report.problems);
        // One descriptor alone.
        let image = volume(24 << 20, options);
        let file = File::options().write(true).open(&image.path).unwrap();
        file.write_all_at(&[0xFF; 4], 2048 + 64 + 8).unwrap();
        let report = report_of_all_files(&image);
        let first = report.problems[0].to_string();
        assert!(
            first.starts_with("descriptor of group 1: places its bitmaps or inode table wrong"),
            "{first}"
        );
    }
}

#[test]
fn without_a_copy_the_superblock_is_all_that_is_reported() {
    let image = volume(8 << 20, &["-b", "1024"]);
    wipe(&image, SUPERBLOCK_OFFSET, 1024);
    let error = check(&image).unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error}");
    let image = volume(24 << 20, &["-b", "1024", "-g", "4096"]);
    wipe(&image, SUPERBLOCK_OFFSET, 1024);
    check(&image).unwrap_err();
}

/// A volume in a file has copies as well, and they are not where they say.
#[test]
fn a_copy_of_another_volume_is_not_taken() {
    let inner = volume(24 << 20, &["-b", "1024"]);
    let outer = Image::empty(64 << 20);
    let bytes = std::fs::read(&inner.path).unwrap();
    let file = File::options().write(true).open(&outer.path).unwrap();
    file.write_all_at(&bytes, 8 << 20).unwrap();
    let error = check(&outer).unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error}");
}

#[test]
fn a_damaged_journal() {
    let image = volume(16 << 20, &["-b", "1024", "-J", "size=1"]);
    let debugfs = |request: &str| tool("debugfs", &["-w", "-R", request, image.path_str()], |code| code == 0);
    debugfs("set_inode_field /file-3 links_count 9");
    assert_eq!(report_of_all_files(&image).problem_count, 1);
    let text = debugfs("bmap <8> 0");
    let block: u64 = text.lines().find_map(|line| line.trim().parse().ok()).unwrap();
    wipe(&image, block * 1024, 1024);
    let report = report_of_all_files(&image);
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert!(
        problems[0].starts_with("journal superblock: has no magic number; checked without"),
        "{problems:?}"
    );
    assert!(problems[1].ends_with("counts 9 links and has 1"), "{problems:?}");
    assert_eq!(problems.len(), 2, "{problems:?}");
}
