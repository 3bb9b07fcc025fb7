//! Agreement with e2fsck: every block in use of a small volume is overwritten in turn with zeros,
//! ones, noise and another block's content, and both programs report whether the volume is sound.
//! Needs root and loop devices.

#[path = "../../fs/tests/common/mod.rs"]
mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

use common::mount::Mount;
use common::{Image, tool};
use xact_check::Report;
use xact_device::{FileDevice, MemoryDevice, OpenMode};
use xact_layout::superblock::{SUPERBLOCK_BYTES, Superblock};
use xact_types::Error;

/// xact's report: `Err` for a volume that cannot be checked.
fn verdict(image: &Image) -> Result<Report, Error> {
    let device = Arc::new(FileDevice::open(&image.path, OpenMode::ReadOnly).unwrap());
    xact_check::check(device, &mut |_, _| ())
}

/// Whether e2fsck has no correction and no remark, and its output.
fn e2fsck(image: &Image) -> (bool, String) {
    let output = Command::new("e2fsck")
        .args(["-fn", "-E", "no_optimize_extents", image.path_str()])
        .env("LC_ALL", "C")
        .output()
        .expect("e2fsck is needed for this test");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let remarks: Vec<&str> = text
        .lines()
        .filter(|line| {
            !(line.starts_with("e2fsck ")
                || line.starts_with("Pass ")
                || line.contains(" files (")
                || line.trim().is_empty())
        })
        .collect();
    (output.status.code() == Some(0) && remarks.is_empty(), remarks[..remarks.len().min(4)].join(" | "))
}

/// A volume with one of everything.
fn populated(options: &[&str]) -> Image {
    let mut all = vec!["-E", "lazy_itable_init=0,lazy_journal_init=0", "-N", "512"];
    all.extend(options);
    let image = Image::mke2fs(12 << 20, &all);
    let mount = Mount::new(&image);
    let root = |name: &str| mount.path(name);
    std::fs::create_dir(root("linear")).unwrap();
    for n in 0..12 {
        std::fs::write(root(&format!("linear/file-{n}")), vec![n as u8; 700 * n]).unwrap();
    }
    std::fs::create_dir(root("indexed")).unwrap();
    let first = root("indexed/0");
    std::fs::write(&first, b"contents").unwrap();
    for n in 1..250 {
        let name = format!("indexed/{n}-a-name-of-some-length-to-fill-blocks");
        std::fs::hard_link(&first, root(&name)).unwrap();
    }
    let sparse = File::create(root("fragments")).unwrap();
    for n in 0..150u64 {
        sparse.write_all_at(&[n as u8; 100], n * 3 * 4096).unwrap();
    }
    std::fs::create_dir_all(root("a/b/c/d")).unwrap();
    std::os::unix::fs::symlink("x".repeat(200), root("slow-link")).unwrap();
    std::os::unix::fs::symlink("short", root("fast-link")).unwrap();
    for name in ["linear/file-1", "linear/file-2", "a"] {
        let path = root(name);
        let value = "v".repeat(400);
        tool("setfattr", &["-n", "user.large", "-v", &value, path.to_str().unwrap()], |code| code == 0);
    }
    if image.superblock().has_incompat(xact_layout::feature::incompat::EA_INODE) {
        // One value of each file, and one that all share. Not on a link with its target in the
        // inode, which e2fsck 1.47.0 then takes for block numbers.
        let shared = "s".repeat(9000);
        for name in ["linear/file-3", "linear/file-4", "linear/file-5", "slow-link", "a/b"] {
            let path = root(name);
            for (attribute, value) in [("trusted.shared", &shared), ("trusted.own", &name.repeat(500))] {
                let arguments = ["-h", "-n", attribute, "-v", value, path.to_str().unwrap()];
                tool("setfattr", &arguments, |code| code == 0);
            }
        }
    }
    tool("mkfifo", &[root("fifo").to_str().unwrap()], |code| code == 0);
    tool("mknod", &[root("null").to_str().unwrap(), "c", "1", "3"], |code| code == 0);
    drop(sparse);
    mount.unmount();
    image
}

/// The blocks in use, except for the inside of the log, whose first blocks stand for all.
fn used_blocks(image: &Image) -> Vec<u64> {
    let sb = image.superblock();
    let text = tool("dumpe2fs", &[image.path_str()], |code| code == 0);
    let mut free = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
        for part in line.split(", ").filter(|part| !part.is_empty()) {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            free.push(from.parse::<u64>().unwrap()..=to.parse::<u64>().unwrap());
        }
    }
    let log: Vec<u64> = tool("debugfs", &["-R", "blocks <8>", image.path_str()], |code| code == 0)
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let inside: std::collections::BTreeSet<u64> = log.iter().skip(4).copied().collect();
    (u64::from(sb.first_data_block())..sb.blocks_count())
        .filter(|block| !free.iter().any(|range| range.contains(block)) && !inside.contains(block))
        .collect()
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

fn overwrite_volume(name: &str, options: &[&str], every: usize) {
    let image = populated(options);
    let blocks = used_blocks(&image);
    overwrite_blocks(name, &image, &blocks, every);
}

fn overwrite_blocks(name: &str, image: &Image, blocks: &[u64], every: usize) {
    let (sound, said) = e2fsck(image);
    assert!(sound, "{name}: e2fsck on the volume as it was made: {said}");
    let report = verdict(image).unwrap();
    assert!(report.is_sound(), "{name}: {:?}", report.problems);

    let block_size = image.superblock().block_size() as usize;
    let file = File::options().read(true).write(true).open(&image.path).unwrap();
    let read = |block: u64| {
        let mut bytes = vec![0; block_size];
        file.read_exact_at(&mut bytes, block * block_size as u64).unwrap();
        bytes
    };
    let (mut tried, mut damaged, mut differ) = (0, 0, Vec::new());
    for (at, &block) in blocks.iter().enumerate().step_by(every) {
        let original = read(block);
        let other = read(blocks[(at * 7 + 11) % blocks.len()]);
        let patterns = [
            ("zeros", vec![0; block_size]),
            ("ones", vec![0xFF; block_size]),
            ("noise", noise(block_size, block)),
            ("another block", other),
        ];
        for (pattern, bytes) in patterns {
            if bytes == original {
                continue;
            }
            file.write_all_at(&bytes, block * block_size as u64).unwrap();
            let ours = verdict(image);
            let (theirs, said) = e2fsck(image);
            let sound = ours.as_ref().is_ok_and(Report::is_sound);
            tried += 1;
            damaged += u32::from(!theirs);
            if sound != theirs {
                let problems = ours.map(|report| report.problems);
                differ.push(format!("block {block}, {pattern}: xact says {problems:?}, e2fsck {said}"));
            }
        }
        file.write_all_at(&original, block * block_size as u64).unwrap();
    }
    println!("{name}: {tried} images, {damaged} of them damaged, {} verdicts differ", differ.len());
    for line in differ.iter().take(15) {
        println!("  {}", line.chars().take(400).collect::<String>());
    }
    assert!(damaged > tried / 10, "{name}: the sweep damaged little");
    assert!(differ.is_empty(), "{name}: {} of {tried} verdicts differ from e2fsck's", differ.len());
}

#[test]
fn volumes_with_checksums() {
    overwrite_volume("1 KiB", &["-b", "1024", "-J", "size=1"], 1);
    overwrite_volume("4 KiB", &["-b", "4096", "-J", "size=4"], 1);
}

#[test]
fn volumes_without_checksums() {
    overwrite_volume("no sums", &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"], 1);
    overwrite_volume(
        "ext3",
        &["-b", "1024", "-J", "size=1", "-O", "^extents,^metadata_csum,^64bit,^flex_bg"],
        1,
    );
}

#[test]
fn newer_features() {
    let features = "orphan_file,metadata_csum_seed,inline_data,large_dir";
    overwrite_volume("new", &["-b", "1024", "-J", "size=1", "-O", features], 2);
    overwrite_volume("values in inodes", &["-b", "1024", "-J", "size=1", "-O", "ea_inode"], 3);
    overwrite_volume(
        "meta_bg",
        &["-b", "1024", "-J", "size=1", "-O", "meta_bg,^resize_inode,mmp", "-g", "1024"],
        3,
    );
}

/// The kernel may not support quota files, so tune2fs makes and fills them.
#[test]
fn quota_files() {
    for block_size in ["1024", "4096"] {
        let image = populated(&["-b", block_size, "-I", "256"]);
        tool(
            "tune2fs",
            &["-O", "project,quota", "-Q", "usrquota,grpquota,prjquota", image.path_str()],
            |code| code == 0,
        );
        let sb = image.superblock();
        let mut blocks = Vec::new();
        for ino in [sb.usr_quota_inum(), sb.grp_quota_inum(), sb.prj_quota_inum()] {
            assert_ne!(ino, 0);
            let request = format!("blocks <{ino}>");
            let text = tool("debugfs", &["-R", &request, image.path_str()], |code| code == 0);
            blocks.extend(text.split_whitespace().filter_map(|word| word.parse::<u64>().ok()));
        }
        overwrite_blocks(&format!("quota files, {block_size}"), &image, &blocks, 1);
    }
}

#[test]
fn volumes_that_are_sound() {
    for options in [
        &["-b", "1024", "-O", "^has_journal"][..],
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
        &["-b", "1024", "-O", "^extents,^metadata_csum,^64bit,^flex_bg"],
        &["-b", "1024", "-O", "^metadata_csum,uninit_bg", "-I", "128"],
        &["-b", "2048", "-O", "sparse_super2,^resize_inode"],
        &["-b", "1024", "-O", "ea_inode,^dir_index"],
        &["-b", "1024", "-O", "^filetype,^sparse_super,^resize_inode"],
    ] {
        let image = populated(options);
        let (sound, said) = e2fsck(&image);
        assert!(sound, "{options:?}: {said}");
        let report = verdict(&image).unwrap();
        assert!(report.is_sound(), "{options:?}: {:?}", report.problems);
        assert_eq!(report.totals.symlinks, 2);
    }
}

/// The device is never written, not even to replay a log.
#[test]
fn a_dirty_log_is_replayed_in_memory() {
    let image = Image::mke2fs(16 << 20, &["-b", "1024", "-J", "size=1"]);
    let mount = Mount::new(&image);
    for n in 0..50 {
        std::fs::write(mount.path(&format!("file {n}")), vec![7; 3000]).unwrap();
    }
    File::open(mount.path(".")).unwrap().sync_all().unwrap();
    let bytes = std::fs::read(&image.path).unwrap();
    mount.unmount();
    let device = Arc::new(MemoryDevice::from_bytes(bytes.clone()));
    let report = xact_check::check(device.clone(), &mut |_, _| ()).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    assert!(report.remarks.iter().any(|remark| remark.contains("journal holds")), "{:?}", report.remarks);
    assert!(report.totals.files >= 50);
    let mut after = vec![0; bytes.len()];
    xact_device::BlockDevice::read_at(&*device, &mut after, 0).unwrap();
    assert!(after == bytes, "the check wrote to the device");
}

/// Files that were deleted while open, on a volume as a crash leaves it, wait for their deletion,
/// and are not a problem.
#[test]
fn orphans_of_a_crash_are_not_a_problem() {
    for feature in ["orphan_file", "^orphan_file"] {
        let image = Image::mke2fs(16 << 20, &["-b", "1024", "-J", "size=1", "-O", feature]);
        let mount = Mount::new(&image);
        let open = ["one", "other"].map(|name| {
            std::fs::write(mount.path(name), vec![7; 300_000]).unwrap();
            let file = File::open(mount.path(name)).unwrap();
            std::fs::remove_file(mount.path(name)).unwrap();
            file
        });
        File::open(mount.path(".")).unwrap().sync_all().unwrap();
        let bytes = std::fs::read(&image.path).unwrap();
        drop(open);
        mount.unmount();
        let report = xact_check::check(Arc::new(MemoryDevice::from_bytes(bytes)), &mut |_, _| ()).unwrap();
        assert!(report.is_sound(), "{feature}: {:?}", report.problems);
        let expected = "2 inodes wait for their deletion";
        assert!(report.remarks.iter().any(|remark| remark.contains(expected)), "{:?}", report.remarks);
    }
}

/// The inodes on the list must exist, after a crash as well.
#[test]
fn an_orphan_list_that_leads_nowhere_is_a_problem() {
    let options = ["-b", "1024", "-J", "size=1", "-O", "^orphan_file,^metadata_csum"];
    let image = Image::mke2fs(16 << 20, &options);
    let mount = Mount::new(&image);
    std::fs::write(mount.path("file"), vec![7; 3000]).unwrap();
    File::open(mount.path(".")).unwrap().sync_all().unwrap();
    let mut bytes = std::fs::read(&image.path).unwrap();
    mount.unmount();
    // The log has a copy, which a replay restores.
    for block in bytes.chunks_exact_mut(SUPERBLOCK_BYTES) {
        let block: &mut [u8; SUPERBLOCK_BYTES] = block.try_into().unwrap();
        if let Ok(mut sb) = Superblock::decode(block) {
            sb.set_last_orphan(sb.inodes_count() + 7);
            *block = *sb.as_bytes();
        }
    }
    let report = xact_check::check(Arc::new(MemoryDevice::from_bytes(bytes)), &mut |_, _| ()).unwrap();
    assert!(report.is_replayed);
    let expected = "which is not an inode of this volume";
    assert!(
        report.problems.iter().any(|problem| problem.to_string().contains(expected)),
        "{:?}",
        report.problems
    );
}

#[test]
fn a_wrong_count_of_users_of_a_value() {
    let image = populated(&["-b", "1024", "-J", "size=1", "-O", "ea_inode"]);
    let debugfs = |request: &str| tool("debugfs", &["-w", "-R", request, image.path_str()], |code| code == 0);
    let values: Vec<u32> =
        (11..100).filter(|ino| debugfs(&format!("stat <{ino}>")).contains("Flags: 0x280000")).collect();
    assert_eq!(values.len(), 6, "five values of their own and one that is shared: {values:?}");
    assert!(verdict(&image).unwrap().is_sound());
    debugfs(&format!("set_inode_field <{}> version 7", values[0]));
    let (sound, said) = e2fsck(&image);
    assert!(!sound && said.contains("ref count"), "{said}");
    let problems = verdict(&image).unwrap().problems;
    assert!(problems.iter().any(|problem| problem.to_string().contains("and counts 7")), "{problems:?}");
}
