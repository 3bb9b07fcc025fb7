//! The cost of one small change at the device: writes, bytes and flushes, counted below the engine.

use std::sync::Arc;

use xact::mkfs::{JournalSize, MkfsOptions, mkfs, mkfs_generations};
use xact::{
    Caller, CommitWrites, DataMode, Fsync, Ino, InodeUpdate, LogRecords, MemoryDevice, ModeChoice, SetAttr,
    View, Volume, VolumeOptions,
};
use xact_device::DeviceCounts;
use xact_fs::WriteHow;
use xact_layout::inode::flag;

const BLOCK: u64 = 4096;
const TIMES: u64 = 50;

struct Cost {
    writes: u64,
    flushes: u64,
    blocks: u64,
}

fn volume(commit_writes: CommitWrites) -> (Arc<Volume>, Arc<dyn View>, Ino) {
    volume_in(commit_writes, DataMode::Ordered)
}

fn volume_in(commit_writes: CommitWrites, data_mode: DataMode) -> (Arc<Volume>, Arc<dyn View>, Ino) {
    let modes =
        ModeChoice { data: Some(data_mode), commit_writes: Some(commit_writes), ..ModeChoice::default() };
    volume_with(modes)
}

fn volume_with(modes: ModeChoice) -> (Arc<Volume>, Arc<dyn View>, Ino) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    // Large enough that no checkpoint interrupts.
    let journal = JournalSize::Bytes(16 << 20);
    mkfs(&*device, &MkfsOptions { block_size: Some(BLOCK as u32), journal, ..MkfsOptions::default() })
        .unwrap();
    let options = VolumeOptions { modes, flusher: false, ..VolumeOptions::default() };
    let volume = Volume::open(device, &options).unwrap();
    let base = volume.base();
    let ino = base.make_node(&Caller::ROOT, Ino::ROOT, b"file", 0o100644, 0).unwrap().ino;
    base.write(ino, 0, &vec![1; (TIMES * BLOCK) as usize], WriteHow::default()).unwrap();
    volume.sync().unwrap();
    (volume, base, ino)
}

/// The cost of each of `TIMES` runs of `step` in writes, flushes and blocks written.
fn cost_of(volume: &Volume, mut step: impl FnMut(u64)) -> Cost {
    let before = volume.stats().device;
    (0..TIMES).for_each(&mut step);
    let after: DeviceCounts = volume.stats().device;
    assert_eq!((after.writes - before.writes) % TIMES, 0, "the same each time");
    Cost {
        writes: (after.writes - before.writes) / TIMES,
        flushes: (after.flushes - before.flushes) / TIMES,
        blocks: (after.written_bytes - before.written_bytes) / BLOCK / TIMES,
    }
}

fn append_and_sync(commit_writes: CommitWrites) -> Cost {
    let (volume, base, ino) = volume(commit_writes);
    cost_of(&volume, |n| {
        base.write(ino, (TIMES + n) * BLOCK, &[2; BLOCK as usize], WriteHow::default()).unwrap();
        base.sync_file(ino, false).unwrap();
    })
}

/// The kernel's ext4 has the same cost: data; descriptor, bitmap, group descriptor and inode in one
/// write; commit block.
#[test]
fn append_and_fsync_in_two_steps() {
    let cost = append_and_sync(CommitWrites::TwoStep);
    assert_eq!((cost.writes, cost.flushes, cost.blocks), (3, 2, 6));
}

#[test]
fn append_and_fsync_in_a_single_write() {
    let cost = append_and_sync(CommitWrites::Single);
    assert_eq!((cost.writes, cost.flushes, cost.blocks), (2, 2, 6));
}

/// JOJ-2: the commit that an append needs takes the data along: one sequential write, one flush.
#[test]
fn append_and_fsync_through_the_journal() {
    for data_mode in [DataMode::Adaptive, DataMode::Journal] {
        let (volume, base, ino) = volume_in(CommitWrites::Single, data_mode);
        let cost = cost_of(&volume, |n| {
            base.write(ino, (TIMES + n) * BLOCK, &[2; BLOCK as usize], WriteHow::default()).unwrap();
            base.sync_file(ino, false).unwrap();
        });
        assert_eq!((cost.writes, cost.flushes, cost.blocks), (1, 1, 6));
        let filled = if data_mode == DataMode::Journal { TIMES } else { 0 };
        assert_eq!(volume.stats().journaled_data_blocks, filled + TIMES);
    }
}

/// A file whose flag says so takes its data through the journal, whatever the volume's mode: the
/// descriptor, one block and the commit block, in one write. The inode waits (fdatasync).
#[test]
fn overwrite_of_a_journaled_file() {
    let (volume, base, ino) = volume(CommitWrites::Single);
    let flags = base.attr(ino).unwrap().flags | flag::JOURNAL_DATA;
    base.set_attr(&Caller::ROOT, ino, &SetAttr { flags: Some(flags), ..SetAttr::default() }).unwrap();
    volume.sync().unwrap();
    let cost = cost_of(&volume, |n| {
        base.write(ino, n * BLOCK, &[2; BLOCK as usize], WriteHow::default()).unwrap();
        base.sync_file(ino, true).unwrap();
    });
    assert_eq!((cost.writes, cost.flushes, cost.blocks), (1, 1, 3));
    // Data that was overwritten in the log, or freed, is never written to its place (JOJ-6).
    for _ in 0..TIMES {
        base.write(ino, 0, &[4; BLOCK as usize], WriteHow::default()).unwrap();
        base.sync_file(ino, true).unwrap();
    }
    base.unlink(&Caller::ROOT, Ino::ROOT, b"file").unwrap();
    volume.sync().unwrap();
    let saved = volume.stats().checkpoint_writes_saved;
    assert!(saved >= 2 * TIMES - 1, "{saved} writes were saved");
    volume.close().unwrap();
    assert!(volume.stats().checkpoint_writes < TIMES / 2, "{:?}", volume.stats());
}

/// JOJ-9: nine small writes of 2,576 bytes in all, which make 45,056 bytes of the paper's journal.
#[test]
fn nine_small_writes_through_the_journal() {
    for (log_records, blocks) in [(LogRecords::Block, 11), (LogRecords::SubBlock, 2)] {
        let modes = ModeChoice {
            data: Some(DataMode::Journal),
            log_records: Some(log_records),
            ..ModeChoice::default()
        };
        let (volume, base, ino) = volume_with(modes);
        let cost = cost_of(&volume, |n| {
            for page in 0..9 {
                let len = if page == 8 { 288 } else { 286 };
                let data = vec![n as u8 + 2; len];
                base.write(ino, page * 3 * BLOCK + 100 + n, &data, WriteHow::default()).unwrap();
            }
            base.sync_file(ino, true).unwrap();
        });
        assert_eq!((cost.writes, cost.flushes, cost.blocks), (1, 1, blocks), "{log_records:?}");
        volume.close().unwrap();
    }
}

/// The same for an append: data whole, of the inode, the bitmap and the descriptor a few bytes.
#[test]
fn append_and_fsync_with_sub_block_records() {
    let modes = ModeChoice { log_records: Some(LogRecords::SubBlock), ..ModeChoice::default() };
    let (volume, base, ino) = volume_with(modes);
    for (len, blocks) in [(BLOCK, 4), (100, 2)] {
        let size = base.attr(ino).unwrap().size;
        let cost = cost_of(&volume, |n| {
            base.write(ino, size + n * len, &vec![n as u8 + 2; len as usize], WriteHow::default()).unwrap();
            base.sync_file(ino, false).unwrap();
        });
        assert_eq!((cost.writes, cost.flushes, cost.blocks), (1, 1, blocks), "{len} bytes");
    }
}

/// RFJ-1: overwritten blocks go through the journal, new ones to their place only.
#[test]
fn selective_journaling() {
    let (volume, base, ino) = volume_in(CommitWrites::TwoStep, DataMode::Selective);
    let journaled = || volume.stats().journaled_data_blocks;
    assert_eq!(journaled(), 0);
    base.write(ino, TIMES * BLOCK, &vec![2; 20 * BLOCK as usize], WriteHow::default()).unwrap();
    base.sync_file(ino, false).unwrap();
    assert_eq!(journaled(), 0);
    base.write(ino, BLOCK, &vec![3; 10 * BLOCK as usize], WriteHow::default()).unwrap();
    base.sync_file(ino, false).unwrap();
    assert_eq!(journaled(), 10);
}

/// DIU-2: an fsync of one file commits that file's inode, not those of all that were written.
#[test]
fn an_fsync_commits_one_inode() {
    let (volume, base, ino) = volume(CommitWrites::TwoStep);
    let others: Vec<Ino> = (0..200)
        .map(|n| {
            let name = format!("other{n}");
            base.make_node(&Caller::ROOT, Ino::ROOT, name.as_bytes(), 0o100644, 0).unwrap().ino
        })
        .collect();
    volume.sync().unwrap();
    for other in others {
        base.write(other, 0, &[2; BLOCK as usize], WriteHow::default()).unwrap();
    }
    let before = volume.stats().committed_blocks;
    base.write(ino, TIMES * BLOCK, &[2; BLOCK as usize], WriteHow::default()).unwrap();
    base.sync_file(ino, false).unwrap();
    // Inode, bitmap, group descriptor.
    assert_eq!(volume.stats().committed_blocks - before, 3);
    assert_eq!(volume.written_blocks().new, TIMES + 1);
}

/// A commit that refers to no new data needs one write and one flush.
#[test]
fn metadata_in_a_single_write() {
    let (volume, base, ino) = volume(CommitWrites::Single);
    let cost = cost_of(&volume, |n| {
        let name = format!("link{n}");
        base.link(&Caller::ROOT, ino, Ino::ROOT, name.as_bytes()).unwrap();
        base.sync_file(ino, false).unwrap();
    });
    assert_eq!((cost.writes, cost.flushes), (1, 1));
}

/// fdatasync commits nothing for a time of change alone.
#[test]
fn overwrite_and_fdatasync() {
    for commit_writes in [CommitWrites::TwoStep, CommitWrites::Single] {
        let (volume, base, ino) = volume(commit_writes);
        let cost = cost_of(&volume, |n| {
            base.write(ino, n * 7 % TIMES * BLOCK, &[3; BLOCK as usize], WriteHow::default()).unwrap();
            base.sync_file(ino, true).unwrap();
        });
        assert_eq!((cost.writes, cost.flushes, cost.blocks), (1, 1, 1));
        assert_eq!(volume.stats().commits, 1);
    }
}

/// Nor if the times join the running commit at once, as in stock ext4: another caller's commit
/// includes them (`i_datasync_tid`).
#[test]
fn overwrite_and_fdatasync_with_times_at_once() {
    let modes = ModeChoice {
        data: Some(DataMode::Ordered),
        commit_writes: Some(CommitWrites::TwoStep),
        timestamps: Some(InodeUpdate::Immediate),
        ..ModeChoice::default()
    };
    let (volume, base, ino) = volume_with(modes);
    let overwrite = |n: u64, data_only: bool| {
        base.write(ino, n * 7 % TIMES * BLOCK, &[3; BLOCK as usize], WriteHow::default()).unwrap();
        base.sync_file(ino, data_only).unwrap();
    };
    let commits = volume.stats().commits;
    let cost = cost_of(&volume, |n| overwrite(n, true));
    assert_eq!((cost.writes, cost.flushes, cost.blocks), (1, 1, 1));
    assert_eq!(volume.stats().commits, commits);
    // fdatasync commits a size, and then nothing for the times.
    base.write(ino, TIMES * BLOCK, &[4; 100], WriteHow::default()).unwrap();
    base.sync_file(ino, true).unwrap();
    assert_eq!(volume.stats().commits, commits + 1);
    overwrite(0, true);
    assert_eq!(volume.stats().commits, commits + 1);
    overwrite(1, false);
    assert_eq!(volume.stats().commits, commits + 2);
}

/// fsync does; but writes that follow each other within a few milliseconds have the same time, as
/// in the kernel, until it is read.
#[test]
fn overwrite_and_fsync() {
    let (volume, base, ino) = volume(CommitWrites::TwoStep);
    let overwrite = || {
        base.write(ino, 0, &[3; BLOCK as usize], WriteHow::default()).unwrap();
        base.sync_file(ino, false).unwrap();
    };
    let commits = volume.stats().commits;
    let started = std::time::Instant::now();
    (0..TIMES).for_each(|_| overwrite());
    let grains = started.elapsed().as_millis() as u64 / 4 + 2;
    let made = volume.stats().commits - commits;
    assert!(made <= grains, "{made} commits in {grains} grains of time");
    // A reader of each time sees each change.
    let mut last = base.attr(ino).unwrap().mtime;
    for _ in 0..TIMES {
        overwrite();
        let mtime = base.attr(ino).unwrap().mtime;
        assert!(mtime > last);
        last = mtime;
    }
}

/// A volume with generations, with a file on it and a generation made by this opening.
fn generations_volume(options: VolumeOptions) -> (Arc<Volume>, Arc<dyn View>, Ino) {
    let device: Arc<dyn xact::BlockDevice> = Arc::new(MemoryDevice::new(256 << 20));
    let format = MkfsOptions { block_size: Some(BLOCK as u32), ..MkfsOptions::default() };
    mkfs_generations(&device, &format, Some(32 << 20)).unwrap();
    let volume = Volume::open(device, &VolumeOptions { flusher: false, ..options }).unwrap();
    let base = volume.base();
    let ino = base.make_node(&Caller::ROOT, Ino::ROOT, b"file", 0o100644, 0).unwrap().ino;
    base.write(ino, 0, &vec![1; (TIMES * BLOCK) as usize], WriteHow::default()).unwrap();
    volume.sync().unwrap();
    (volume, base, ino)
}

fn generations_with(fsync: Fsync) -> (Arc<Volume>, Arc<dyn View>, Ino) {
    let modes = ModeChoice { fsync: Some(fsync), ..ModeChoice::default() };
    generations_volume(VolumeOptions { modes, ..VolumeOptions::default() })
}

/// SNAP-12: an append with fsync is one write to the log, with its data, and one flush, as is a
/// change of names or attributes. Large data is written to its place, which costs one more write
/// and flush. A generation writes the rest home.
#[test]
fn fsync_goes_to_the_log_of_a_generation() {
    let (volume, base, ino) = generations_with(Fsync::Log);
    let append = cost_of(&volume, |n| {
        base.write(ino, (TIMES + n) * BLOCK, &[2; BLOCK as usize], WriteHow::default()).unwrap();
        base.sync_file(ino, false).unwrap();
    });
    assert_eq!((append.writes, append.flushes, append.blocks), (1, 1, 2));
    let before = volume.stats().device.flushes;
    let much = vec![3; 256 << 10];
    base.write(ino, 2 * TIMES * BLOCK, &much, WriteHow::default()).unwrap();
    base.sync_file(ino, false).unwrap();
    assert_eq!(volume.stats().device.flushes, before + 2);
    let change = cost_of(&volume, |n| {
        let set = SetAttr { perm: Some(0o600 + (n % 2) as u16), ..SetAttr::default() };
        base.set_attr(&Caller::ROOT, ino, &set).unwrap();
        base.sync_file(ino, false).unwrap();
    });
    assert_eq!((change.writes, change.flushes, change.blocks), (1, 1, 1));
    volume.close().unwrap();
}

/// SNAP-5: a number of dirty blocks makes the next generation due before its time.
#[test]
fn enough_dirty_blocks_are_a_generation() {
    let options = VolumeOptions {
        commit_interval: std::time::Duration::from_secs(3600),
        dirty_blocks: Some(40),
        ..VolumeOptions::default()
    };
    let (volume, base, _) = generations_volume(options);
    let before = volume.stats().commits;
    base.make_node(&Caller::ROOT, Ino::ROOT, b"one", 0o100644, 0).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(volume.stats().commits, before, "few are none");
    // Each folder has a block of its own.
    for n in 0..40 {
        base.make_dir(&Caller::ROOT, Ino::ROOT, format!("{n}").as_bytes(), 0o755).unwrap();
    }
    let began = std::time::Instant::now();
    while volume.stats().commits == before {
        assert!(began.elapsed().as_secs() < 300, "no generation came");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    volume.close().unwrap();
}

/// SNAP-6: files that are deleted before their generation is written cause no writes but those of
/// blocks that other files use too, whatever the number of files.
#[test]
fn short_lived_files_are_not_written() {
    let mut costs = Vec::new();
    for files in [1, 200] {
        let (volume, base, _) = generations_with(Fsync::Log);
        let before = volume.stats().device.written_bytes;
        for n in 0..files {
            let name = format!("short{n}");
            let ino = base.make_node(&Caller::ROOT, Ino::ROOT, name.as_bytes(), 0o100644, 0).unwrap().ino;
            base.write(ino, 0, &[3; 4 * BLOCK as usize], WriteHow::default()).unwrap();
            base.unlink(&Caller::ROOT, Ino::ROOT, name.as_bytes()).unwrap();
        }
        volume.sync().unwrap();
        costs.push((volume.stats().device.written_bytes - before) / BLOCK);
        volume.close().unwrap();
    }
    assert!(costs[1] < costs[0] + 20, "blocks for 1 file and for 200: {costs:?}");
}
