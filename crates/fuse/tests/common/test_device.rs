//! A device in memory that misbehaves when a test asks for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use xact::{BlockDevice, MemoryDevice};

/// A read of contents that begin with this waits while the device is stuck.
pub const SLOW: &[u8] = b"a slow page";
/// A read of contents that begin with this panics.
pub const PANIC: &[u8] = b"a page that panics";

/// A page of `len` bytes that begins with `mark`.
pub fn page(mark: &[u8], len: usize) -> Vec<u8> {
    let mut page = mark.to_vec();
    page.resize(len, b'.');
    page
}

pub struct TestDevice {
    memory: MemoryDevice,
    stuck: Mutex<bool>,
    unstuck: Condvar,
    pub flushes: AtomicU64,
}

impl TestDevice {
    pub fn new(size_bytes: u64) -> Arc<TestDevice> {
        Arc::new(TestDevice {
            memory: MemoryDevice::new(size_bytes),
            stuck: Mutex::new(false),
            unstuck: Condvar::new(),
            flushes: AtomicU64::new(0),
        })
    }

    /// A copy of the present contents.
    pub fn copy(&self) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::from_bytes(self.memory.to_bytes()))
    }

    pub fn set_stuck(&self, stuck: bool) {
        *self.stuck.lock() = stuck;
        self.unstuck.notify_all();
    }
}

impl BlockDevice for TestDevice {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.memory.read_at(buf, offset)?;
        assert!(!buf.starts_with(PANIC), "a test wants to see a panic");
        if buf.starts_with(SLOW) {
            let mut stuck = self.stuck.lock();
            while *stuck {
                self.unstuck.wait(&mut stuck);
            }
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.memory.write_at(buf, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::AcqRel);
        self.memory.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.memory.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        false
    }
}
