//! The volume as numbered blocks: bounds, counting, grouped flushes, and the first failure.

use std::io::{ErrorKind, IoSlice};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use xact_device::{BlockDevice, CountingDevice, DeviceCounts, WriteHint};
use xact_types::{BlockNr, Error, Result, Site};

use super::block::{BlockRef, BlockSource};
use super::poison::Poison;
use super::superblock_watch::{self, SuperblockWatch};
use super::waits::{WaitRegistry, Waiting};

/// Most blocks that one device write takes; bounds the memory for its list of buffers.
const MAX_RUN_BLOCKS: usize = 4096;

/// Minimum time between two messages about a full host.
const HOST_FULL_LOG_INTERVAL: Duration = Duration::from_secs(60);

pub(crate) struct Volume {
    device: CountingDevice,
    pub block_size: usize,
    /// Number of blocks. The number of every block of a file or of ext4's metadata is below it.
    pub blocks: u64,
    /// Blocks that can be read and written: the above, and the pool of a generations volume after
    /// them.
    reach: u64,
    /// The journal's own blocks, which must not be written as anything else.
    reserved: RwLock<Vec<Range<u64>>>,
    pub poison: Poison,
    flushes: FlushGate,
    /// The last attempt to take space on the host has failed.
    host_is_full: AtomicBool,
    /// When the log last said so.
    host_full_logged: Mutex<Option<Instant>>,
    /// The flush that covers all file data written so far.
    data_ticket: AtomicU64,
    /// The registry in which waits within handles are noted.
    waits: OnceLock<Weak<dyn WaitRegistry>>,
    superblock: SuperblockWatch,
}

impl Volume {
    /// `Corrupt` if the device is smaller than the volume.
    pub fn new(device: Arc<dyn BlockDevice>, block_size: usize, blocks: u64) -> Result<Volume> {
        let needed = blocks.checked_mul(block_size as u64);
        if needed.is_none_or(|bytes| bytes > device.size_bytes()) {
            return Err(Error::corrupt(Site::Superblock, "says that the volume is larger than its device"));
        }
        Ok(Volume {
            device: CountingDevice::new(device),
            block_size,
            blocks,
            reach: blocks,
            reserved: RwLock::default(),
            poison: Poison::default(),
            flushes: FlushGate::default(),
            host_is_full: AtomicBool::new(false),
            host_full_logged: Mutex::default(),
            data_ticket: AtomicU64::new(0),
            waits: OnceLock::new(),
            superblock: SuperblockWatch::default(),
        })
    }

    /// Notes waits for the device in `registry` from now on.
    pub fn note_waits_in(&self, registry: &Arc<dyn WaitRegistry>) {
        assert!(self.waits.set(Arc::downgrade(registry)).is_ok(), "a volume has one pipeline");
    }

    /// See [`crate::Engine::waits`].
    pub fn waits(&self) -> Option<Waiting> {
        self.waits.get()?.upgrade()?.begin_wait()
    }

    /// Lets blocks after the volume be read and written, up to `blocks` in all.
    pub fn extend_reach(&mut self, blocks: u64) {
        assert!(blocks >= self.blocks, "the pool lies behind the volume");
        self.reach = blocks;
    }

    /// Lets only the journal write these blocks.
    pub fn reserve(&self, ranges: Vec<Range<u64>>) {
        *self.reserved.write() = ranges;
    }

    pub fn counts(&self) -> DeviceCounts {
        self.device.counts()
    }

    pub fn device_is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    /// `Corrupt` unless all of the blocks lie on the volume.
    pub fn check_range(&self, start: BlockNr, count: u64) -> Result<()> {
        match start.0.checked_add(count) {
            Some(end) if end <= self.blocks => Ok(()),
            _ => Err(Error::corrupt(Site::Block(start), "block number lies outside the volume")),
        }
    }

    /// As [`Self::check_range`], for blocks that any code but the journal is about to change.
    pub fn check_writable(&self, start: BlockNr, count: u64) -> Result<()> {
        self.check_range(start, count)?;
        let end = start.0 + count;
        if self.reserved.read().iter().any(|r| start.0 < r.end && r.start < end) {
            return Err(Error::corrupt(Site::Block(start), "block belongs to the journal"));
        }
        Ok(())
    }

    fn check_reach(&self, start: BlockNr, count: u64) -> Result<()> {
        match start.0.checked_add(count) {
            Some(end) if end <= self.reach => Ok(()),
            _ => Err(Error::corrupt(Site::Block(start), "block number lies outside the volume")),
        }
    }

    /// Number of whole blocks in a buffer.
    pub fn blocks_in(&self, bytes: usize) -> Result<u64> {
        if !bytes.is_multiple_of(self.block_size) {
            return Err(Error::Usage("a buffer is not a multiple of the block size".into()));
        }
        Ok((bytes / self.block_size) as u64)
    }

    fn offset(&self, block: BlockNr) -> u64 {
        block.0 * self.block_size as u64
    }

    pub fn read(&self, start: BlockNr, buf: &mut [u8]) -> Result<()> {
        self.check_reach(start, self.blocks_in(buf.len())?)?;
        let _waits = self.waits();
        self.device.read_at(buf, self.offset(start)).map_err(|e| Error::io("reading the volume", e))
    }

    /// Reads one block into memory of its own.
    pub fn read_block(&self, block: BlockNr) -> Result<BlockRef> {
        let mut contents: BlockRef = std::iter::repeat_n(0, self.block_size).collect();
        let bytes = Arc::get_mut(&mut contents).expect("it has one reference");
        self.read(block, bytes)?;
        Ok(contents)
    }

    /// Writes buffers of whole blocks from `start` on; a failure poisons.
    pub fn write(&self, start: BlockNr, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.write_for(start, bufs, WriteHint::Buffered)
    }

    /// As `write`, with a hint about the writes that follow.
    pub fn write_for(&self, start: BlockNr, bufs: &[IoSlice<'_>], hint: WriteHint) -> Result<()> {
        self.poison.check()?;
        let bytes = bufs.iter().map(|b| b.len()).sum();
        self.check_reach(start, self.blocks_in(bytes)?)?;
        let offset = self.offset(start);
        let _waits = self.waits();
        let write = || match (bufs, hint) {
            ([one], WriteHint::Buffered) => self.device.write_at(one, offset),
            _ => self.device.write_for(bufs, offset, hint),
        };
        let device = self.device.uncounted();
        let written = if superblock_watch::covers(offset, bytes) {
            let mut own = self.superblock.write();
            if !superblock_watch::is_own(&own, device) {
                return Err(self.has_other_writer());
            }
            let written = write();
            if let (Some(own), Ok(())) = (&mut *own, &written) {
                superblock_watch::take_over(own, bufs, offset);
            }
            written
        } else {
            let is_unchanged = match hint {
                WriteHint::FlushFollows => self.superblock.is_unchanged(device),
                _ => self.superblock.is_unchanged_lately(device),
            };
            if !is_unchanged {
                return Err(self.has_other_writer());
            }
            write()
        };
        written.map_err(|e| self.fail("writing the volume", e))
    }

    /// From now on, writes fail if another program has changed the superblock.
    pub fn watch_superblock(&self) {
        self.superblock.start(self.device.uncounted());
    }

    /// Fails, and poisons, if another program has changed the superblock.
    pub fn check_superblock(&self) -> Result<()> {
        if self.superblock.is_unchanged(self.device.uncounted()) {
            Ok(())
        } else {
            Err(self.has_other_writer())
        }
    }

    fn has_other_writer(&self) -> Error {
        self.poison.set(superblock_watch::CHANGED);
        Error::Poisoned(superblock_watch::CHANGED.into())
    }

    /// See [`BlockDevice::flush_page_cache_range`]; a failure poisons, since the next flush need
    /// not report it.
    pub fn flush_page_cache_range(&self, start: BlockNr, count: u64) -> Result<()> {
        self.poison.check()?;
        self.check_reach(start, count)?;
        let passed = self.device.flush_page_cache_range(self.offset(start), count * self.block_size as u64);
        passed.map_err(|e| self.fail("writing the volume", e))
    }

    /// Writes blocks that are sorted by number, each at most once, with one device write for each
    /// run.
    pub fn write_sorted<T: AsRef<[u8]>>(&self, blocks: &[(BlockNr, T)]) -> Result<()> {
        self.write_sorted_for(blocks, WriteHint::Buffered)
    }

    /// As `write_sorted`, with a hint about the writes that follow.
    pub fn write_sorted_for<T: AsRef<[u8]>>(&self, blocks: &[(BlockNr, T)], hint: WriteHint) -> Result<()> {
        let mut rest = blocks;
        while let [(start, _), ..] = rest {
            let in_run = |i: usize| i < MAX_RUN_BLOCKS && rest[i].0.0 == start.0 + i as u64;
            let len = (1..rest.len()).find(|&i| !in_run(i)).unwrap_or(rest.len());
            let bufs: Vec<IoSlice<'_>> = rest[..len].iter().map(|(_, b)| IoSlice::new(b.as_ref())).collect();
            self.write_for(*start, &bufs, hint)?;
            rest = &rest[len..];
        }
        Ok(())
    }

    pub fn discard(&self, start: BlockNr, count: u64) -> Result<()> {
        self.check_writable(start, count)?;
        self.device
            .discard(self.offset(start), count * self.block_size as u64)
            .map_err(|e| Error::io("discarding blocks", e))
    }

    /// See [`BlockDevice::is_sparse`].
    pub fn is_sparse(&self) -> bool {
        self.device.is_sparse()
    }

    /// The blocks of a range that may have no space on the host, in rising order.
    pub fn holes(&self, start: BlockNr, count: u64) -> Result<Vec<Range<u64>>> {
        self.check_reach(start, count)?;
        let size = self.block_size as u64;
        let holes = self.device.holes(self.offset(start), count * size);
        let holes = holes.map_err(|e| Error::io("looking for holes of the image", e))?;
        Ok(holes.into_iter().map(|hole| hole.start / size..hole.end.div_ceil(size)).collect())
    }

    /// Takes space on the host for a range. `HostFull`, also for want of memory (tmpfs). A failure
    /// changes nothing and poisons nothing: the device checks the image again at the next write.
    pub fn allocate(&self, start: BlockNr, count: u64) -> Result<()> {
        self.poison.check()?;
        self.check_reach(start, count)?;
        let _waits = self.waits();
        match self.device.allocate(self.offset(start), count * self.block_size as u64) {
            Ok(()) => {
                self.host_is_full.store(false, Relaxed);
                Ok(())
            }
            Err(e) if xact_device::is_full(&e) || e.kind() == ErrorKind::OutOfMemory => {
                self.host_is_full.store(true, Relaxed);
                // Near the end, large requests fail and small ones succeed.
                let mut logged = self.host_full_logged.lock();
                if logged.is_none_or(|at| at.elapsed() > HOST_FULL_LOG_INTERVAL) {
                    *logged = Some(Instant::now());
                    tracing::warn!(
                        "the host file system of the image is full: calls that need more of it fail with \"no space\", \
                         until there is space again"
                    );
                }
                Err(Error::HostFull)
            }
            Err(e) => Err(Error::io("taking space on the host", e)),
        }
    }

    /// Whether the last attempt to take space on the host has failed.
    pub fn is_host_full(&self) -> bool {
        self.host_is_full.load(Relaxed)
    }

    /// Takes space on the host for the holes of ranges of blocks.
    pub fn fill_holes(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Result<()> {
        if !self.is_sparse() {
            return Ok(());
        }
        for range in ranges {
            for hole in self.holes(BlockNr(range.start), range.end - range.start)? {
                self.allocate(BlockNr(hole.start), hole.end - hole.start)?;
            }
        }
        Ok(())
    }

    /// Every write that has returned is durable when this returns; a failure poisons.
    pub fn flush(&self) -> Result<()> {
        self.flush_for(self.flush_ticket())
    }

    /// The flush that will cover all writes that have returned by now; see [`Self::flush_for`].
    pub fn flush_ticket(&self) -> u64 {
        self.flushes.started.load(SeqCst) + 1
    }

    /// Waits until a flush that began after [`Self::flush_ticket`] has ended, or flushes. Many
    /// threads that wait for one flush share the next.
    pub fn flush_for(&self, ticket: u64) -> Result<()> {
        if self.flushes.completed.load(SeqCst) >= ticket {
            return Ok(());
        }
        let _waits = self.waits();
        let _turn = self.flushes.turn.lock();
        if self.flushes.completed.load(SeqCst) >= ticket {
            return Ok(());
        }
        self.poison.check()?;
        // New writes may miss this flush from here on: they take the next ticket.
        let this = self.flushes.started.fetch_add(1, SeqCst) + 1;
        self.device.flush().map_err(|e| self.fail("flushing the volume", e))?;
        self.flushes.completed.store(this, SeqCst);
        Ok(())
    }

    /// File data was written. Metadata that refers to it may become durable only after it.
    pub fn note_data(&self) {
        self.data_ticket.fetch_max(self.flush_ticket(), SeqCst);
    }

    /// The flush that covers all file data noted so far; see [`Self::flush_for`].
    pub fn data_ticket(&self) -> u64 {
        self.data_ticket.load(SeqCst)
    }

    /// All file data noted before the call is durable when this returns. Flushes only if no later
    /// flush has covered it.
    pub fn flush_data(&self) -> Result<()> {
        self.flush_for(self.data_ticket())
    }

    fn fail(&self, what: &'static str, error: std::io::Error) -> Error {
        self.poison.set(&format!("{what}: {error}"));
        Error::io(what, error)
    }
}

impl BlockSource for Volume {
    fn read_block(&self, block: BlockNr) -> Result<BlockRef> {
        Volume::read_block(self, block)
    }
}

/// Numbers the device's flushes, of which one runs at a time.
#[derive(Default)]
struct FlushGate {
    started: AtomicU64,
    completed: AtomicU64,
    turn: Mutex<()>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use xact_device::MemoryDevice;

    fn volume() -> Volume {
        Volume::new(Arc::new(MemoryDevice::new(64 * 1024)), 1024, 64).unwrap()
    }

    #[test]
    fn bounds() {
        let v = volume();
        v.reserve(std::iter::once(10..20).collect());
        assert!(v.check_range(BlockNr(63), 1).is_ok());
        assert!(v.check_range(BlockNr(63), 2).is_err());
        assert!(v.check_range(BlockNr(u64::MAX), 2).is_err());
        assert!(v.check_writable(BlockNr(9), 1).is_ok());
        assert!(v.check_writable(BlockNr(9), 2).is_err());
        assert!(v.check_writable(BlockNr(20), 1).is_ok());
        assert!(v.read(BlockNr(0), &mut [0; 1000]).is_err());
        let device = Arc::new(MemoryDevice::new(1024));
        assert!(Volume::new(device.clone(), 1024, 2).is_err());
        assert!(Volume::new(device, 1024, u64::MAX).is_err());
    }

    #[test]
    fn runs_are_one_write_each() {
        let v = volume();
        let block = |n: u64| (BlockNr(n), vec![n as u8; 1024]);
        v.write_sorted(&[block(1), block(2), block(3), block(7), block(9), block(10)]).unwrap();
        assert_eq!(v.counts().writes, 3);
        for n in [1, 2, 3, 7, 9, 10] {
            assert_eq!(v.read_block(BlockNr(n)).unwrap()[5], n as u8);
        }
        assert_eq!(v.read_block(BlockNr(4)).unwrap()[5], 0);
    }

    #[test]
    fn one_flush_serves_all_that_came_before_it() {
        let v = volume();
        let (a, b) = (v.flush_ticket(), v.flush_ticket());
        v.flush_for(a).unwrap();
        v.flush_for(b).unwrap();
        assert_eq!(v.counts().flushes, 1);
        v.flush().unwrap();
        assert_eq!(v.counts().flushes, 2);
    }

    #[test]
    fn data_is_flushed_once() {
        let v = volume();
        v.flush_data().unwrap();
        assert_eq!(v.counts().flushes, 0);
        v.note_data();
        v.flush_data().unwrap();
        v.flush_data().unwrap();
        assert_eq!(v.counts().flushes, 1);
        v.note_data();
        v.flush().unwrap();
        v.flush_data().unwrap();
        assert_eq!(v.counts().flushes, 2);
    }
}
