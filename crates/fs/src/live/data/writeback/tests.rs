//! The size on disk after each batch of a write-back that takes several, and between the parts of a
//! write.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use xact_device::MemoryDevice;
use xact_types::{Ino, Steps};

use super::{Scope, WritebackRequest};
use crate::api::{Allocate, Caller, SetAttr, View, WriteHow};
use crate::journal_modes::{DataMode, ModeChoice};
use crate::live::LiveFs;
use crate::mkfs::{MkfsOptions, mkfs};
use crate::volume::{VolumeOptions, open};

const PAGE: u64 = 1024;
const BATCH_PAGES: usize = 3;

fn volume(data: DataMode) -> Arc<LiveFs> {
    volume_with(data, Steps { batch_pages: BATCH_PAGES, ..Steps::default() })
}

fn volume_with(data: DataMode, steps: Steps) -> Arc<LiveFs> {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs(&*device, &MkfsOptions { block_size: Some(PAGE as u32), ..MkfsOptions::default() }).unwrap();
    let options = VolumeOptions {
        flusher: false,
        steps,
        modes: ModeChoice { data: Some(data), ..ModeChoice::default() },
        ..VolumeOptions::default()
    };
    open(device, &options).unwrap()
}

/// A change of a file that is not written back: bytes at an offset, blocks without data, a size.
#[derive(Debug, Clone, Copy)]
enum Change {
    Write(u64, u64),
    Reserve(u64, bool),
    Size(u64),
}

fn apply(fs: &LiveFs, ino: Ino, change: Change) {
    match change {
        Change::Write(at, len) => {
            _ = fs.write(ino, at, &vec![7; len as usize], WriteHow::default()).unwrap();
        }
        Change::Reserve(len, keep_size) => {
            fs.allocate(&Caller::ROOT, ino, 0, len, Allocate::Reserve { keep_size }).unwrap();
        }
        Change::Size(size) => {
            _ = fs.set_attr(&Caller::ROOT, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
        }
    }
}

/// Each commit may be the last one before a crash, so the size on disk covers no page that is
/// still dirty: the file would end in zeros instead of its data. After the last batch it is the
/// size that callers see.
#[test]
fn the_size_on_disk_covers_no_page_that_waits_for_a_later_batch() {
    use Change::{Reserve, Size, Write};
    let changes: [(&[Change], &[Change]); 8] = [
        (&[], &[Write(0, 10 * PAGE)]),
        (&[], &[Write(0, 9 * PAGE)]),
        (&[], &[Write(100, 9 * PAGE + 7)]),
        (&[Write(0, 2 * PAGE + 5)], &[Write(2 * PAGE + 5, 8 * PAGE)]),
        (&[Write(0, 5 * PAGE)], &[Write(0, 12 * PAGE)]),
        (&[], &[Write(0, PAGE), Write(5 * PAGE, PAGE), Write(9 * PAGE, 4 * PAGE)]),
        (&[Reserve(20 * PAGE, true)], &[Write(0, 11 * PAGE)]),
        (&[Write(0, 4 * PAGE)], &[Write(4 * PAGE, 6 * PAGE), Size(30 * PAGE)]),
    ];
    for data in [DataMode::Ordered, DataMode::Writeback, DataMode::Journal] {
        for scope in [Scope::Data, Scope::Inode] {
            for (n, (before, change)) in changes.iter().enumerate() {
                let what = format!("{data:?}, {before:?}, {change:?}");
                let fs = volume(data);
                let name = format!("file{n}");
                let ino = fs.make_node(&Caller::ROOT, Ino::ROOT, name.as_bytes(), 0o100_644, 0).unwrap().ino;
                before.iter().for_each(|change| apply(&fs, ino, *change));
                fs.sync_all().unwrap();
                change.iter().for_each(|change| apply(&fs, ino, *change));
                let cached = fs.cached_inode(ino).unwrap();
                let size_before = cached.state.read().inode.size();
                let how = WritebackRequest { scope, synced: true };
                let mut batches = 0;
                loop {
                    let guard = RwLock::upgradable_read_arc(&cached.state);
                    let more = fs.write_batch(&cached, guard, how).unwrap();
                    batches += 1;
                    let state = cached.state.read();
                    let pages = cached.pages.lock();
                    let dirty = pages.map.iter().find(|(_, page)| page.dirty).map(|(at, _)| *at);
                    let on_disk = state.inode.size();
                    if let Some(dirty) = dirty {
                        let covered = size_before.max(u64::from(dirty) * PAGE);
                        assert!(on_disk <= covered, "{what}: {on_disk} with page {dirty} still dirty");
                    } else if !more {
                        assert_eq!(on_disk, state.size, "{what}");
                    }
                    if !more {
                        break;
                    }
                }
                assert!(batches > 1, "{what}: {batches} batches");
            }
        }
    }
}

/// A batch that is not the last ends between two writes, so the size on disk shows no half write,
/// unless one write is longer than a batch.
#[test]
fn the_size_on_disk_stops_between_writes() {
    const WRITE: u64 = PAGE + PAGE / 2;
    for data in [DataMode::Ordered, DataMode::Journal] {
        let fs = volume(data);
        let ino = fs.make_node(&Caller::ROOT, Ino::ROOT, b"file", 0o100_644, 0).unwrap().ino;
        for n in 0..20 {
            apply(&fs, ino, Change::Write(n * WRITE, WRITE));
        }
        let cached = fs.cached_inode(ino).unwrap();
        let mut sizes = Vec::new();
        loop {
            let guard = RwLock::upgradable_read_arc(&cached.state);
            let more = fs.write_batch(&cached, guard, WritebackRequest::INODE).unwrap();
            sizes.push(size_on_disk(&fs, ino));
            if !more {
                break;
            }
        }
        assert!(sizes.len() > 5, "{sizes:?}");
        assert!(sizes.iter().all(|size| size.is_multiple_of(WRITE)), "{sizes:?}");
        let mut read = Vec::new();
        fs.read(ino, 0, 40 * PAGE as usize, &mut read).unwrap();
        assert!(read.len() as u64 == 20 * WRITE && read.iter().all(|byte| *byte == 7));
    }
}

/// A file of 14 pages and a half, of whose next write the first half page has arrived.
fn half_written(next_part: Duration) -> (Arc<LiveFs>, Ino) {
    let fs = volume_with(DataMode::Ordered, Steps { next_part, ..Steps::default() });
    let ino = fs.make_node(&Caller::ROOT, Ino::ROOT, b"file", 0o100_644, 0).unwrap().ino;
    apply(&fs, ino, Change::Write(0, 14 * PAGE + PAGE / 2));
    fs.sync_all().unwrap();
    let part = WriteHow { is_part: true, ..WriteHow::default() };
    _ = fs.write(ino, 14 * PAGE + PAGE / 2, &[7; PAGE as usize / 2], part).unwrap();
    (fs, ino)
}

fn size_on_disk(fs: &LiveFs, ino: Ino) -> u64 {
    fs.cached_inode(ino).unwrap().state.read().inode.size()
}

/// The size on disk does not stop between two parts of a write.
#[test]
fn the_size_on_disk_waits_for_the_rest_of_a_write() {
    let (fs, ino) = half_written(Duration::from_secs(60));
    let sync = thread::spawn({
        let fs = fs.clone();
        move || fs.sync_all()
    });
    thread::sleep(Duration::from_millis(20));
    assert_eq!(size_on_disk(&fs, ino), 14 * PAGE + PAGE / 2);
    apply(&fs, ino, Change::Write(15 * PAGE, 4 * PAGE));
    sync.join().unwrap().unwrap();
    assert_eq!(size_on_disk(&fs, ino), 19 * PAGE);
    assert_eq!(fs.attr(ino).unwrap().size, 19 * PAGE);

    let (fs, ino) = half_written(Duration::from_secs(60));
    fs.end_write(ino);
    fs.sync_all().unwrap();
    assert_eq!(size_on_disk(&fs, ino), 15 * PAGE);
}

#[test]
fn write_back_does_not_wait_for_a_dead_writer() {
    const WAIT: Duration = Duration::from_millis(30);
    let (fs, ino) = half_written(WAIT);
    let began = Instant::now();
    fs.sync_file(ino, false).unwrap();
    assert_eq!(size_on_disk(&fs, ino), 15 * PAGE);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
