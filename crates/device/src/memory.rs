//! A device in memory, for tests and for the library's temporary volumes.

use std::io;

use parking_lot::RwLock;

use crate::{BlockDevice, check_range};

/// Bytes in memory. `flush` has nothing to do: the device lives as long as its process.
pub struct MemoryDevice {
    bytes: RwLock<Vec<u8>>,
}

impl MemoryDevice {
    /// A device of `size_bytes` zeros.
    pub fn new(size_bytes: u64) -> MemoryDevice {
        MemoryDevice::from_bytes(vec![0; size_bytes as usize])
    }

    /// A device with these contents.
    pub fn from_bytes(bytes: Vec<u8>) -> MemoryDevice {
        MemoryDevice { bytes: RwLock::new(bytes) }
    }

    /// A copy of the whole device.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }
}

impl BlockDevice for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.bytes.read().len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.read();
        check_range(bytes.len() as u64, offset, buf.len())?;
        buf.copy_from_slice(&bytes[offset as usize..offset as usize + buf.len()]);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        check_range(bytes.len() as u64, offset, buf.len())?;
        bytes[offset as usize..offset as usize + buf.len()].copy_from_slice(buf);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }
}
