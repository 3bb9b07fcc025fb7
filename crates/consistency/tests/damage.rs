//! Devices that fail, and damaged logs: clear errors, never a panic, a hang or a wild write.

mod common;

use std::io::IoSlice;
use std::sync::Arc;

use common::{Image, open, quiet};
use xact_consistency::{Engine, EngineOptions, Handle, open_journal, recover};
use xact_device::{BlockDevice, MemoryDevice};
use xact_layout::jbd2::{Header, MAGIC};
use xact_testkit::device::{Call, Fault, Harm, SimDevice};
use xact_testkit::image::Image as SimImage;
use xact_testkit::rng::Rng;
use xact_types::{BlockNr, CommitId, Error};

const FREE: u64 = 3000;

fn volume() -> Image {
    Image::make(16, &["-t", "ext4", "-b", "4096", "-J", "size=4"])
}

fn sim(image: &Image) -> Arc<SimDevice> {
    SimDevice::new(SimImage::from_file(&std::fs::File::open(&image.path).unwrap()).unwrap())
}

fn put(engine: &Arc<Engine>, block: u64, value: u8) -> CommitId {
    let mut handle = Handle::begin(engine, 1).unwrap();
    handle.update(BlockNr(block), |bytes| bytes.fill(value)).unwrap();
    handle.commit_id()
}

/// A volume whose log holds a few transactions, and the offsets of the log's blocks.
fn crashed() -> (Vec<u8>, Vec<usize>) {
    let image = volume();
    let log = image.journal_blocks(4096);
    let device = image.memory();
    let engine: Arc<Engine> = open(device.clone());
    for value in 1..6 {
        for block in 0..u64::from(value) {
            put(&engine, FREE + block, value);
        }
        engine.sync().unwrap();
    }
    drop(engine);
    (device.to_bytes(), log)
}

#[test]
fn any_failed_write_or_flush_ends_all_writing() {
    let image = volume();
    for call in [Call::Write, Call::Flush] {
        for nth in 0..12 {
            let device = sim(&image);
            let journal = open_journal(device.clone(), quiet()).unwrap();
            let engine: Arc<Engine> = journal.clone();
            device.inject(Fault { call, range: None, nth, for_good: false, harm: Harm::Error });
            let mut acked = 0;
            let mut failed = false;
            for value in 1..=4u8 {
                let Ok(mut handle) = Handle::begin(&engine, 1) else { break };
                if handle.update(BlockNr(FREE), |bytes| bytes.fill(value)).is_err() {
                    break;
                }
                let commit = handle.commit_id();
                drop(handle);
                match engine.commit(commit) {
                    Ok(()) => acked = value,
                    Err(_) => failed = true,
                }
                if value == 2 {
                    failed |= journal.journal().unwrap().checkpoint().is_err();
                }
            }
            let events = device.recording().events.len();
            if failed {
                assert!(matches!(engine.health(), Err(Error::Poisoned(_))));
                assert!(matches!(engine.start(1), Err(Error::Poisoned(_))));
                assert!(engine.write_data(BlockNr(FREE + 9), &[IoSlice::new(&[0; 4096])]).is_err());
                assert!(engine.flush_data().is_err() && engine.sync().is_err() && engine.close().is_err());
                assert_eq!(device.recording().events.len(), events, "something was written after a failure");
            } else if engine.close().is_err() {
                assert!(matches!(engine.health(), Err(Error::Poisoned(_))));
            }
            drop((engine, journal));
            device.clear_faults();
            recover(&(device.clone() as _), &EngineOptions::default()).unwrap();
            let mut found = [0; 1];
            device.read_at(&mut found, FREE * 4096).unwrap();
            assert!(found[0] >= acked, "{call:?} {nth}: {acked} was acknowledged, {} is there", found[0]);
        }
    }
}

#[test]
fn a_failed_read_is_reported_and_harmless() {
    let device = sim(&volume());
    let engine: Arc<Engine> = open(device.clone());
    device.inject(Fault { call: Call::Read, range: None, nth: 0, for_good: false, harm: Harm::Error });
    assert!(matches!(engine.read(BlockNr(FREE)), Err(Error::Io { .. })));
    engine.read(BlockNr(FREE)).unwrap();
    put(&engine, FREE, 1);
    engine.close().unwrap();
}

#[test]
fn a_hanging_read_blocks_no_other_thread() {
    let device = sim(&volume());
    let engine: Arc<Engine> = open(device.clone());
    put(&engine, FREE, 1);
    let stall = device.stall_reads(FREE * 4096 + 4096..FREE * 4096 + 8192);
    std::thread::scope(|scope| {
        let hung = [0; 2].map(|_| scope.spawn(|| engine.read(BlockNr(FREE + 1)).unwrap()));
        while device.waiting_reads() == 0 {
            std::thread::yield_now();
        }
        for block in 2..300 {
            engine.read(BlockNr(FREE + block)).unwrap();
            put(&engine, FREE + block, 2);
        }
        engine.sync().unwrap();
        assert_eq!(device.waiting_reads(), 1, "one block that is missing is read once");
        drop(stall);
        for thread in hung {
            thread.join().unwrap();
        }
    });
    engine.close().unwrap();
}

#[test]
fn damage_anywhere_in_the_log_is_an_error_or_a_shorter_log() {
    let (bytes, log) = crashed();
    let mut rng = Rng::new(7);
    for round in 0..400 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + rng.below(4) {
            let at = log[rng.below(60) as usize] + rng.below(4096) as usize;
            match rng.below(3) {
                0 => damaged[at] ^= 1 << rng.below(8),
                1 => damaged[at & !15..(at & !15) + 16].fill(rng.next() as u8),
                // Random offsets rarely hit fields of headers and tags.
                _ => {
                    let field = at & !4095 | (rng.below(16) * 4) as usize;
                    damaged[field..field + 4].copy_from_slice(&(rng.next() as u32).to_be_bytes());
                }
            }
        }
        let device = Arc::new(MemoryDevice::from_bytes(damaged.clone()));
        match recover(&(device.clone() as _), &EngineOptions::default()) {
            Ok(_) => {
                let engine: Arc<Engine> = open(device);
                put(&engine, FREE, 1);
                engine.close().unwrap();
            }
            Err(error) => {
                assert!(
                    matches!(error, Error::Corrupt(_) | Error::Unsupported(_) | Error::Usage(_)),
                    "round {round}: {error}"
                );
                assert!(device.to_bytes() == damaged, "round {round}: refused, but something was written");
            }
        }
    }
}

#[test]
fn damage_of_superblock_descriptor_and_inode_is_an_error() {
    let (bytes, _) = crashed();
    let image = Image::of_bytes(&bytes);
    let inode_table: usize = {
        let text = image.debugfs("imap <8>");
        let block = text.split("located at block ").nth(1).unwrap().split(',').next().unwrap();
        block.trim().parse().unwrap()
    };
    let mut rng = Rng::new(9);
    for _ in 0..600 {
        let mut damaged = bytes.clone();
        let (from, len) = match rng.below(3) {
            0 => (1024, 1024),
            1 => (4096, 64),
            _ => (inode_table * 4096 + 7 * 256, 256),
        };
        for _ in 0..1 + rng.below(3) {
            damaged[from + rng.below(len) as usize] = rng.next() as u8;
        }
        let device = Arc::new(MemoryDevice::from_bytes(damaged));
        // Any result is fine, as long as the call returns.
        if let Ok(engine) = open_journal(device, quiet()) {
            let _ = engine.read(BlockNr(FREE));
            let _ = engine.close();
        }
    }
}

#[test]
fn a_bad_copy_is_refused_before_anything_is_written() {
    let (mut bytes, log) = crashed();
    let copy = log.iter().find(|at| bytes[**at..**at + 4096].iter().all(|b| *b == 2));
    bytes[copy.expect("a copy of the second transaction") + 1000] ^= 4;
    let device = Arc::new(MemoryDevice::from_bytes(bytes.clone()));
    let error = recover(&(device.clone() as _), &EngineOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    assert!(device.to_bytes() == bytes);
    #[cfg(feature = "faults")]
    {
        let options = EngineOptions {
            fault: Some(xact_consistency::Fault::AcceptBadChecksum),
            ..EngineOptions::default()
        };
        assert!(recover(&(device as _), &options).is_ok(), "this test does not see the checksum's absence");
    }
}

/// Whether no copy in a log that the engine writes can be taken for a block of the journal.
fn copies_are_escaped(options: EngineOptions) -> bool {
    let image = volume();
    let log = image.journal_blocks(4096);
    let device = image.memory();
    {
        let engine: Arc<Engine> = open_journal(device.clone(), options).unwrap();
        let mut contents = vec![0xee; 4096];
        contents[..4].copy_from_slice(&MAGIC.to_be_bytes());
        let mut handle = Handle::begin(&engine, 1).unwrap();
        handle.create(BlockNr(FREE), contents).unwrap();
        drop(handle);
        engine.sync().unwrap();
    }
    let bytes = device.to_bytes();
    !log[1..20].iter().any(|at| {
        let block = &bytes[*at..at + 4096];
        Header::decode(block).is_some() && block[100] == 0xee
    })
}

#[test]
fn escaping() {
    assert!(copies_are_escaped(quiet()));
    #[cfg(feature = "faults")]
    assert!(!copies_are_escaped(EngineOptions { fault: Some(xact_consistency::Fault::NoEscape), ..quiet() }));
}

#[test]
fn a_torn_last_commit_is_dropped_and_an_earlier_one_is_not() {
    let (bytes, log) = crashed();
    let commits: Vec<usize> = log[1..60]
        .iter()
        .copied()
        .filter(|at| {
            Header::decode(&bytes[*at..*at + 4096])
                .is_some_and(|h| h.block_type == xact_layout::jbd2::BlockType::Commit)
        })
        .collect();
    assert_eq!(commits.len(), 5);
    for (index, at) in commits.iter().enumerate() {
        let mut torn = bytes.clone();
        torn[at + 2048..at + 2560].fill(0x55);
        let device = Arc::new(MemoryDevice::from_bytes(torn));
        let result = recover(&(device.clone() as _), &EngineOptions::default());
        if index == 4 {
            let report = result.unwrap();
            assert!(report.dropped_torn_commit);
            assert_eq!(report.transactions, 4);
            assert_eq!(device.to_bytes()[FREE as usize * 4096], 4);
        } else {
            assert!(matches!(result, Err(Error::Corrupt(_))));
        }
    }
}

#[test]
fn a_superblock_torn_by_our_own_writes_is_repaired() {
    let image = volume();
    let device = sim(&image);
    let engine: Arc<Engine> = open(device.clone());
    put(&engine, FREE, 1);
    engine.sync().unwrap();
    engine.close().unwrap();
    let clean = image.bytes();
    let recording = device.recording();
    let flags: Vec<_> = recording
        .events
        .iter()
        .filter_map(|e| match &e.action {
            xact_testkit::recording::Action::Write { offset: 0, data } if data.len() == 4096 => {
                Some(data.clone())
            }
            _ => None,
        })
        .collect();
    assert_eq!(flags.len(), 2, "the flag is set once and cleared once");
    for (old, new) in [(&clean[..4096], &flags[0][..]), (&flags[0][..], &flags[1][..])] {
        for first_is_new in [true, false] {
            let mut torn = clean.clone();
            let (a, b) = if first_is_new { (new, old) } else { (old, new) };
            torn[..1536].copy_from_slice(&a[..1536]);
            torn[1536..4096].copy_from_slice(&b[1536..]);
            let device = Arc::new(MemoryDevice::from_bytes(torn));
            open(device.clone()).close().unwrap();
            Image::of_bytes(&device.to_bytes()).fsck();
        }
    }
}

#[test]
fn an_aborted_journal_marks_the_volume_for_e2fsck() {
    let (mut bytes, log) = crashed();
    let mut sb = xact_layout::jbd2::JournalSuperblock::decode(&bytes[log[0]..log[0] + 1024]).unwrap();
    sb.errno = -5;
    sb.encode_into(&mut bytes[log[0]..log[0] + 1024]);
    let device = Arc::new(MemoryDevice::from_bytes(bytes));
    let report = recover(&(device.clone() as _), &EngineOptions::default()).unwrap();
    assert_eq!((report.errno, report.transactions), (-5, 5));
    let bytes = device.to_bytes();
    assert_eq!(xact_layout::jbd2::JournalSuperblock::decode(&bytes[log[0]..log[0] + 1024]).unwrap().errno, 0);
    let image = Image::of_bytes(&bytes);
    assert!(image.debugfs("stats -h").contains("with errors"));
}

#[test]
fn read_only_devices_with_a_live_log_are_refused() {
    struct ReadOnly(Arc<MemoryDevice>);
    impl BlockDevice for ReadOnly {
        fn size_bytes(&self) -> u64 {
            self.0.size_bytes()
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
            self.0.read_at(buf, offset)
        }
        fn write_at(&self, _: &[u8], _: u64) -> std::io::Result<()> {
            panic!("a read-only device was written");
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
        fn discard(&self, _: u64, _: u64) -> std::io::Result<()> {
            panic!("a read-only device was discarded");
        }
        fn is_read_only(&self) -> bool {
            true
        }
    }
    let (bytes, _) = crashed();
    let device = Arc::new(ReadOnly(Arc::new(MemoryDevice::from_bytes(bytes.clone()))));
    assert!(matches!(open_journal(device, quiet()), Err(Error::Usage(_))));
    let memory = Arc::new(MemoryDevice::from_bytes(bytes));
    open(memory.clone()).close().unwrap();
    let engine = open_journal(Arc::new(ReadOnly(memory)), quiet()).unwrap();
    assert!(engine.is_read_only());
    assert_eq!(engine.read(BlockNr(FREE)).unwrap()[0], 5);
    engine.close().unwrap();
}

#[test]
fn fast_commits_are_refused() {
    let (mut bytes, log) = crashed();
    let mut sb = xact_layout::jbd2::JournalSuperblock::decode(&bytes[log[0]..log[0] + 1024]).unwrap();
    // The area takes 256 blocks, and a ring of fewer than 1024 is too small for one.
    sb.features.incompat |= xact_layout::jbd2::Features::FAST_COMMIT;
    sb.fast_commit_blocks = 0;
    let head = |sequence: u32| {
        let mut block = vec![0u8; 4096];
        block[..4].copy_from_slice(&[9, 0, 8, 0]);
        block[8..12].copy_from_slice(&sequence.to_le_bytes());
        block
    };
    sb.encode_into(&mut bytes[log[0]..log[0] + 1024]);
    if sb.fast_commit_start().is_none() {
        // As on this volume: the feature alone changes nothing.
        assert!(
            recover(&(Arc::new(MemoryDevice::from_bytes(bytes)) as _), &EngineOptions::default()).is_ok()
        );
    }
    let image = Image::make(32, &["-t", "ext4", "-b", "4096", "-J", "size=8"]);
    let log = image.journal_blocks(4096);
    let device = image.memory();
    let sequence = {
        let engine: Arc<Engine> = open(device.clone());
        put(&engine, FREE, 1);
        engine.sync().unwrap();
        xact_layout::jbd2::JournalSuperblock::decode(&device.to_bytes()[log[0]..log[0] + 1024])
            .unwrap()
            .sequence
    };
    for (head_of, refused) in [(sequence + 1, true), (sequence, false)] {
        let mut bytes = device.to_bytes();
        let mut sb = xact_layout::jbd2::JournalSuperblock::decode(&bytes[log[0]..log[0] + 1024]).unwrap();
        sb.features.incompat |= xact_layout::jbd2::Features::FAST_COMMIT;
        sb.encode_into(&mut bytes[log[0]..log[0] + 1024]);
        let area = log[sb.fast_commit_start().unwrap() as usize];
        bytes[area..area + 4096].copy_from_slice(&head(head_of));
        let result = recover(&(Arc::new(MemoryDevice::from_bytes(bytes)) as _), &EngineOptions::default());
        assert_eq!(matches!(result, Err(Error::Unsupported(_))), refused, "{result:?}");
    }
}
