//! Atomic writes of files, on their own descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use zerocopy::{FromZeros, IntoBytes};

use super::Channel;
use crate::abi::{self, ChannelKey, PART_BYTES, PART_TRUNCATE, WRITE_MAX, WriteFile, WritePart};

/// Most bytes of one part.
pub const PART_MAX: usize = WRITE_MAX - size_of::<WritePart>();

impl Channel {
    /// The key by which a request on a file names this channel.
    pub fn key(&self) -> io::Result<u64> {
        let mut key = ChannelKey::default();
        self.ioctl(abi::IOC_CHANNEL_KEY, key.as_mut_bytes())?;
        Ok(key.key)
    }
}

/// Changes of one file, to be sent in one request.
pub struct WriteRequest(Box<WriteFile>);

impl WriteRequest {
    /// `key`: of a channel of this process.
    pub fn new(key: u64) -> WriteRequest {
        let mut request: Box<WriteFile> = Box::new(WriteFile::new_zeroed());
        request.key = key;
        WriteRequest(request)
    }

    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Adds bytes at an offset; false if they do not fit.
    pub fn add_bytes(&mut self, offset: u64, bytes: &[u8]) -> bool {
        self.add(WritePart { offset, len: bytes.len() as u32, kind: PART_BYTES }, bytes)
    }

    /// Adds a truncation; false if it does not fit.
    pub fn add_truncate(&mut self, size: u64) -> bool {
        self.add(WritePart { offset: size, len: 0, kind: PART_TRUNCATE }, &[])
    }

    fn add(&mut self, part: WritePart, bytes: &[u8]) -> bool {
        let at = self.0.len as usize;
        let start = at + size_of::<WritePart>();
        let end = (start + bytes.len()).next_multiple_of(8);
        if end > WRITE_MAX {
            return false;
        }
        self.0.data[at..start].copy_from_slice(part.as_bytes());
        self.0.data[start..start + bytes.len()].copy_from_slice(bytes);
        self.0.len = end as u32;
        true
    }

    /// Sends the changes with `WRITE_…` flags, and is empty afterwards.
    pub fn send(&mut self, file: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
        self.0.flags = flags;
        // SAFETY: the command's number has the size of the struct that is passed.
        let done = unsafe {
            libc::ioctl(
                file.as_raw_fd(),
                libc::c_ulong::from(abi::IOC_WRITE_FILE) as _,
                self.0.as_bytes().as_ptr(),
            )
        };
        let result = if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        self.0.len = 0;
        result
    }
}
