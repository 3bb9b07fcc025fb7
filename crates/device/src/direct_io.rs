//! Writes past the operating system's page cache.
//!
//! File data is cached above this crate already. A second copy of it in the page cache costs the
//! memory and the time of one more copy, and a write to a block device is cut into pages there. So
//! large, aligned writes go straight to the device. So do writes that a flush follows at once,
//! since the flush would only take them out of the cache again. Small writes that more will follow
//! before the flush go to the cache, which writes them together. The kernel keeps both ways
//! coherent: a direct write drops the cached pages of its range, after it has written out the dirty
//! ones.
//!
//! Reads use the page cache: its read-ahead is worth more than the copy.
//!
//! Crash argument: a direct write has no order with other writes until a flush, like any other;
//! `fdatasync` of the other descriptor flushes the device's cache for both.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Writes of at least this size are large.
pub const LARGE_BYTES: usize = 128 << 10;
/// The size of one write to the device.
const CHUNK_BYTES: usize = 4 << 20;
/// An alignment of offsets, lengths and memory that every device accepts.
const ALIGN_BYTES: usize = 4096;
/// Memory that is kept for the next writes, those in the background included. More is in use only
/// while that many writes run. A new buffer costs more than the write from it: the kernel has to
/// allocate each of its pages again.
const SPARE_BYTES: usize = 16 << 20;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct AlignedPage([u8; ALIGN_BYTES]);

/// Aligned memory with the bytes to write.
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
    /// The device refused a write that it should have accepted.
    refused: AtomicBool,
    /// From small to large.
    spare: Mutex<Vec<Box<[AlignedPage]>>>,
}

impl DirectIo {
    /// Opens the file of `file` once more. `None` if that is impossible (no `/proc`), or if the
    /// device below does not support direct writes.
    pub fn open(file: &File) -> Option<DirectIo> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut options = File::options();
        options.write(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC);
        let file = options.open(path).ok()?;
        Some(DirectIo { file, refused: AtomicBool::new(false), spare: Mutex::default() })
    }

    /// Writes, if the range is large and aligned; false if it is not, or cannot be written this
    /// way. Part of it may have been written then.
    pub fn write(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<bool> {
        if !self.takes(bufs.iter().map(|b| b.len()).sum(), offset) {
            return Ok(false);
        }
        self.write_chunks(bufs, offset)
    }

    /// As [`Self::write`], for any size.
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

    /// Copies buffers to aligned memory, chunk by chunk, and calls `each` with that memory and its
    /// offset on the device, until it returns false.
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

    /// False if the device refuses it.
    pub fn write_filled(&self, filled: &Filled, offset: u64) -> io::Result<bool> {
        if self.refused.load(Relaxed) {
            return Ok(false);
        }
        self.accepted(self.file.write_all_at(filled.bytes(), offset))
    }

    /// Whether a write of this length at this offset may go this way.
    pub fn takes(&self, len: usize, offset: u64) -> bool {
        len >= LARGE_BYTES && self.takes_aligned(len, offset)
    }

    fn takes_aligned(&self, len: usize, offset: u64) -> bool {
        len % ALIGN_BYTES == 0 && offset % ALIGN_BYTES as u64 == 0 && !self.refused.load(Relaxed)
    }

    /// `EINVAL` is how the kernel asks for another alignment, or refuses direct writes.
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

    /// Keeps the memory, and drops smaller buffers if there are too many: they are cheaper to
    /// allocate.
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
