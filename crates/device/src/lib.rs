//! Block devices below everything else: read, write, flush, and nothing about file systems.
//!
//! `xact::device::open` (`xact/src/device.rs`) opens a device by its name. A new kind of device
//! gets a file here and a case there.
//!
//! The promises of a device, on which the layers above rely:
//! 1. A write has no order with any other write until a flush.
//! 2. When `flush` returns Ok, every write that returned before `flush` was called is durable.
//! 3. A write that a crash interrupts leaves each 512-byte sector old or new, in any mixture.

#![warn(missing_docs)]

mod counting;
mod direct_io;
mod file;
mod host_space;
mod memory;
mod overlay;
mod write_behind;

use std::io::{self, IoSlice};
use std::ops::Range;

pub use counting::{CountingDevice, DeviceCounts};
pub use file::{FileDevice, OpenMode};
pub use host_space::is_full;
pub use memory::MemoryDevice;
pub use overlay::Overlay;

/// A device writes a sector atomically.
pub const SECTOR_BYTES: usize = 512;

/// A device with random access in bytes. Threads share it, and writes may reach it in any order
/// before a flush.
pub trait BlockDevice: Send + Sync + 'static {
    /// Size in bytes, a multiple of the sector size.
    fn size_bytes(&self) -> u64;

    /// Fills `buf` from `offset`. Reading past the end is an error.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// As `read_at`, but from the device itself and not from this system's cache: another machine
    /// may have written there.
    fn read_fresh_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buf, offset)
    }

    /// Writes all of `buf` at `offset`. Writing past the end is an error and writes nothing.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Writes the buffers one after the other from `offset`, as one device write if it can.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let joined: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        self.write_at(&joined, offset)
    }

    /// As `write_vectored_at`, with a hint about the requests that follow. Reads and the next flush
    /// see the data as written when this returns, whatever the hint.
    fn write_for(&self, bufs: &[IoSlice<'_>], offset: u64, _hint: WriteHint) -> io::Result<()> {
        self.write_vectored_at(bufs, offset)
    }

    /// Writes the dirty pages of the range from the operating system's page cache to the device,
    /// and waits for that, so that a flush has less to do. This alone does not make the range
    /// durable.
    fn flush_page_cache_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Makes every write that has returned durable.
    fn flush(&self) -> io::Result<()>;

    /// Declares that the range holds no data. It may read as anything afterwards.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;

    /// Whether a write may need space on a file system below, which may be full then: true for an
    /// image file that may be sparse. If not, there is no need for the two calls that follow.
    fn is_sparse(&self) -> bool {
        false
    }

    /// The parts of a range that may have no space below, in rising order.
    fn holes(&self, _offset: u64, _len: u64) -> io::Result<Vec<Range<u64>>> {
        Ok(Vec::new())
    }

    /// Takes space below for a range, so that a write to it cannot fail for lack of space. Its
    /// contents do not change: a hole reads as zeros before and after.
    ///
    /// Errors: `StorageFull` or `QuotaExceeded`; then a part of the range may have got space.
    fn allocate(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

/// The requests that follow a write, by which a device chooses how to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteHint {
    /// A flush follows at once: the write goes to the device now, not into a cache from which the
    /// flush would take it page by page.
    FlushFollows,
    /// A flush follows later. More writes may come before it, and go to the device together.
    #[default]
    Buffered,
    /// No caller waits for it yet: it may return while the device still works. The next flush
    /// reports errors.
    Background,
}

/// Refuses ranges outside of the device.
pub(crate) fn check_range(size_bytes: u64, offset: u64, len: usize) -> io::Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("range {offset}+{len} lies outside the device of {size_bytes} bytes"),
        )),
    }
}
