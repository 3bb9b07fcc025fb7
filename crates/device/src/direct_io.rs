//! Writes past the operating system's page cache.
//!
//! File data is cached above this crate already; a second copy of it in the page cache costs the
//! memory and the time of one more copy, and a write to a block device is cut into pages there. So
//! what is large and aligned goes straight to the device, and what a flush waits for at once too,
//! since that would only take it out of the cache again: 28 KiB and a flush took 141 us of a loop
//! device instead of 163 (medians of 2,000, a script of the moment). Small writes that more will
//! follow before the flush are left to the cache, which passes them on together. The kernel keeps
//! both ways coherent: a direct write drops the cached pages of its range, having written out what
//! was dirty in it.
//!
//! Reads stay with the page cache: its read-ahead is worth more than the copy.
//!
//! Crash argument: a direct write is in no order with others until a flush, like any other;
//! `fdatasync` of the other descriptor flushes the device's cache for both.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// From here on a write is large.
pub const LARGE_BYTES: usize = 128 << 10;
/// What goes to the device at once.
const CHUNK_BYTES: usize = 4 << 20;
/// Alignment of offsets, lengths and memory that every device is content with.
const ALIGN_BYTES: usize = 4096;
/// Memory that is kept for the next writes, those that nobody waits for included; more is in use
/// only while as many run. A buffer that has to be made costs more than what is written from it:
/// the kernel hands out each of its pages again.
const SPARE_BYTES: usize = 16 << 20;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct AlignedPage([u8; ALIGN_BYTES]);

/// Aligned memory with what is to be written.
pub struct Filled {
    memory: Box<[AlignedPage]>,
    len: usize,
}

impl Filled {
    pub fn bytes(&self) -> &[u8] {
        &self.memory.as_bytes()[..self.len]
    }
}

/// The second descriptor of a device, and memory aligned for it.
pub struct DirectIo {
    file: File,
    /// The device refused what it should have taken.
    refused: AtomicBool,
    /// From small to large.
    spare: Mutex<Vec<Box<[AlignedPage]>>>,
}

impl DirectIo {
    /// Opens what `file` has open once more. `None` where that cannot be done (no `/proc`), or
    /// where what lies below knows no direct writes.
    pub fn open(file: &File) -> Option<DirectIo> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut options = File::options();
        options.write(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC);
        let file = options.open(path).ok()?;
        Some(DirectIo { file, refused: AtomicBool::new(false), spare: Mutex::default() })
    }

    /// Writes, if the range is large and aligned; false where it is not or cannot be done this way.
    /// Part of it may have been written then.
    pub fn write(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<bool> {
        if !self.takes(bufs.iter().map(|b| b.len()).sum(), offset) {
            return Ok(false);
        }
        self.write_chunks(bufs, offset)
    }

    /// As [`Self::write`], of whatever size.
    pub fn write_now(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<bool> {
        if !self.takes_aligned(bufs.iter().map(|b| b.len()).sum(), offset) {
            return Ok(false);
        }
        self.write_chunks(bufs, offset)
    }

    fn write_chunks(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<bool> {
        self.each_chunk(bufs, offset, &mut |filled, offset| {
            let written = self.write_filled(&filled, offset);
            self.give_back(filled);
            written
        })
    }

    /// Copies buffers to aligned memory, chunk by chunk, and calls `each` with that and its offset
    /// on the device, until it gives false.
    pub fn each_chunk(
        &self,
        bufs: &[IoSlice<'_>],
        offset: u64,
        each: &mut dyn FnMut(Filled, u64) -> io::Result<bool>,
    ) -> io::Result<bool> {
        let mut left: usize = bufs.iter().map(|b| b.len()).sum();
        let mut at = offset;
        let mut bytes = bufs.iter().map(|b| &**b);
        let mut rest: &[u8] = &[];
        while left > 0 {
            let len = left.min(CHUNK_BYTES);
            let mut memory = self.memory(len);
            let chunk = &mut memory.as_mut_bytes()[..len];
            let mut filled = 0;
            while filled < len {
                if rest.is_empty() {
                    rest = bytes.next().expect("`left` counts the bytes of all buffers");
                }
                let (now, later) = rest.split_at(rest.len().min(len - filled));
                chunk[filled..filled + now.len()].copy_from_slice(now);
                filled += now.len();
                rest = later;
            }
            if !each(Filled { memory, len }, at)? {
                return Ok(false);
            }
            at += len as u64;
            left -= len;
        }
        Ok(true)
    }

    /// False where the device refuses it.
    pub fn write_filled(&self, filled: &Filled, offset: u64) -> io::Result<bool> {
        if self.refused.load(Relaxed) {
            return Ok(false);
        }
        self.accepted(self.file.write_all_at(filled.bytes(), offset))
    }

    /// Whether what is so long and goes there may be written this way.
    pub fn takes(&self, len: usize, offset: u64) -> bool {
        len >= LARGE_BYTES && self.takes_aligned(len, offset)
    }

    fn takes_aligned(&self, len: usize, offset: u64) -> bool {
        len % ALIGN_BYTES == 0 && offset % ALIGN_BYTES as u64 == 0 && !self.refused.load(Relaxed)
    }

    /// `EINVAL` is how the kernel says that it wants another alignment, or none of this at all.
    fn accepted(&self, result: io::Result<()>) -> io::Result<bool> {
        match result {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                self.refused.store(true, Relaxed);
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    /// A buffer of at least `bytes`, a multiple of the alignment: the smallest spare one, or a new
    /// one.
    fn memory(&self, bytes: usize) -> Box<[AlignedPage]> {
        let pages = bytes / ALIGN_BYTES;
        let mut spare = self.spare.lock();
        let first = spare.partition_point(|memory| memory.len() < pages);
        if first < spare.len() {
            return spare.remove(first);
        }
        drop(spare);
        vec![AlignedPage([0; ALIGN_BYTES]); pages.next_power_of_two()].into()
    }

    /// Keeps the memory, and drops smaller buffers where there are too many: they are cheaper to
    /// make.
    pub fn give_back(&self, filled: Filled) {
        let mut spare = self.spare.lock();
        spare.push(filled.memory);
        spare.sort_unstable_by_key(|memory| memory.len());
        let mut kept: usize = spare.iter().map(|memory| size_of_val(&**memory)).sum();
        while kept > SPARE_BYTES {
            kept -= size_of_val(&*spare.remove(0));
        }
    }
}

#[cfg(test)]
impl DirectIo {
    /// As if the device had refused a write.
    pub fn refuse(&self) {
        self.refused.store(true, Relaxed);
    }

    pub fn filled(&self, bytes: &[u8]) -> Filled {
        let mut memory = self.memory(bytes.len());
        memory.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        Filled { memory, len: bytes.len() }
    }
}
