//! The engine's promises, on a device in memory.

mod common;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{Image, open, quiet};
use xact_consistency::{
    Engine, EngineOptions, Handle, open_journal, open_unjournaled, recover, when_leading,
};
use xact_device::{BlockDevice, MemoryDevice};
use xact_types::{BlockNr, CommitId, Error};

/// A block that mke2fs leaves free on a volume of 16 MiB and more.
const FREE: u64 = 3000;

fn journaled() -> Arc<MemoryDevice> {
    Image::make(32, &["-b", "4096", "-J", "size=4"]).memory()
}

fn unjournaled() -> Arc<MemoryDevice> {
    Image::make(16, &["-b", "4096", "-O", "^has_journal"]).memory()
}

fn both() -> Vec<(Arc<MemoryDevice>, Arc<Engine>)> {
    let (a, b) = (journaled(), unjournaled());
    let journal: Arc<Engine> = open_journal(a.clone(), quiet()).unwrap();
    let none: Arc<Engine> = open_unjournaled(b.clone(), quiet()).unwrap();
    vec![(a, journal), (b, none)]
}

fn put(engine: &Arc<Engine>, block: u64, value: u8) -> CommitId {
    let mut handle = Handle::begin(engine, 1).unwrap();
    handle.update(BlockNr(block), |bytes| bytes.fill(value)).unwrap();
    handle.commit_id()
}

fn home(device: &MemoryDevice, block: u64) -> u8 {
    device.to_bytes()[block as usize * 4096 + 5]
}

#[test]
fn changes_are_visible_at_once_and_go_home() {
    for (device, engine) in both() {
        let commit = put(&engine, FREE, 7);
        assert_eq!(engine.read(BlockNr(FREE)).unwrap()[100], 7);
        assert_eq!(home(&device, FREE), 0);
        assert_eq!((engine.running(), engine.durable()), (commit, CommitId(0)));
        engine.commit(commit).unwrap();
        assert_eq!(engine.durable(), commit);
        assert_eq!(engine.running(), CommitId(commit.0 + 1));
        put(&engine, FREE, 8);
        engine.close().unwrap();
        assert_eq!(home(&device, FREE), 8);
        assert!(engine.start(1).is_err());
    }
}

#[test]
fn a_crash_keeps_committed_changes_and_nothing_else() {
    let device = journaled();
    {
        let engine: Arc<Engine> = open(device.clone());
        let commit = put(&engine, FREE, 7);
        engine.commit(commit).unwrap();
        put(&engine, FREE, 8);
        put(&engine, FREE + 1, 9);
    }
    let report = recover(&(device.clone() as _), &EngineOptions::default()).unwrap();
    assert_eq!((report.transactions, report.blocks_written), (1, 1));
    assert_eq!((home(&device, FREE), home(&device, FREE + 1)), (7, 0));
    let again = recover(&(device.clone() as _), &EngineOptions::default()).unwrap();
    assert!(!again.replayed);
}

#[test]
fn a_clean_volume_without_changes_is_not_written() {
    for device in [journaled(), unjournaled()] {
        let before = device.to_bytes();
        let engine = xact_consistency::open(device.clone(), quiet()).unwrap();
        engine.read(BlockNr(0)).unwrap();
        engine.close().unwrap();
        assert!(before == device.to_bytes());
    }
}

#[test]
fn freed_blocks_are_not_brought_back() {
    let device = journaled();
    {
        let engine: Arc<Engine> = open(device.clone());
        let first = put(&engine, FREE, 7);
        engine.commit(first).unwrap();
        let reused = Arc::new(AtomicU32::new(0));
        let second = {
            let mut handle = Handle::begin(&engine, 1).unwrap();
            handle.forget(BlockNr(FREE)).unwrap();
            let reused = reused.clone();
            handle.on_durable(move || {
                reused.store(1, SeqCst);
            });
            handle.commit_id()
        };
        assert_eq!(reused.load(SeqCst), 0);
        engine.commit(second).unwrap();
        assert_eq!(reused.load(SeqCst), 1);
        engine.write_data(BlockNr(FREE), &[IoSlice::new(&[0xdd; 4096])]).unwrap();
        engine.flush_data().unwrap();
    }
    let report = recover(&(device.clone() as _), &EngineOptions::default()).unwrap();
    assert_eq!((report.revoke_records, report.revoked_copies), (1, 1));
    assert_eq!(home(&device, FREE), 0xdd);
}

#[test]
fn a_freed_block_that_is_metadata_again_is_replayed() {
    for same_commit in [true, false] {
        let device = journaled();
        {
            let engine: Arc<Engine> = open(device.clone());
            let first = put(&engine, FREE, 7);
            engine.commit(first).unwrap();
            let mut handle = Handle::begin(&engine, 2).unwrap();
            handle.forget(BlockNr(FREE)).unwrap();
            if !same_commit {
                let commit = handle.commit_id();
                drop(handle);
                engine.commit(commit).unwrap();
                handle = Handle::begin(&engine, 2).unwrap();
            }
            handle.create(BlockNr(FREE), vec![9; 4096]).unwrap();
            let commit = handle.commit_id();
            drop(handle);
            assert_eq!(engine.read(BlockNr(FREE)).unwrap()[0], 9);
            engine.commit(commit).unwrap();
        }
        let report = recover(&(device.clone() as _), &EngineOptions::default()).unwrap();
        assert_eq!(report.revoke_records, u64::from(!same_commit));
        assert_eq!(home(&device, FREE), 9);
    }
}

#[test]
fn created_and_freed_in_one_commit_costs_nothing() {
    let device = journaled();
    let engine: Arc<Engine> = open(device.clone());
    let mut handle = Handle::begin(&engine, 1).unwrap();
    handle.create(BlockNr(FREE), vec![9; 4096]).unwrap();
    handle.forget(BlockNr(FREE)).unwrap();
    drop(handle);
    let before = engine.stats().device;
    put(&engine, FREE + 1, 1);
    engine.sync().unwrap();
    let after = engine.stats();
    assert_eq!((after.commits, after.committed_blocks), (1, 1));
    // The flag, the journal superblock; descriptor and copy in one; the commit block.
    assert_eq!(after.device.writes - before.writes, 4);
    assert_eq!(after.device.flushes - before.flushes, 3);
    // From the second commit on: two writes, two flushes.
    put(&engine, FREE + 1, 2);
    engine.sync().unwrap();
    assert_eq!(engine.stats().device.writes - after.device.writes, 2);
    assert_eq!(engine.stats().device.flushes - after.device.flushes, 2);
}

#[test]
fn copies_that_look_like_the_journals_own_blocks() {
    let device = journaled();
    let mut magic = vec![3; 4096];
    magic[..4].copy_from_slice(&0xc03b_3998u32.to_be_bytes());
    {
        let engine: Arc<Engine> = open(device.clone());
        let mut handle = Handle::begin(&engine, 1).unwrap();
        handle.create(BlockNr(FREE), magic.clone()).unwrap();
        drop(handle);
        engine.sync().unwrap();
    }
    recover(&(device.clone() as _), &EngineOptions::default()).unwrap();
    assert!(device.to_bytes()[FREE as usize * 4096..][..4096] == magic);
}

#[test]
fn many_rounds_through_the_ring() {
    let device = journaled();
    let engine: Arc<Engine> = open(device.clone());
    for round in 0..600u64 {
        for i in 0..5 {
            put(&engine, FREE + (round * 7 + i * 13) % 400, (round + i) as u8);
        }
        engine.commit(engine.running()).unwrap();
    }
    let expected: Vec<u8> = (0..400).map(|i| engine.read(BlockNr(FREE + i)).unwrap()[5]).collect();
    assert!(engine.stats().checkpoint_writes > 0, "the log has 1024 blocks and took more than 3000");
    drop(engine);
    recover(&(device.clone() as _), &EngineOptions::default()).unwrap();
    let found: Vec<u8> = (0..400).map(|i| home(&device, FREE + i)).collect();
    assert_eq!(found, expected);
}

#[test]
fn group_commit() {
    let (_, engine) = both().remove(0);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..50 {
                    let commit = put(engine, FREE + thread, round);
                    engine.commit(commit).unwrap();
                    assert!(engine.durable() >= commit);
                }
            });
        }
    });
    for thread in 0..8 {
        assert_eq!(engine.read(BlockNr(FREE + thread)).unwrap()[9], 49);
    }
    engine.close().unwrap();
}

#[test]
fn credits() {
    for (_, engine) in both() {
        let most = engine.max_credits();
        assert!(matches!(engine.start(most + 1), Err(Error::TooLarge { .. })));
        let all = Handle::begin(&engine, most).unwrap();
        assert!(!engine.extend(all.commit_id(), 1).unwrap());
        // Another thread gets space as soon as a commit has made it.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| put(&engine, FREE, 1));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            drop(all);
            waiting.join().unwrap();
        });
        engine.close().unwrap();
    }
}

#[test]
fn a_full_commit_makes_space_automatically() {
    for (_, engine) in both() {
        let most = u64::from(engine.max_credits());
        let mut handle = Handle::begin(&engine, most as u32).unwrap();
        for i in 0..most.min(1000) {
            handle.create(BlockNr(FREE + i), vec![1; 4096]).unwrap();
        }
        let first = handle.commit_id();
        drop(handle);
        let next = Handle::begin(&engine, most as u32).unwrap();
        assert!(next.commit_id() > first || most > 1000);
        drop(next);
        engine.close().unwrap();
    }
}

#[test]
fn commits_happen_by_time() {
    for (image, none) in [(journaled(), false), (unjournaled(), true)] {
        let options =
            EngineOptions { commit_interval: Duration::from_millis(30), ..EngineOptions::default() };
        let engine: Arc<Engine> = if none {
            open_unjournaled(image, options).unwrap()
        } else {
            open_journal(image, options).unwrap()
        };
        let commit = put(&engine, FREE, 1);
        for _ in 0..200 {
            if engine.durable() >= commit {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(engine.durable() >= commit);
        // A commit in which nothing changed is not written.
        let writes = engine.stats().device;
        drop(Handle::begin(&engine, 1).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(engine.stats().device, writes);
        engine.close().unwrap();
    }
}

/// The commit with changes that were in memory before is due an interval after their beginning.
#[test]
fn commits_are_as_old_as_their_oldest_change() {
    let interval = Duration::from_secs(60);
    for backdated in [false, true] {
        let options = EngineOptions { commit_interval: interval, ..EngineOptions::default() };
        let engine: Arc<Engine> = open_journal(journaled(), options).unwrap();
        let began = Instant::now().checked_sub(interval).expect("the machine runs for a minute");
        // Without effect: the running commit has no changes.
        engine.age_from(began);
        let commit = put(&engine, FREE, 1);
        if backdated {
            engine.age_from(began);
        }
        for _ in 0..300 {
            if engine.durable() >= commit || !backdated {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(engine.durable() >= commit, backdated);
        engine.close().unwrap();
    }
}

#[test]
fn wild_block_numbers() {
    for (_, engine) in both() {
        let blocks = [u64::MAX, 1 << 40, 8192];
        let mut handle = Handle::begin(&engine, 5).unwrap();
        for block in blocks.map(BlockNr) {
            assert!(matches!(engine.read(block), Err(Error::Corrupt(_))));
            assert!(matches!(handle.update(block, |_| ()), Err(Error::Corrupt(_))));
            assert!(handle.create(block, vec![0; 4096]).is_err());
            assert!(handle.forget(block).is_err());
            assert!(engine.write_data(block, &[IoSlice::new(&[0; 4096])]).is_err());
            assert!(engine.read_data(block, &mut [0; 4096]).is_err());
            assert!(engine.discard(block, 1).is_err());
        }
        assert!(engine.write_data(BlockNr(8191), &[IoSlice::new(&[0; 8192])]).is_err());
        assert!(engine.write_data(BlockNr(1), &[IoSlice::new(&[0; 100])]).is_err());
        assert!(engine.health().is_ok(), "a wild number is not a device error");
    }
}

#[test]
fn a_poisoned_engine_reads_only() {
    for (_, engine) in both() {
        let commit = put(&engine, FREE, 1);
        let ran = Arc::new(AtomicU32::new(0));
        let counted = ran.clone();
        engine.on_durable(
            commit,
            Box::new(move || {
                counted.fetch_add(1, SeqCst);
            }),
        );
        engine.poison("as a test");
        assert_eq!(engine.read(BlockNr(FREE)).unwrap()[0], 1);
        assert!(matches!(engine.start(1), Err(Error::Poisoned(_))));
        assert!(matches!(engine.commit(commit), Err(Error::Poisoned(_))));
        assert!(matches!(engine.health(), Err(Error::Poisoned(_))));
        assert!(engine.write_data(BlockNr(FREE), &[IoSlice::new(&[0; 4096])]).is_err());
        assert!(engine.close().is_err());
        assert_eq!((ran.load(SeqCst), Arc::strong_count(&ran)), (0, 1), "the action is dropped unrun");
    }
}

#[test]
fn read_only_engines_change_nothing() {
    for device in [journaled(), unjournaled()] {
        let before = device.to_bytes();
        let options = EngineOptions { read_only: true, ..EngineOptions::default() };
        let engine = xact_consistency::open(device.clone(), options).unwrap();
        assert!(engine.is_read_only());
        assert!(matches!(engine.start(1), Err(Error::ReadOnly)));
        assert!(matches!(engine.write_data(BlockNr(FREE), &[]), Err(Error::ReadOnly)));
        engine.sync().unwrap();
        engine.close().unwrap();
        assert!(before == device.to_bytes());
    }
}

#[test]
fn only_the_journal_writes_its_own_blocks() {
    let image = Image::make(32, &["-b", "4096", "-J", "size=4"]);
    let block: u64 = image.debugfs("bmap <8> 5").parse().unwrap();
    let engine: Arc<Engine> = open(image.device());
    let mut handle = Handle::begin(&engine, 1).unwrap();
    assert!(handle.update(BlockNr(block), |_| ()).is_err());
    assert!(engine.write_data(BlockNr(block), &[IoSlice::new(&[0; 4096])]).is_err());
}

#[test]
fn a_volume_without_journal_says_so_while_it_is_changed() {
    let device = unjournaled();
    let state =
        |device: &MemoryDevice| u16::from_le_bytes(device.to_bytes()[1082..1084].try_into().unwrap()) & 1;
    {
        let engine: Arc<Engine> = open_unjournaled(device.clone(), quiet()).unwrap();
        assert_eq!(state(&device), 1, "nothing has been changed yet");
        put(&engine, FREE, 1);
        engine.sync().unwrap();
        assert_eq!(state(&device), 0);
    }
    // After a crash, the volume stays "not clean" until e2fsck has checked it.
    let engine: Arc<Engine> = open_unjournaled(device.clone(), quiet()).unwrap();
    put(&engine, FREE, 2);
    engine.close().unwrap();
    assert_eq!(state(&device), 0);
}

thread_local! {
    static LED: std::cell::RefCell<Vec<bool>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// The action runs before and after a commit that the thread leads, and not if the commit is
/// durable already.
#[test]
fn the_leader_of_a_commit_is_called_before_and_after_it() {
    for (_, engine) in both() {
        when_leading(Some(|leads| LED.with_borrow_mut(|led| led.push(leads))));
        let commit = put(&engine, FREE, 7);
        engine.commit(commit).unwrap();
        assert_eq!(LED.take(), [true, false]);
        engine.commit(commit).unwrap();
        assert_eq!(LED.take(), [false; 0]);
        when_leading(None);
        engine.commit(put(&engine, FREE, 8)).unwrap();
        assert_eq!(LED.take(), [false; 0]);
        engine.close().unwrap();
    }
}

/// A program that mounts or checks the volume writes its superblock: the next commit finds that,
/// and nothing is written after it.
#[test]
fn another_writer_ends_all_writing() {
    for (device, engine) in both() {
        let commit = put(&engine, FREE, 7);
        engine.commit(commit).unwrap();
        // The count of mounts.
        let mut count = [0; 2];
        device.read_at(&mut count, 1024 + 0x34).unwrap();
        device.write_at(&[count[0] + 1, count[1]], 1024 + 0x34).unwrap();
        let before = device.to_bytes();
        let commit = put(&engine, FREE, 8);
        let error = engine.commit(commit).unwrap_err();
        assert!(
            matches!(&error, Error::Poisoned(why) if why.contains("another program has written")),
            "{error}"
        );
        assert!(engine.check_other_writers().is_err());
        assert!(engine.close().is_err());
        assert!(device.to_bytes() == before, "something was written");
    }
}

/// The engine's own writes of the superblock are not taken for those of another program.
#[test]
fn own_superblocks_are_known() {
    for (_, engine) in both() {
        for value in 1..4 {
            let mut handle = Handle::begin(&engine, 1).unwrap();
            handle.update(BlockNr(0), |block| block[1024 + 0x78] = value).unwrap();
            let commit = handle.commit_id();
            drop(handle);
            engine.commit(commit).unwrap();
            engine.sync().unwrap();
            engine.check_other_writers().unwrap();
        }
        engine.close().unwrap();
    }
}
