//! Counts the requests to a device, for `xact stat` and the benchmarks.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::{BlockDevice, WriteHint};

/// The requests to a device since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Read requests.
    pub reads: u64,
    /// Bytes of the read requests.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes of the write requests.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Flushes with no write since the previous flush.
    pub empty_flushes: u64,
}

/// Passes each request to `inner` and counts it.
pub struct CountingDevice {
    inner: Arc<dyn BlockDevice>,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    empty_flushes: AtomicU64,
    written_since: AtomicBool,
}

impl CountingDevice {
    /// A device that counts the requests to `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> CountingDevice {
        CountingDevice {
            inner,
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            empty_flushes: AtomicU64::new(0),
            written_since: AtomicBool::new(false),
        }
    }

    fn count_write(&self, bufs: &[IoSlice<'_>]) {
        self.writes.fetch_add(1, Relaxed);
        self.written_since.store(true, Relaxed);
        let len: usize = bufs.iter().map(|b| b.len()).sum();
        self.written_bytes.fetch_add(len as u64, Relaxed);
    }

    /// The device itself, for requests that are not counted.
    pub fn uncounted(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    /// The counts of this moment.
    pub fn counts(&self) -> DeviceCounts {
        DeviceCounts {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            empty_flushes: self.empty_flushes.load(Relaxed),
        }
    }
}

impl BlockDevice for CountingDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(buf.len() as u64, Relaxed);
        self.inner.read_at(buf, offset)
    }

    fn read_fresh_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(buf.len() as u64, Relaxed);
        self.inner.read_fresh_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.count_write(&[IoSlice::new(buf)]);
        self.inner.write_at(buf, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.count_write(bufs);
        self.inner.write_vectored_at(bufs, offset)
    }

    fn write_for(&self, bufs: &[IoSlice<'_>], offset: u64, hint: WriteHint) -> io::Result<()> {
        self.count_write(bufs);
        self.inner.write_for(bufs, offset, hint)
    }

    fn flush_page_cache_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.flush_page_cache_range(offset, len)
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Relaxed);
        if !self.written_since.swap(false, Relaxed) {
            self.empty_flushes.fetch_add(1, Relaxed);
        }
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn is_sparse(&self) -> bool {
        self.inner.is_sparse()
    }

    fn holes(&self, offset: u64, len: u64) -> io::Result<Vec<Range<u64>>> {
        self.inner.holes(offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(offset, len)
    }
}
