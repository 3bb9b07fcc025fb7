//! A device whose writes stay in memory, which shows the effect of a recovery without writing it.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use crate::{BlockDevice, SECTOR_BYTES};
use parking_lot::Mutex;

/// Reads as `inner`, except for the sectors written here.
pub struct Overlay {
    inner: Arc<dyn BlockDevice>,
    /// Written sectors by number, each of [`SECTOR_BYTES`].
    sectors: Mutex<HashMap<u64, [u8; SECTOR_BYTES]>>,
}

impl Overlay {
    /// An overlay without changes.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Overlay {
        Overlay { inner, sectors: Mutex::default() }
    }

    /// Numbers of the blocks of this size that were written to.
    pub fn changed_blocks(&self, block_size: u32) -> BTreeSet<u64> {
        let per_block = u64::from(block_size) / SECTOR_BYTES as u64;
        self.sectors.lock().keys().map(|sector| sector / per_block).collect()
    }
}

impl BlockDevice for Overlay {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)?;
        let sectors = self.sectors.lock();
        if sectors.is_empty() {
            return Ok(());
        }
        let end = offset + buf.len() as u64;
        for number in offset / SECTOR_BYTES as u64..end.div_ceil(SECTOR_BYTES as u64) {
            let Some(sector) = sectors.get(&number) else { continue };
            let start = number * SECTOR_BYTES as u64;
            let (from, to) = (offset.max(start), end.min(start + SECTOR_BYTES as u64));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&sector[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let end = offset + buf.len() as u64;
        if end > self.size_bytes() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "write outside the device"));
        }
        for number in offset / SECTOR_BYTES as u64..end.div_ceil(SECTOR_BYTES as u64) {
            let start = number * SECTOR_BYTES as u64;
            let mut sector = [0; SECTOR_BYTES];
            self.read_at(&mut sector, start)?;
            let (from, to) = (offset.max(start), end.min(start + SECTOR_BYTES as u64));
            sector[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&buf[(from - offset) as usize..(to - offset) as usize]);
            self.sectors.lock().insert(number, sector);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn writes_stay_here() {
        let inner = Arc::new(MemoryDevice::new(8192));
        let overlay = Overlay::new(inner.clone());
        overlay.write_at(b"hello", 510).unwrap();
        let mut buf = [9; 9];
        overlay.read_at(&mut buf, 508).unwrap();
        assert_eq!(&buf, b"\0\0hello\0\0");
        assert_eq!(overlay.changed_blocks(1024).into_iter().collect::<Vec<_>>(), [0]);
        inner.read_at(&mut buf, 508).unwrap();
        assert_eq!(buf, [0; 9]);
        assert!(overlay.write_at(b"x", 8192).is_err());
    }
}
