//! Logs of the kernel replayed by us, and our logs replayed by the kernel, debugfs and e2fsck, with
//! the same bytes as result. Needs root, loop devices and e2fsprogs.

mod common;
#[path = "common/ledger.rs"]
mod ledger;
#[path = "common/mount.rs"]
mod mount;

use std::path::Path;
use std::sync::Arc;

use common::{Image, open, quiet, run};
use ledger::{Place, Workload};
use mount::Mount;
use xact_consistency::{Engine, EngineOptions, RecoveryReport, open_journal, recover};
use xact_device::MemoryDevice;

/// Fields of the ext4 superblock that a replay may set freely, as (offset, length): the checksum,
/// times, counts of mounts, kilobytes written, and the free counts, which the kernel recomputes.
const STATISTICS: [(usize, usize); 9] =
    [(0x0C, 4), (0x10, 4), (0x2C, 8), (0x34, 2), (0x40, 4), (0x158, 4), (0x178, 8), (0x274, 8), (0x3FC, 4)];

/// A volume's bytes without those that may differ between two replays. The kernel also sets the
/// journal's checksum features by its mount options.
fn comparable(image: &Image, by_kernel: bool) -> Vec<u8> {
    let mut bytes = image.bytes();
    for (at, len) in STATISTICS {
        bytes[1024 + at..1024 + at + len].fill(0);
    }
    let block_size = 1024usize << u32::from_le_bytes(bytes[1048..1052].try_into().unwrap());
    let journal: usize = image.debugfs("bmap <8> 0").parse().expect("where the journal is");
    let at = journal * block_size;
    // s_head, and the checksum over it.
    bytes[at + 88..at + 92].fill(0);
    bytes[at + 252..at + 256].fill(0);
    if by_kernel {
        bytes[at + 36..at + 44].fill(0);
    }
    bytes
}

fn assert_same(what: &str, ours: &Image, theirs: &Image) {
    let by_kernel = what.contains("kernel");
    let (a, b) = (comparable(ours, by_kernel), comparable(theirs, by_kernel));
    let differ: Vec<usize> = (0..a.len()).filter(|&i| a[i] != b[i]).take(20).collect();
    assert!(differ.is_empty(), "{what}: bytes differ at {differ:x?}");
}

fn replay_by_us(image: &Image) -> RecoveryReport {
    recover(&image.device(), &EngineOptions::default()).expect("a recovery")
}

/// A read-only mount replays, and changes little else.
fn replay_by_the_kernel(image: &Image) {
    drop(Mount::new(&image.path, image.folder(), "ro"));
}

/// Our replay, compared with debugfs's.
fn replay_like_debugfs(what: &str, dirty: &Image) -> (Image, RecoveryReport) {
    let ours = dirty.copy();
    let report = replay_by_us(&ours);
    assert!(report.replayed, "{what}: there was nothing to replay");
    let debugfs = dirty.copy();
    debugfs.debugfs_replay();
    assert_same(&format!("{what}, against debugfs"), &ours, &debugfs);
    (ours, report)
}

fn replays_agree(what: &str, dirty: &Image) -> RecoveryReport {
    let (ours, report) = replay_like_debugfs(what, dirty);
    let kernel = dirty.copy();
    replay_by_the_kernel(&kernel);
    assert_same(&format!("{what}, against the kernel"), &ours, &kernel);
    ours.fsck();
    let again = replay_by_us(&ours);
    assert!(!again.replayed);
    report
}

/// Works on a mounted volume and leaves its log full: some changes synced, some not, and many
/// blocks freed and reused.
fn work(root: &Path) {
    for round in 0..3 {
        for folder in 0..12 {
            let folder = root.join(format!("folder-{round}-{folder}"));
            std::fs::create_dir(&folder).unwrap();
            for file in 0..12 {
                let contents = vec![(round * 16 + file) as u8; 1500 * file];
                std::fs::write(folder.join(format!("a file with the number {file}")), contents).unwrap();
            }
        }
        run("sync", &["-f", root.to_str().unwrap()]);
        for folder in (0..12).step_by(2) {
            std::fs::remove_dir_all(root.join(format!("folder-{round}-{folder}"))).unwrap();
        }
        run("sync", &["-f", root.to_str().unwrap()]);
        // Data that begins like a block of the journal: journaled with data=journal.
        let mut magic = vec![0x77; 9000];
        magic[..4].copy_from_slice(&0xc03b_3998u32.to_be_bytes());
        magic[8192..8196].copy_from_slice(&0xc03b_3998u32.to_be_bytes());
        let path = root.join(format!("magic {round}"));
        std::fs::write(&path, magic).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
    }
    std::fs::write(root.join("not synced"), b"soon gone").unwrap();
}

/// A volume as a crash of the kernel would leave it.
fn left_by_the_kernel(mke2fs: &[&str], options: &str) -> Image {
    let image = Image::make(24, mke2fs);
    let options = format!("commit=600,{options}");
    let mount = Mount::new(&image.path, image.folder(), &options);
    work(&mount.path);
    let dirty = image.copy();
    drop(mount);
    dirty
}

#[test]
fn logs_of_the_kernel() {
    let small = ["-t", "ext4", "-b", "1024", "-J", "size=2"];
    let cases: [(&str, &[&str], &str); 14] = [
        ("v3, 4 KiB", &["-t", "ext4", "-b", "4096", "-J", "size=8"], "data=ordered"),
        ("v3, 1 KiB", &small, "data=ordered"),
        ("v3, data in the journal", &["-t", "ext4", "-b", "4096", "-J", "size=8"], "data=journal"),
        ("v3, 1 KiB, data in the journal", &small, "data=journal"),
        ("v3, async commit", &small, "data=writeback,journal_async_commit"),
        (
            "no checksums",
            &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-J", "size=2"],
            "data=journal",
        ),
        (
            "no checksums, 32 bits",
            &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit", "-J", "size=2"],
            "data=journal",
        ),
        (
            "v1, async commit",
            &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-J", "size=2"],
            "data=writeback,journal_checksum,journal_async_commit",
        ),
        ("ext3: a mapped journal", &["-t", "ext3", "-b", "1024", "-J", "size=2"], "data=journal"),
        ("v3, 32 bits", &["-t", "ext4", "-b", "1024", "-O", "^64bit", "-J", "size=2"], "data=ordered"),
        (
            "v1, two steps",
            &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-J", "size=2"],
            "data=ordered,journal_checksum",
        ),
        ("inline data", &["-t", "ext4", "-b", "1024", "-O", "inline_data", "-J", "size=2"], "data=ordered"),
        ("a stable seed", &["-t", "ext4", "-O", "metadata_csum_seed", "-J", "size=4"], "data=journal"),
        (
            "group checksums of old",
            &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg", "-J", "size=2"],
            "data=ordered",
        ),
    ];
    for (what, mke2fs, options) in cases {
        let dirty = left_by_the_kernel(mke2fs, options);
        let report = replays_agree(what, &dirty);
        println!("{what}: {report:?}");
        assert!(report.transactions > 1 && report.copies > 20, "{what}: a log that shows little: {report:?}");
        if options == "data=ordered" {
            assert!(report.revoked_copies > 0, "{what}: the kernel revoked nothing: {report:?}");
        }
    }
}

/// debugfs also updates the copies of descriptors, so only the kernel can be compared.
#[test]
fn logs_of_the_kernel_with_meta_block_groups() {
    let mke2fs = ["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode", "-J", "size=2"];
    let dirty = left_by_the_kernel(&mke2fs, "data=ordered");
    let (ours, kernel) = (dirty.copy(), dirty.copy());
    assert!(replay_by_us(&ours).replayed);
    replay_by_the_kernel(&kernel);
    assert_same("meta_bg, against the kernel", &ours, &kernel);
    ours.fsck();
}

/// Hundreds of deleted files that a process holds open: a long orphan list, or a full orphan file
/// and a list after it. A kernel mount would clean up at once, so only debugfs can compare.
#[test]
fn logs_of_the_kernel_with_deep_orphan_lists() {
    for (what, features) in [("list", "^orphan_file"), ("orphan file", "orphan_file")] {
        let image = Image::make(24, &["-t", "ext4", "-b", "1024", "-O", features, "-J", "size=4"]);
        let mount = Mount::new(&image.path, image.folder(), "commit=600");
        let mut held = Vec::new();
        for n in 0..400 {
            let path = mount.path.join(format!("held {n}"));
            std::fs::write(&path, vec![n as u8; 40 * n]).unwrap();
            held.push(std::fs::File::open(&path).unwrap());
        }
        run("sync", &["-f", mount.path.to_str().unwrap()]);
        for n in 0..400 {
            std::fs::remove_file(mount.path.join(format!("held {n}"))).unwrap();
        }
        run("sync", &["-f", mount.path.to_str().unwrap()]);
        let dirty = image.copy();
        drop(held);
        drop(mount);
        let (ours, report) = replay_like_debugfs(what, &dirty);
        println!("{what}: {report:?}");
        // The next program that opens the volume cleans up the orphans; nothing else is left to do.
        let status = common::try_run("e2fsck", &["-fp", ours.str()]).status.code();
        assert!(matches!(status, Some(0 | 1)), "{what}: e2fsck says {status:?}");
        ours.fsck();
    }
}

/// A log that has wrapped around its ring many times, and starts at any position.
#[test]
fn logs_of_the_kernel_that_wrap_around() {
    let mut wrapped = 0;
    for rounds in [5, 6, 7, 8] {
        let image = Image::make(24, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
        let mount = Mount::new(&image.path, image.folder(), "commit=600");
        for round in 0..rounds {
            for n in 0..60 {
                let folder = mount.path.join(format!("{round}-{n}"));
                std::fs::create_dir(&folder).unwrap();
                std::fs::write(folder.join("file"), b"contents").unwrap();
                if n % 6 == 0 {
                    std::fs::File::open(&folder).unwrap().sync_all().unwrap();
                }
            }
        }
        let dirty = image.copy();
        drop(mount);
        let report = replays_agree("wrap-around", &dirty);
        // Each transaction has some copies; the ring has 1024 blocks.
        let header = dirty.debugfs("logdump -S");
        println!("{rounds} rounds: {report:?}");
        let start: u64 = header
            .lines()
            .find_map(|line| line.split("Journal start:").nth(1))
            .and_then(|rest| rest.trim().parse().ok())
            .unwrap_or_else(|| panic!("no start of the journal in {header}"));
        wrapped += u32::from(start + report.copies + 2 * u64::from(report.transactions) > 1024);
    }
    assert!(wrapped > 0, "no log went over the end of its ring");
}

/// A log written by debugfs; `open` is its command with the checksums to use.
fn left_by_debugfs(features: &str, open: &str, writes: &[&str]) -> Image {
    let image = Image::make(24, &["-t", "ext4", "-b", "1024", "-O", features, "-J", "size=1"]);
    let noise: Vec<u8> = (0..8192u32).map(|n| (n.wrapping_mul(2654435761) >> 13) as u8).collect();
    let data = image.folder().join("data");
    std::fs::write(&data, noise).unwrap();
    let mut commands = vec![open.to_owned()];
    commands.extend(writes.iter().map(|write| format!("jw {write}").replace("DATA", data.to_str().unwrap())));
    commands.push("jc".to_owned());
    let script = image.folder().join("script");
    std::fs::write(&script, commands.join("\n")).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.str()]);
    image
}

/// Logs by debugfs with checksums v2, which no kernel of today writes, and all others; with revoked
/// blocks, block numbers of 32 and of 64 bits.
#[test]
fn logs_of_debugfs() {
    for (what, open, checksums) in [
        ("v2", "jo -c -v 2", "metadata_csum"),
        ("v3", "jo -c -v 3", "metadata_csum"),
        ("none", "jo", "^metadata_csum"),
    ] {
        for bits in ["64bit", "^64bit"] {
            let writes = ["-b 20000,20001,20002,20003 DATA", "-r 20001,20002", "-b 20002,20004 DATA"];
            let image = left_by_debugfs(&format!("{checksums},{bits}"), open, &writes);
            let what = format!("{what}, {bits}");
            let (_, report) = replay_like_debugfs(&what, &image);
            println!("{what}: {report:?}");
            assert_eq!((report.transactions, report.revoked_copies), (3, 2), "{what}: {report:?}");
        }
    }
}

/// Checksums v1. For a transaction with revoked blocks debugfs writes a wrong one: it sums the
/// revoke block, which jbd2 leaves out. Its own replay stops there, and the kernel refuses the
/// volume; so do we, and write nothing.
#[test]
fn logs_of_debugfs_with_v1() {
    for bits in ["64bit", "^64bit"] {
        let features = format!("^metadata_csum,{bits}");
        let sound = ["-b 20000,20001,20002,20003 DATA", "-b 20002,20004 DATA"];
        let report = replays_agree("v1", &left_by_debugfs(&features, "jo -c", &sound));
        assert_eq!((report.transactions, report.copies), (2, 6), "{report:?}");

        let wrong = ["-b 20000,20001 DATA", "-r 20001", "-b 20002 DATA"];
        let image = left_by_debugfs(&features, "jo -c", &wrong);
        let before = image.bytes();
        let error = recover(&image.device(), &EngineOptions::default()).unwrap_err();
        assert!(error.to_string().contains("damaged commit in its middle"), "{error}");
        assert!(image.bytes() == before, "refused, but something was written");
        let device = mount::Loop::attach(&image.path);
        let mount =
            common::try_run("mount", &["-t", "ext4", &device.device, image.folder().to_str().unwrap()]);
        assert!(!mount.status.success(), "the kernel mounts what we refuse");
    }
}

/// A log on a volume whose superblock says "clean" is obsolete: it is discarded, as by the kernel.
#[test]
fn a_log_without_the_flag_is_discarded() {
    use xact_layout::feature::incompat::RECOVER;
    use xact_layout::superblock::Superblock;
    let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let place = Place { block_size: 1024, first: (16 << 10) - 100 };
    our_log(&image, place, 1, 20);
    let mut bytes = image.bytes();
    let mut sb = Superblock::decode(bytes[1024..2048].try_into().unwrap()).unwrap();
    sb.set_feature_incompat(sb.feature_incompat() & !RECOVER);
    sb.seal();
    bytes[1024..2048].copy_from_slice(sb.as_bytes());
    let (ours, kernel) = (Image::of_bytes(&bytes), Image::of_bytes(&bytes));
    let report = replay_by_us(&ours);
    assert!(!report.replayed && report.transactions > 0, "{report:?}");
    replay_by_the_kernel(&kernel);
    let found = |image: &Image| ledger::read(&place, &MemoryDevice::from_bytes(image.bytes())).unwrap();
    assert_eq!((found(&ours).operation, found(&kernel).operation), (0, 0));
    ours.fsck();
}

/// Fast commits of the kernel that no full commit covers are refused. Behind a full commit they do
/// not count, and the log is replayed.
#[test]
fn fast_commits_of_the_kernel() {
    for covered in [false, true] {
        let image = Image::make(64, &["-t", "ext4", "-b", "4096", "-O", "fast_commit", "-J", "size=16"]);
        let mount = Mount::new(&image.path, image.folder(), "commit=600");
        let path = mount.path.join("file");
        std::fs::write(&path, b"first").unwrap();
        run("sync", &["-f", mount.path.to_str().unwrap()]);
        for round in 0..5 {
            let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
            std::io::Write::write_all(&mut &file, &[round; 5000]).unwrap();
            file.sync_all().unwrap();
        }
        if covered {
            std::fs::create_dir(mount.path.join("folder")).unwrap();
            run("sync", &["-f", mount.path.to_str().unwrap()]);
        }
        let dirty = image.copy();
        drop(mount);
        let before = dirty.bytes();
        let result = recover(&dirty.device(), &EngineOptions::default());
        if !covered {
            assert!(matches!(result, Err(xact_types::Error::Unsupported(_))), "{result:?}");
            assert!(dirty.bytes() == before, "refused, but something was written");
            continue;
        }
        assert!(result.expect("a recovery").replayed);
        dirty.fsck();
        assert!(dirty.debugfs("stat /folder").contains("directory"));
        assert!(dirty.debugfs("stat /file").contains("Size: 25005"));
    }
}

fn our_log(image: &Image, place: Place, seed: u64, operations: u32) -> u32 {
    let engine: Arc<Engine> = open_journal(image.device(), quiet()).expect("opening");
    let mut workload = Workload::new(place, &engine, &|| 0, seed);
    workload.run(operations, &|| ());
    let last = workload.operation();
    workload.commit(last);
    let acked = workload.history.acked.last().expect("a commit").1;
    workload.operation();
    // The engine is dropped, not closed, as in a crash.
    acked
}

#[test]
fn our_logs() {
    let cases: [(&str, &[&str], usize); 5] = [
        ("v3, 4 KiB", &["-t", "ext4", "-b", "4096", "-J", "size=4"], 4096),
        ("v3, 1 KiB", &["-t", "ext4", "-b", "1024", "-J", "size=1"], 1024),
        ("no checksums", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum", "-J", "size=1"], 1024),
        (
            "no checksums, 32 bits",
            &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit", "-J", "size=1"],
            1024,
        ),
        ("ext3: a mapped journal", &["-t", "ext3", "-b", "1024", "-J", "size=1"], 1024),
    ];
    for (what, mke2fs, block_size) in cases {
        for seed in 0..4 {
            let image = Image::make(16, mke2fs);
            let place = Place { block_size, first: (16 << 20) / block_size as u64 - 100 };
            // Enough operations to wrap around the ring in the longest of them.
            let acked = our_log(&image, place, seed, 100 + 150 * seed as u32);
            let report = replays_agree(what, &image);
            let checked = image.copy();
            let status = common::try_run("e2fsck", &["-fy", checked.str()]).status.code();
            assert!(matches!(status, Some(0 | 1)), "{what}: e2fsck says {status:?}");
            let ours = image.copy();
            replay_by_us(&ours);
            for replayed in [&ours, &checked] {
                let found = ledger::read(&place, &MemoryDevice::from_bytes(replayed.bytes()));
                let found = found.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(found.operation, acked, "{what}: {report:?}");
            }
        }
    }
}

#[test]
fn volumes_closed_by_us_are_clean_for_the_kernel() {
    for options in [&["-t", "ext4", "-b", "4096"][..], &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]] {
        let image = Image::make(32, options);
        let block_size = if options.contains(&"4096") { 4096 } else { 1024 };
        let place = Place { block_size, first: (32 << 20) / block_size as u64 - 100 };
        for seed in 0..3 {
            let engine = xact_consistency::open(image.device(), quiet()).expect("opening");
            let mut workload = Workload::new(place, &engine, &|| 0, seed);
            workload.run(40, &|| ());
            engine.close().expect("closing");
            drop(engine);
            image.fsck();
            let mount = Mount::new(&image.path, image.folder(), "rw");
            std::fs::write(mount.path.join(format!("file {seed}")), b"contents").unwrap();
            drop(mount);
            image.fsck();
        }
    }
}

/// A volume that alternates between the kernel and us, left dirty each time.
#[test]
fn taking_turns_with_the_kernel() {
    let mut image = Image::make(32, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let place = Place { block_size: 1024, first: 32 * 1024 - 100 };
    for turn in 0..4 {
        let acked = our_log(&image, place, turn, 60);
        // Files, so that the kernel's transactions and ours mix in one log.
        let mount = Mount::new(&image.path, image.folder(), "rw,commit=600");
        for file in 0..30 {
            let path = mount.path.join(format!("{turn}-{file}"));
            std::fs::write(&path, vec![file; 3000]).unwrap();
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
        }
        let dirty = image.copy();
        drop(mount);
        image = dirty;
        let engine = open(image.device());
        assert!(engine.recovery().replayed);
        engine.close().unwrap();
        drop(engine);
        image.fsck();
        let found = ledger::read(&place, &MemoryDevice::from_bytes(image.bytes())).unwrap();
        assert_eq!(found.operation, acked);
        let text = image.debugfs(&format!("cat /{turn}-29"));
        assert!(text.len() > 2900, "the kernel's file is missing or short");
    }
}
