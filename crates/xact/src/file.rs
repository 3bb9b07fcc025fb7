//! An open file, with a position.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use xact_fs::{Attr, Caller, FileKind, SetAttr, View, WriteHow};
use xact_types::{Errno, Error, Ino, Result};

use crate::paths::{PIECE_BYTES, PathExt, create_file, find_or_create, walk, write_all};

/// How a file is opened, as [`std::fs::OpenOptions`].
///
/// ```
/// # fn main() -> xact::Result<()> {
/// # let device = std::sync::Arc::new(xact::MemoryDevice::new(64 << 20));
/// # xact::mkfs::mkfs(&*device, &Default::default())?;
/// # let volume = xact::Volume::open(device, &Default::default())?;
/// use std::io::Write;
/// use xact::{OpenOptions, PathExt};
/// let mut log = OpenOptions::new().append(true).create(true).open(&*volume, "/log")?;
/// log.write_all(b"started\n").unwrap();
/// log.sync_data()?;
/// assert_eq!(volume.read("/log")?, b"started\n");
/// # drop(log);
/// # volume.close()
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u16,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// All options off; a new file gets the permissions `rw-r--r--`.
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
        }
    }

    /// Allows reads.
    pub fn read(mut self, read: bool) -> OpenOptions {
        self.read = read;
        self
    }

    /// Allows writes.
    pub fn write(mut self, write: bool) -> OpenOptions {
        self.write = write;
        self
    }

    /// Allows writes, all of which go to the end of the file as it is at that moment (`O_APPEND`).
    pub fn append(mut self, append: bool) -> OpenOptions {
        self.append = append;
        self
    }

    /// Cuts an existing file to length 0.
    pub fn truncate(mut self, truncate: bool) -> OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Creates the file where it does not exist.
    pub fn create(mut self, create: bool) -> OpenOptions {
        self.create = create;
        self
    }

    /// Creates the file, and fails with `EEXIST` where the name exists.
    pub fn create_new(mut self, create_new: bool) -> OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Permission bits of a file that is created.
    pub fn mode(mut self, mode: u16) -> OpenOptions {
        self.mode = mode;
        self
    }

    /// Opens a file of a volume or a transaction.
    ///
    /// # Errors
    /// As [`PathExt`]; `EINVAL` where neither reads nor writes are allowed, and for a file that is
    /// to be created or truncated without writes; `EISDIR` for a directory that is to be written.
    pub fn open<P: PathExt + ?Sized>(&self, place: &P, path: impl AsRef<Path>) -> Result<File> {
        let (view, path) = (place.view(), path.as_ref());
        let writable = self.write || self.append;
        let changes = self.truncate || self.create || self.create_new;
        if !writable && (changes || !self.read) {
            return Err(Error::Posix(Errno::EINVAL));
        }
        let (ino, is_new) = if self.create_new {
            (create_file(&*view, path, self.mode)?, true)
        } else if self.create {
            find_or_create(&*view, path, self.mode)?
        } else {
            (walk(&*view, path, true)?.ino, false)
        };
        view.hold(ino)?;
        // From here on its drop undoes the hold.
        let file = File { view, ino, position: 0, readable: self.read, writable, append: self.append };
        if writable && !is_new && file.metadata()?.kind == FileKind::Directory {
            return Err(Error::Posix(Errno::EISDIR));
        }
        if self.truncate && !is_new {
            file.set_len(0)?;
        }
        Ok(file)
    }
}

/// An open file of a volume or a transaction, with [`Read`], [`Write`] and [`Seek`].
///
/// A deleted file exists as long as it is open. A file of a transaction can be used until the
/// transaction ends: then all calls fail with [`Error::Ended`] (`ESTALE`). Nothing is buffered
/// here: wrap it in [`std::io::BufReader`] or [`std::io::BufWriter`] for small pieces.
///
/// The calls of the traits return [`io::Error`], with an xact [`Error`] as its inner error.
pub struct File {
    view: Arc<dyn View>,
    ino: Ino,
    position: u64,
    readable: bool,
    writable: bool,
    append: bool,
}

impl File {
    /// The inode's number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The file's attributes.
    pub fn metadata(&self) -> Result<Attr> {
        self.view.attr(self.ino)
    }

    /// Cuts the file to `size` bytes, or extends it by a hole that reads as zeros. `EBADF` where
    /// the file was opened without writes.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.check(self.writable)?;
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        self.view.set_attr(&Caller::ROOT, self.ino, &change).map(drop)
    }

    /// Sets the permission bits (`fchmod`).
    pub fn set_permissions(&self, mode: u16) -> Result<()> {
        let change = SetAttr { perm: Some(mode & 0o7777), ..SetAttr::default() };
        self.view.set_attr(&Caller::ROOT, self.ino, &change).map(drop)
    }

    /// Reads up to `buf.len()` bytes at an offset; fewer only at the end of the file. The position
    /// stays.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.check(self.readable)?;
        let mut bytes = Vec::new();
        self.view.read(self.ino, offset, buf.len().min(PIECE_BYTES), &mut bytes)?;
        buf[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    /// Writes all of `data` at an offset. The position stays. Data of more than 1 MiB takes several
    /// operations.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.check(self.writable)?;
        write_all(&*self.view, self.ino, offset, data)
    }

    /// Returns when the file's contents and attributes are durable (`fsync`). In a transaction it
    /// returns at once: the commit makes all of it durable.
    pub fn sync_all(&self) -> Result<()> {
        self.view.sync_file(self.ino, false)
    }

    /// As [`File::sync_all`], without attributes that are not needed to read the contents
    /// (`fdatasync`).
    pub fn sync_data(&self) -> Result<()> {
        self.view.sync_file(self.ino, true)
    }

    fn check(&self, allowed: bool) -> Result<()> {
        if allowed { Ok(()) } else { Err(Error::Posix(Errno::EBADF)) }
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.read_at(buf, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Write for File {
    /// Writes up to 1 MiB, in one operation, and no more than the largest size of a file allows.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.check(self.writable)?;
        let piece = &data[..data.len().min(PIECE_BYTES)];
        let how = WriteHow { append: self.append, ..WriteHow::default() };
        let written = self.view.write(self.ino, self.position, piece, how).map_err(io::Error::from)?;
        self.position = written.end();
        Ok(written.len)
    }

    /// Does nothing, as nothing is buffered here; see [`File::sync_all`] for durability.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata()?.size.checked_add_signed(by),
        };
        self.position = position.ok_or(Error::Posix(Errno::EINVAL))?;
        Ok(self.position)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.view.release(self.ino, 1);
    }
}
