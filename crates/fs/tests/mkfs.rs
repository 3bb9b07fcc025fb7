//! Volumes of `mkfs` are clean for e2fsck, have the sizes and counts of mke2fs, and are mounted and
//! filled by the kernel.

mod common;

use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::Image;
use xact_device::MemoryDevice;
use xact_fs::mkfs::{JournalSize, MkfsOptions, MkfsReport, mkfs};
use xact_types::Error;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn make(size_bytes: u64, options: &MkfsOptions) -> (Image, MkfsReport) {
    let image = Image::empty(size_bytes);
    let report = mkfs(&*image.device(), options).unwrap();
    (image, report)
}

/// Options for a sparse file, which reads as zeros.
fn sparse() -> MkfsOptions {
    MkfsOptions { zeroed: true, ..MkfsOptions::default() }
}

#[test]
fn volumes_of_any_size_and_block_size_are_clean_for_e2fsck() {
    let sizes = [
        64 * KIB,
        700 * KIB,
        2 * MIB,
        3 * MIB + 5 * KIB,
        8 * MIB + KIB,
        16 * MIB + 300 * KIB,
        100 * MIB,
        300 * MIB,
        600 * MIB,
        GIB + MIB,
        5 * GIB + 3 * MIB,
        70 * GIB,
    ];
    for size in sizes {
        for block_size in [None, Some(1024), Some(2048), Some(4096)] {
            if size > 10 * GIB && block_size.is_some_and(|size| size < 4096) {
                continue; // e2fsck takes minutes over hundreds of thousands of groups.
            }
            if size < 512 * KIB && block_size.is_some_and(|size| size > 1024) {
                continue; // Too small for them.
            }
            let (image, report) = make(size, &MkfsOptions { block_size, ..sparse() });
            assert!(report.blocks * u64::from(report.block_size) <= size);
            image.assert_clean();
        }
    }
}

/// e2fsck reads the time of the last clock tick, and the exact clock is ahead of it.
#[test]
fn a_volume_made_at_the_start_of_a_second_has_no_future_times() {
    for _ in 0..3 {
        let part = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
        thread::sleep(Duration::from_nanos(1_000_000_000 - u64::from(part)));
        let (image, _) = make(2 * MIB, &sparse());
        image.assert_clean();
    }
}

#[test]
fn a_sparse_tebibyte_is_made_with_little_io() {
    let (image, report) = make(1 << 40, &sparse());
    assert_eq!(report.blocks, 1 << 28);
    assert_eq!(report.journal_blocks, 262_144);
    let stat = Command::new("stat").args(["-c", "%b", image.path_str()]).output().unwrap();
    let sectors: u64 = String::from_utf8(stat.stdout).unwrap().trim().parse().unwrap();
    assert!(sectors * 512 < 64 * MIB, "{} bytes were written", sectors * 512);
    image.assert_clean();
}

#[test]
fn options_change_the_volume_as_documented() {
    let all = [
        MkfsOptions { csum_seed: false, orphan_file: false, ..sparse() },
        MkfsOptions { inode_size: 128, ..sparse() },
        MkfsOptions { inode_size: 1024, inode_ratio: Some(65536), ..sparse() },
        MkfsOptions { inode_ratio: Some(1024), block_size: Some(1024), ..sparse() },
        MkfsOptions { journal: JournalSize::None, ..sparse() },
        MkfsOptions { journal: JournalSize::Blocks(5000), block_size: Some(1024), ..sparse() },
        MkfsOptions { journal: JournalSize::Bytes(8 * MIB), block_size: Some(1024), ..sparse() },
        MkfsOptions { reserved_percent: 0, label: "sixteen letters!".into(), ..sparse() },
    ];
    for options in all {
        let (image, report) = make(200 * MIB, &options);
        image.assert_clean();
        let sb = image.superblock();
        assert_eq!(sb.volume_name(), options.label.as_bytes());
        assert_eq!(sb.inode_size(), options.inode_size);
        assert_eq!(sb.uuid(), report.uuid);
        match options.journal {
            JournalSize::None => {
                assert_eq!(report.journal_blocks, 0);
                kernel_fills(&image);
                image.assert_clean();
            }
            JournalSize::Blocks(count) => assert_eq!(report.journal_blocks, count),
            JournalSize::Bytes(bytes) => {
                assert_eq!(u64::from(report.journal_blocks) * u64::from(sb.block_size()), bytes);
            }
            JournalSize::Default => assert_eq!(report.journal_blocks, 4096),
        }
    }
    let uuid = *b"0123456789abcdef";
    let (image, _) = make(20 * MIB, &MkfsOptions { uuid: Some(uuid), ..sparse() });
    assert_eq!(image.superblock().uuid(), uuid);
    image.assert_clean();
}

#[test]
fn old_contents_of_the_device_have_no_effect() {
    for block_size in [1024, 4096] {
        let image = Image::empty(48 * MIB);
        image.device().write_at(&vec![0xA5; 48 << 20], 0).unwrap();
        mkfs(&*image.device(), &MkfsOptions { block_size: Some(block_size), ..MkfsOptions::default() })
            .unwrap();
        image.assert_clean();
        kernel_fills(&image);
        image.assert_clean();
    }
}

/// The lines of `dumpe2fs -h` that are the same in every run.
fn dump(image: &Image) -> Vec<String> {
    let by_chance = [
        "Filesystem UUID",
        "Filesystem created",
        "Last write time",
        "Last checked",
        "Directory Hash Seed",
        "Checksum",
        "Lifetime writes",
    ];
    common::tool("dumpe2fs", &["-h", image.path_str()], |code| code == 0)
        .lines()
        .filter(|line| !by_chance.iter().any(|start| line.starts_with(start)))
        .map(str::to_string)
        .collect()
}

#[test]
fn numbers_are_those_of_mke2fs() {
    let old = MkfsOptions { csum_seed: false, orphan_file: false, ..sparse() };
    for (options, features) in
        [(&sparse(), "metadata_csum_seed,orphan_file"), (&old, "^metadata_csum_seed,^orphan_file")]
    {
        for size in [
            2 * MIB,
            5 * MIB + 7 * KIB,
            64 * MIB,
            257 * MIB + KIB,
            511 * MIB,
            512 * MIB,
            GIB,
            3 * GIB + 11 * MIB,
            9 * GIB,
            40 * GIB,
            200 * GIB,
        ] {
            let (ours, _) = make(size, options);
            let theirs = Image::mke2fs(size, &["-O", features]);
            assert_eq!(dump(&ours), dump(&theirs), "{size} bytes");
        }
    }
}

/// Mounts the image with the kernel, writes files, and unmounts.
fn kernel_fills(image: &Image) {
    let mount = image.dir.path().join("mnt");
    std::fs::create_dir_all(&mount).unwrap();
    let run = |script: String| {
        let output = Command::new("sh").args(["-ec", &script]).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let (path, at) = (image.path_str(), mount.to_str().unwrap());
    // The mount is in a namespace of its own, which always ends with the shell.
    let work = format!(
        "mount --make-rprivate /; mount -o loop {path} {at}; cd {at}; \
         mkdir -p a/b/c; for i in $(seq 300); do echo $i > a/b/file$i; done; \
         dd if=/dev/zero of=big bs=64k count=200 status=none; rm a/b/file1*; sync; \
         cd /; umount {at}"
    );
    run(format!("unshare -m sh -ec '{work}'"));
}

#[test]
fn the_kernel_mounts_and_fills_it() {
    for (size, block_size) in
        [(32 * MIB, None), (100 * MIB, Some(2048)), (600 * MIB, None), (3 * GIB, Some(1024)), (1 << 40, None)]
    {
        let (image, _) = make(size, &MkfsOptions { block_size, ..sparse() });
        kernel_fills(&image);
        image.assert_clean();
    }
}

#[test]
fn impossible_options_are_refused_before_anything_is_written() {
    let refused = |size: u64, options: MkfsOptions, why: &str| {
        let device = MemoryDevice::from_bytes(vec![7; size as usize]);
        match mkfs(&device, &options) {
            Err(Error::Usage(text)) => assert!(text.contains(why), "{text}"),
            other => panic!("{why}: {other:?}"),
        }
        assert!(device.to_bytes().iter().all(|byte| *byte == 7), "{why}");
    };
    refused(0, sparse(), "too small");
    refused(1024, sparse(), "too small");
    refused(40 * KIB, sparse(), "too small");
    refused(4 * MIB, MkfsOptions { block_size: Some(8192), ..sparse() }, "block size");
    refused(4 * MIB, MkfsOptions { block_size: Some(3000), ..sparse() }, "block size");
    refused(4 * MIB, MkfsOptions { inode_size: 2048, block_size: Some(1024), ..sparse() }, "inode size");
    refused(4 * MIB, MkfsOptions { inode_size: 200, ..sparse() }, "inode size");
    refused(4 * MIB, MkfsOptions { inode_ratio: Some(5), ..sparse() }, "one inode");
    refused(4 * MIB, MkfsOptions { reserved_percent: 60, ..sparse() }, "50 percent");
    refused(4 * MIB, MkfsOptions { label: "x".repeat(17), ..sparse() }, "16 bytes");
    refused(4 * MIB, MkfsOptions { journal: JournalSize::Blocks(1000), ..sparse() }, "1024 to");
    refused(4 * MIB, MkfsOptions { journal: JournalSize::Blocks(3000), ..sparse() }, "half");
}

#[test]
fn resize2fs_grows_and_shrinks_it() {
    for block_size in [1024, 4096] {
        let (image, _) = make(64 * MIB, &MkfsOptions { block_size: Some(block_size), ..sparse() });
        kernel_fills(&image);
        for size in ["900M", "50M"] {
            common::tool("e2fsck", &["-fp", image.path_str()], |code| code == 0);
            common::tool("resize2fs", &[image.path_str(), size], |code| code == 0);
            image.assert_clean();
        }
    }
}
