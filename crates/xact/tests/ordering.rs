//! The order of writes and flushes below the engine, looked at write by write.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use xact::mkfs::{MkfsOptions, mkfs};
use xact::{
    BlockDevice, Caller, CommitWrites, DataMode, Durability, Ino, LogRecords, MemoryDevice, ModeChoice,
    TxOptions, View, Volume, VolumeOptions,
};
use xact_consistency::recovery::inspect::inspect;
use xact_device::WriteHint;
use xact_fs::WriteHow;
use xact_layout::jbd2::{BlockType, Header};

const BLOCK: u64 = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Range of bytes on the device; whether a commit block is among them; the waiting operation.
    Write(Range<u64>, bool, WriteHint),
    /// Cached data is passed on.
    PassOn,
    /// A write for which no operation waits.
    Behind,
    FlushBegins,
    FlushEnds,
}

/// Notes what it is asked to do, in order.
struct Recorder {
    inner: MemoryDevice,
    steps: Mutex<Vec<Step>>,
}

impl Recorder {
    fn note(&self, step: Step) {
        self.steps.lock().unwrap().push(step);
    }
}

fn has_commit_block(bytes: &[u8]) -> bool {
    let mut headers = bytes.chunks_exact(BLOCK as usize).filter_map(Header::decode);
    headers.any(|header| header.block_type == BlockType::Commit)
}

impl BlockDevice for Recorder {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_for(&[IoSlice::new(buf)], offset, WriteHint::Buffered)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write_for(bufs, offset, WriteHint::Buffered)
    }

    fn write_for(&self, bufs: &[IoSlice<'_>], offset: u64, hint: WriteHint) -> io::Result<()> {
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
        self.note(match hint {
            WriteHint::Background => Step::Behind,
            _ => Step::Write(offset..offset + bytes.len() as u64, has_commit_block(&bytes), hint),
        });
        self.inner.write_at(&bytes, offset)
    }

    fn flush_page_cache_range(&self, _: u64, _: u64) -> io::Result<()> {
        self.note(Step::PassOn);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.note(Step::FlushBegins);
        let flushed = self.inner.flush();
        self.note(Step::FlushEnds);
        flushed
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

fn volume(modes: ModeChoice) -> (Arc<Recorder>, Arc<Volume>, Arc<dyn View>) {
    let inner = MemoryDevice::new(64 << 20);
    mkfs(&inner, &MkfsOptions { block_size: Some(BLOCK as u32), ..MkfsOptions::default() }).unwrap();
    let device = Arc::new(Recorder { inner, steps: Mutex::default() });
    let options = VolumeOptions { modes, ..VolumeOptions::default() };
    let volume = Volume::open(device.clone(), &options).unwrap();
    let base = volume.base();
    (device, volume, base)
}

/// The log never holds two commits that are both not durable yet, a state that the kernel and
/// e2fsck cannot recover. Four threads sync as fast as they can, through the log's end and past it.
#[test]
fn never_two_commits_without_a_flush_between() {
    let settings = [
        (CommitWrites::Single, DataMode::Adaptive, LogRecords::Block),
        (CommitWrites::Single, DataMode::Ordered, LogRecords::SubBlock),
        (CommitWrites::TwoStep, DataMode::Journal, LogRecords::Block),
    ];
    for (commit_writes, data, log_records) in settings {
        let modes = ModeChoice {
            data: Some(data),
            commit_writes: Some(commit_writes),
            log_records: Some(log_records),
            ..ModeChoice::default()
        };
        let (device, volume, base) = volume(modes);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let base = &base;
                scope.spawn(move || {
                    let name = format!("f{thread}");
                    let ino =
                        base.make_node(&Caller::ROOT, Ino::ROOT, name.as_bytes(), 0o100_644, 0).unwrap().ino;
                    for n in 0..150 {
                        base.write(ino, n * 3000, &[7; 3000], WriteHow::default()).unwrap();
                        base.sync_file(ino, n % 2 == 0).unwrap();
                    }
                });
            }
        });
        volume.close().unwrap();
        let steps = device.steps.lock().unwrap();
        let (mut commits, mut begun, mut unflushed) = (0, false, false);
        for step in steps.iter() {
            match step {
                Step::Write(_, true, _) => {
                    assert!(!unflushed, "{modes:?}: commit {commits} follows one that no flush has covered");
                    (commits, begun, unflushed) = (commits + 1, false, true);
                }
                Step::Write(..) | Step::Behind | Step::PassOn => {}
                Step::FlushBegins => begun = true,
                Step::FlushEnds => unflushed &= !begun,
            }
        }
        assert!(commits > 100, "{commits}");
    }
}

/// Runs something and returns its requests to the device: C a write with a commit block, L another
/// one to the log, D one elsewhere past the system's cache, d one into that cache, p a request to
/// write that cache back, b a write for which no operation waits, F a flush.
fn requests_of(device: &Arc<Recorder>) -> impl Fn(&dyn Fn()) -> String {
    let log = inspect(&(device.clone() as Arc<dyn BlockDevice>)).unwrap();
    let first = log.place(log.first).unwrap().0 * BLOCK;
    let last = log.place(log.end - 1).unwrap().0 * BLOCK;
    move |work| {
        device.steps.lock().unwrap().clear();
        work();
        let steps = device.steps.lock().unwrap();
        let requests = steps.iter().filter_map(|step| match step {
            Step::Write(_, true, _) => Some('C'),
            Step::Write(range, false, _) if (first..=last).contains(&range.start) => Some('L'),
            Step::Write(_, _, WriteHint::FlushFollows) => Some('D'),
            Step::Write(..) => Some('d'),
            Step::PassOn => Some('p'),
            Step::Behind => Some('b'),
            Step::FlushBegins => None,
            Step::FlushEnds => Some('F'),
        });
        requests.collect()
    }
}

/// TX-9 and TX-22: the cost of a commit at the device. A small one is one write and one flush,
/// whatever it has changed. An ordered one costs nothing: it joins the next commit, which also
/// writes the data of a large one, and flushes it first.
#[test]
fn what_a_commit_of_a_transaction_asks_of_the_device() {
    let (device, volume, base) = volume(ModeChoice::default());
    base.make_node(&Caller::ROOT, Ino::ROOT, b"first", 0o100_644, 0).unwrap();
    volume.sync().unwrap();
    let run = requests_of(&device);
    let file = |name: &str, bytes: usize, durability: Durability| {
        let tx = volume.begin(TxOptions::default()).into_shared();
        let ino = tx.make_node(&Caller::ROOT, Ino::ROOT, name.as_bytes(), 0o100_644, 0).unwrap().ino;
        tx.write(ino, 0, &vec![7; bytes], WriteHow::default()).unwrap();
        tx.commit_with(durability).unwrap();
    };
    assert_eq!(run(&|| file("durable", 4096, Durability::Durable)), "CF");
    assert_eq!(run(&|| file("in order", 4096, Durability::Ordered)), "");
    assert_eq!(run(&|| file("with it", 4096, Durability::Durable)), "CF");
    assert_eq!(run(&|| file("large", 1 << 20, Durability::Durable)), "bFCF");
    assert_eq!(run(&|| file("large and in order", 1 << 20, Durability::Ordered)), "");
    assert_eq!(run(&|| file("behind it", 4096, Durability::Durable)), "bFCF");
    volume.close().unwrap();
}

/// Ordered data: each block of it is flushed before the commit that refers to it is written, at
/// once with its commit block. If an earlier flush covers the data, no other flush follows.
#[test]
fn data_is_flushed_before_its_commit_and_once() {
    let modes = ModeChoice {
        data: Some(DataMode::Ordered),
        commit_writes: Some(CommitWrites::Single),
        ..ModeChoice::default()
    };
    let (device, volume, base) = volume(modes);
    let ino = base.make_node(&Caller::ROOT, Ino::ROOT, b"file", 0o100_644, 0).unwrap().ino;
    base.write(ino, 0, &[1; 8 * BLOCK as usize], WriteHow::default()).unwrap();
    volume.sync().unwrap();
    let run = requests_of(&device);
    let append = || {
        let size = base.attr(ino).unwrap().size;
        base.write(ino, size, &[2; BLOCK as usize], WriteHow::default()).unwrap();
    };
    let sync = || base.sync_file(ino, false).unwrap();
    assert_eq!(
        run(&|| {
            append();
            sync()
        }),
        "DFCF"
    );
    // In place, flushed by fdatasync; then a commit of names alone.
    let overwrite = || {
        base.write(ino, 0, &[3; BLOCK as usize], WriteHow::default()).unwrap();
        base.sync_file(ino, true).unwrap();
    };
    assert_eq!(run(&overwrite), "DF");
    let rename = || {
        base.link(&Caller::ROOT, ino, Ino::ROOT, b"other").unwrap();
        sync();
    };
    assert_eq!(run(&rename), "CF");
    volume.close().unwrap();
}

/// Background write-back leaves no work to the flush of a later small commit: its data is past the
/// system's cache when it is linked. The data of many files is one write, and scattered blocks are
/// passed on together.
#[test]
fn what_is_written_back_for_nobody_leaves_the_next_fsync_nothing() {
    let (device, volume, base) =
        volume(ModeChoice { data: Some(DataMode::Ordered), ..ModeChoice::default() });
    let make =
        |name: &str| base.make_node(&Caller::ROOT, Ino::ROOT, name.as_bytes(), 0o100_644, 0).unwrap().ino;
    let scattered = make("scattered");
    base.write(scattered, 0, &vec![1; 400 * BLOCK as usize], WriteHow::default()).unwrap();
    let files: Vec<Ino> = (0..200).map(|n| make(&format!("f{n}"))).collect();
    volume.sync().unwrap();
    let run = requests_of(&device);
    for &ino in &files {
        base.write(ino, 0, &[2; BLOCK as usize], WriteHow::default()).unwrap();
    }
    let requests = run(&|| volume.sync().unwrap());
    let data: String = requests.chars().take_while(|step| *step != 'F').collect();
    assert!((1..=4).contains(&data.len()) && data.chars().all(|step| step == 'D'), "{requests}");

    for n in (0..400).step_by(2) {
        base.write(scattered, n * BLOCK, &[3; BLOCK as usize], WriteHow::default()).unwrap();
    }
    let requests = run(&|| volume.sync().unwrap());
    let data: String = requests.chars().take_while(|step| *step != 'F').collect();
    assert_eq!(data, "d".repeat(200) + "p", "{requests}");
    volume.close().unwrap();
}
