//! An image file or a block device of the operating system.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::direct_io::DirectIo;
use crate::host_space;
use crate::write_behind::WriteBehind;
use crate::{BlockDevice, WriteHint, check_range};

/// How an image is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Shared with other readers.
    ReadOnly,
    /// Exclusive: a second opening in either mode is refused while it is open.
    ReadWrite,
}

/// An image file or block device, locked while it is open (DESIGN rule 6): `flock` keeps other
/// xact processes away from both kinds, `O_EXCL` keeps the kernel's own mounts away from a block
/// device.
///
/// No lock keeps another program from truncating or deleting an image. So every write and every
/// flush fails once that has happened: a flush must not report contents as durable that no path
/// leads to, and a write past a new end must not make the file as long as before, with zeros in
/// place of what was lost. The check is before a write and after the flush. (A program that
/// truncates the image between the check and a write to its very end is not noticed.)
pub struct FileDevice {
    file: File,
    /// The kernel's claim on a block device that is written: a descriptor with `O_EXCL`.
    claim: Mutex<Option<File>>,
    /// `None` on a device that is not written, or if the system cannot write past its page cache.
    direct_io: Option<Arc<DirectIo>>,
    write_behind: Option<WriteBehind>,
    size_bytes: u64,
    mode: OpenMode,
    /// `None` for a block device.
    image: Option<Image>,
}

/// An image file as it was when it was opened.
struct Image {
    /// It had a name.
    is_linked: bool,
    len: u64,
    /// It is written, and its host can give space to a part of it.
    is_sparse: AtomicBool,
}

impl FileDevice {
    /// Opens and locks `path`.
    ///
    /// Errors: as `open(2)`; `EROFS` for a block device that refuses writes, if it is opened for
    /// writing; `WouldBlock` if another process has it open; `InvalidInput` if it is
    /// neither a regular file nor a block device.
    pub fn open(path: &Path, mode: OpenMode) -> io::Result<FileDevice> {
        let kind = std::fs::metadata(path)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "neither an image file nor a block device",
            ));
        }
        let claimed = kind.is_block_device() && mode == OpenMode::ReadWrite;
        let claim = Mutex::new(if claimed { Some(claim(path)?) } else { None });
        let file = OpenOptions::new().read(true).write(mode == OpenMode::ReadWrite).open(path)?;
        lock(&file, mode)?;
        if claimed && is_write_protected(&file)? {
            // Opening such a device for writing succeeds, and each write to it fails.
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        let image = if kind.is_block_device() {
            None
        } else {
            let about = file.metadata()?;
            let is_sparse = mode == OpenMode::ReadWrite && host_space::can_allocate(&file);
            Some(Image { is_linked: about.nlink() > 0, len: about.len(), is_sparse: is_sparse.into() })
        };
        let size_bytes = match &image {
            Some(image) => image.len,
            None => block_device_size(&file)?,
        };
        let size_bytes = size_bytes - size_bytes % crate::SECTOR_BYTES as u64;
        let direct = if mode == OpenMode::ReadWrite { DirectIo::open(&file) } else { None };
        let direct = direct.map(Arc::new);
        let behind = direct.clone().map(|direct| WriteBehind::new(&file, direct)).transpose()?;
        Ok(FileDevice { file, claim, direct_io: direct, write_behind: behind, size_bytes, mode, image })
    }
}

impl FileDevice {
    /// Fails with `WouldBlock` if another process has locked `path` for writing, and as `open(2)`.
    /// Opens it for reading only, and leaves no lock.
    pub fn probe(path: &Path) -> io::Result<()> {
        let kind = std::fs::metadata(path)?.file_type();
        if kind.is_file() || kind.is_block_device() {
            lock(&File::open(path)?, OpenMode::ReadOnly)?;
        }
        Ok(())
    }

    /// Waits for the running writes to a range.
    fn wait_for_range(&self, offset: u64, len: usize) {
        if let Some(behind) = &self.write_behind {
            behind.wait_for_range(offset, len as u64);
        }
    }

    /// The image file or block device.
    pub fn as_file(&self) -> &File {
        &self.file
    }

    /// Ends the kernel's claim on a block device, so that the kernel can mount it for this process.
    /// Another process may write to it before [`FileDevice::reclaim`], or before that mount.
    pub fn release_claim(&self) {
        *self.claim.lock() = None;
    }

    /// Claims a block device that is written again. `EBUSY` if another process has claimed it.
    pub fn reclaim(&self) -> io::Result<()> {
        if self.mode == OpenMode::ReadWrite && self.file.metadata()?.file_type().is_block_device() {
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            *self.claim.lock() = Some(claim(Path::new(&path))?);
        }
        Ok(())
    }

    /// Fails if another program has truncated or deleted the image since it was opened.
    fn check_image(&self) -> io::Result<()> {
        let Some(image) = &self.image else { return Ok(()) };
        let (len, links) = len_and_links(&self.file)?;
        if len < image.len {
            return Err(io::Error::other(format!(
                "another program has truncated the image from {} to {len} bytes",
                image.len,
            )));
        }
        if image.is_linked && links == 0 {
            return Err(io::Error::other("another program has deleted or replaced the image"));
        }
        Ok(())
    }

    /// Lets other processes open the file, while the device itself may live on. Nothing may be read
    /// or written after the call.
    pub fn unlock(&self) -> io::Result<()> {
        self.release_claim();
        // SAFETY: flock takes a descriptor that `file` keeps open and no memory.
        match unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl FileDevice {
    /// Writes through the system's page cache.
    fn write_cached(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for batch in bufs.chunks(libc::UIO_MAXIOV as usize) {
            let len: usize = batch.iter().map(|b| b.len()).sum();
            // SAFETY: IoSlice has the layout of iovec, and the slices outlive the call.
            let written = unsafe {
                libc::pwritev(
                    self.file.as_raw_fd(),
                    batch.as_ptr().cast(),
                    batch.len() as libc::c_int,
                    at as libc::off_t,
                )
            };
            if written < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            // A short write is legal; `pwrite` writes the rest.
            let mut skip = written.max(0) as usize;
            if skip < len {
                let mut place = at + skip as u64;
                for buf in batch {
                    let from = skip.min(buf.len());
                    skip -= from;
                    self.file.write_all_at(&buf[from..], place)?;
                    place += (buf.len() - from) as u64;
                }
            }
            at += len as u64;
        }
        Ok(())
    }
}

/// How long opening tries to take the lock. A process that another thread starts has a copy of
/// every descriptor until it executes its program, and with it the lock of a device that was closed
/// a moment ago.
const LOCK_TIMEOUT: Duration = Duration::from_millis(300);

/// The length of a file in bytes and its number of names.
///
/// It asks for nothing else. Linux 6.13 and later give a file a new time of change at the next
/// write after a call has asked for its times, which costs the host's file system a quarter of
/// the speed of small synced writes.
fn len_and_links(file: &File) -> io::Result<(u64, u32)> {
    // SAFETY: statx is plain data, for which zeros are valid.
    let mut about: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, wanted) = (file.as_raw_fd(), libc::STATX_SIZE | libc::STATX_NLINK);
    // SAFETY: statx takes a descriptor that `file` keeps open, a terminated string, and memory for
    // its result that outlives the call.
    let status = unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, wanted, &mut about) };
    match status {
        0 => Ok((about.stx_size, about.stx_nlink)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Claims a block device: the kernel then refuses to mount it, and other claims.
fn claim(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path)
}

fn lock(file: &File, mode: OpenMode) -> io::Result<()> {
    let how = match mode {
        OpenMode::ReadOnly => libc::LOCK_SH,
        OpenMode::ReadWrite => libc::LOCK_EX,
    };
    let begun = Instant::now();
    loop {
        // SAFETY: flock takes a descriptor that `file` keeps open and no memory.
        if unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock || begun.elapsed() > LOCK_TIMEOUT {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn block_device_size(file: &File) -> io::Result<u64> {
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    let mut size = 0u64;
    // SAFETY: BLKGETSIZE64 writes one u64 through the pointer, which outlives the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64 as _, &mut size) } == 0 {
        Ok(size)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether a block device refuses writes (`blockdev --setro`).
fn is_write_protected(file: &File) -> io::Result<bool> {
    const BLKROGET: libc::c_ulong = 0x125e;
    let mut protected: libc::c_int = 0;
    // SAFETY: BLKROGET writes one int through the pointer, which outlives the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET as _, &mut protected) } == 0 {
        Ok(protected != 0)
    } else {
        Err(io::Error::last_os_error())
    }
}

impl BlockDevice for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        check_range(self.size_bytes, offset, buf.len())?;
        self.wait_for_range(offset, buf.len());
        self.file.read_exact_at(buf, offset)
    }

    fn read_fresh_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        check_range(self.size_bytes, offset, buf.len())?;
        self.wait_for_range(offset, buf.len());
        let (at, len) = (offset as libc::off_t, buf.len() as libc::off_t);
        // SAFETY: posix_fadvise takes a descriptor that `file` keeps open and no memory.
        let error = unsafe { libc::posix_fadvise(self.file.as_raw_fd(), at, len, libc::POSIX_FADV_DONTNEED) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_vectored_at(&[IoSlice::new(buf)], offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        check_range(self.size_bytes, offset, total)?;
        self.check_image()?;
        self.wait_for_range(offset, total);
        if let Some(direct) = &self.direct_io
            && direct.write(bufs, offset)?
        {
            return Ok(());
        }
        self.write_cached(bufs, offset)
    }

    fn write_for(&self, bufs: &[IoSlice<'_>], offset: u64, hint: WriteHint) -> io::Result<()> {
        let total = bufs.iter().map(|b| b.len()).sum();
        check_range(self.size_bytes, offset, total)?;
        if hint != WriteHint::Buffered {
            self.check_image()?;
        }
        let taken = match (hint, &self.direct_io, &self.write_behind) {
            (WriteHint::Background, _, Some(behind)) => behind.write(bufs, offset)?,
            (WriteHint::FlushFollows, Some(direct), _) => {
                self.wait_for_range(offset, total);
                direct.write_now(bufs, offset)?
            }
            _ => false,
        };
        if taken { Ok(()) } else { self.write_vectored_at(bufs, offset) }
    }

    fn flush_page_cache_range(&self, offset: u64, len: u64) -> io::Result<()> {
        const HOW: libc::c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        let (from, bytes) = (offset as libc::off64_t, len as libc::off64_t);
        // SAFETY: sync_file_range takes a descriptor that `file` keeps open and no memory.
        let result = unsafe { libc::sync_file_range(self.file.as_raw_fd(), from, bytes, HOW) };
        match result {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                // A file system without this call: the flush does all the work.
                e if matches!(e.raw_os_error(), Some(libc::ESPIPE | libc::ENOSYS)) => Ok(()),
                e => Err(e),
            },
        }
    }

    fn flush(&self) -> io::Result<()> {
        if self.mode == OpenMode::ReadOnly {
            return Ok(());
        }
        if let Some(behind) = &self.write_behind {
            behind.drain()?;
        }
        self.file.sync_data()?;
        self.check_image()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.wait_for_range(offset, usize::try_from(len).unwrap_or(usize::MAX));
        // SAFETY: fallocate takes a descriptor that `file` keeps open and no memory.
        let result = unsafe {
            libc::fallocate(
                self.file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset as libc::off_t,
                len as libc::off_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn is_read_only(&self) -> bool {
        self.mode == OpenMode::ReadOnly
    }

    fn is_sparse(&self) -> bool {
        self.image.as_ref().is_some_and(|image| image.is_sparse.load(Relaxed))
    }

    fn holes(&self, offset: u64, len: u64) -> io::Result<Vec<Range<u64>>> {
        if !self.is_sparse() {
            return Ok(Vec::new());
        }
        host_space::holes(&self.file, offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match &self.image {
            Some(image) if image.is_sparse.load(Relaxed) => {
                self.check_image()?;
                match host_space::allocate(&self.file, offset, len) {
                    // Some file systems know only a part of the call.
                    Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                        image.is_sparse.store(false, Relaxed);
                        Ok(())
                    }
                    done => done,
                }
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct_io::LARGE_BYTES;

    fn bytes(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 / 7 + seed) as u8).collect()
    }

    #[test]
    fn an_image_that_was_truncated_or_deleted_is_not_written() {
        const SIZE: u64 = 1 << 20;
        let all_fail = |device: &FileDevice, why: &str| {
            let last = SIZE - 4096;
            for result in [
                device.write_at(&[1; 4096], last),
                device.write_for(&[IoSlice::new(&[1; 4096])], last, WriteHint::FlushFollows),
                device.write_for(&[IoSlice::new(&[1; LARGE_BYTES])], 0, WriteHint::Background),
                device.write_for(&[IoSlice::new(&[1; 4096])], last, WriteHint::Buffered),
                device.flush(),
            ] {
                assert!(result.unwrap_err().to_string().contains(why));
            }
        };
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("image");
        let new = || {
            File::create(&path).unwrap().set_len(SIZE).unwrap();
            let device = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
            device.write_at(&[1; 4096], SIZE / 2).unwrap();
            device.flush().unwrap();
            device
        };
        let device = new();
        File::options().write(true).open(&path).unwrap().set_len(SIZE / 2).unwrap();
        all_fail(&device, "truncated the image from 1048576 to 524288 bytes");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE / 2, "it has not grown again");
        drop(device);
        let device = new();
        File::create(dir.path().join("other")).unwrap();
        std::fs::rename(dir.path().join("other"), &path).unwrap();
        all_fail(&device, "deleted or replaced");
        let device = new();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        device.write_at(&[1; 4096], 0).unwrap();
        device.flush().unwrap();
        std::fs::remove_file(dir.path().join("moved")).unwrap();
        all_fail(&device, "deleted or replaced");
    }

    /// Overlapping writes of both ways: reads and the file have the newest one.
    #[test]
    fn direct_and_cached_writes_see_each_other() {
        const SIZE: usize = 16 << 20;
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(SIZE as u64).unwrap();
        let device = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
        let mut model = vec![0; SIZE];
        let writes = [
            (0, 9 << 20),                   // larger than what goes to the device at once
            (5000, 100),                    // small
            (4096, LARGE_BYTES),            // over the small one
            (12288 + 512, 2 * LARGE_BYTES), // not aligned
            (8 << 20, LARGE_BYTES + 512),   // an odd length
            (SIZE - LARGE_BYTES, LARGE_BYTES),
        ];
        // Each write once by every way, one right after the other.
        for (seed, (offset, len)) in writes.into_iter().flat_map(|write| [write; 3]).enumerate() {
            let data = bytes(len, seed);
            let (head, rest) = data.split_at(len / 3);
            let bufs = [IoSlice::new(head), IoSlice::new(rest)];
            let hint = [WriteHint::Buffered, WriteHint::Background, WriteHint::FlushFollows][seed % 3];
            device.write_for(&bufs, offset as u64, hint).unwrap();
            model[offset..offset + len].copy_from_slice(&data);
            let mut read = vec![0; SIZE];
            device.read_at(&mut read, 0).unwrap();
            assert!(read == model, "after the write of {len} bytes at {offset}");
        }
        device.flush().unwrap();
        assert!(std::fs::read(&path).unwrap() == model);
        assert!(device.write_at(&bytes(LARGE_BYTES, 0), (SIZE - 4096) as u64).is_err(), "past the end");
        for hint in [WriteHint::Background, WriteHint::FlushFollows] {
            let written = device.write_for(&[IoSlice::new(&bytes(8192, 0))], (SIZE - 4096) as u64, hint);
            assert!(written.is_err(), "past the end");
        }
    }

    /// Writes that the device was still working on at the flush are in the file when it returns.
    #[test]
    fn a_flush_waits_for_queued_writes() {
        const LEN: usize = 24 << 20;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(LEN as u64).unwrap();
        let device = FileDevice::open(file.path(), OpenMode::ReadWrite).unwrap();
        for round in 1..=4 {
            let data = vec![round; LEN];
            device.write_for(&[IoSlice::new(&data)], 0, WriteHint::Background).unwrap();
            device.flush().unwrap();
            assert!(std::fs::read(file.path()).unwrap() == data, "round {round}");
        }
    }

    /// Large, aligned writes go directly, if the system supports that. @t277 // larger than one
    /// write to the device
    #[test]
    fn small_and_unaligned_writes_use_the_page_cache() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 << 20).unwrap();
        let Some(direct) = DirectIo::open(&file) else {
            println!("no O_DIRECT here: nothing is direct");
            return;
        };
        let data = bytes(LARGE_BYTES + 512, 1);
        let write = |len: usize, offset| direct.write(&[IoSlice::new(&data[..len])], offset).unwrap();
        assert!(!write(LARGE_BYTES / 2, 0));
        assert!(!write(LARGE_BYTES, 512));
        assert!(!write(LARGE_BYTES + 512, 0));
        assert!(write(LARGE_BYTES, 8192));
        let now = |len: usize, offset| direct.write_now(&[IoSlice::new(&data[..len])], offset).unwrap();
        assert!(now(4096, 8192));
        assert!(!now(4096, 512));
        assert!(!now(512, 4096));
    }
}
