//! A generation as a read-only device: block n has the generation's contents of block n.
//!
//! So everything that reads ext4 reads a generation: our own file system (snapshots in a mount),
//! the check, an export, and e2fsck and Linux through a file that serves these bytes.
//!
//! Invariants:
//! 1. A read returns the generation's contents. Its pool blocks and the blocks that it uses at home
//!    are not written while it is kept (`generations` 1), and the checksum of every moved block is
//!    verified. Blocks that are free in the generation read as whatever is on the device.
//! 2. Reads hold the snapshot's lease, and a deletion ends the lease before its commit. So no read
//!    continues when pool blocks get a new owner. A deletion waits for reads that are running, but
//!    not for processes that have the image open.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};
use xact_device::BlockDevice;
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, Result};

use super::export::{self, GenerationReader};
use super::map::{Map, MapReader};
use super::published_map::Logged;
use crate::core::block::BlockSource;
use crate::snapshots::SnapshotImage;

/// Whether a snapshot is still kept.
#[derive(Default)]
pub(super) struct Lease {
    ended: RwLock<bool>,
}

impl Lease {
    fn hold(&self) -> io::Result<RwLockReadGuard<'_, bool>> {
        let ended = self.ended.read();
        if *ended {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the snapshot was deleted"));
        }
        Ok(ended)
    }

    /// Ends the lease: no read holds it when this returns, and no later one will.
    pub fn end(&self) {
        *self.ended.write() = true;
    }
}

/// See the head of the module. Readable until the snapshot is deleted.
pub(super) struct GenerationImage {
    reader: Arc<MapReader>,
    map: Map,
    /// The log's changes since the durable generation.
    logged: Logged,
    lease: Arc<Lease>,
}

impl GenerationImage {
    pub(super) fn new(
        reader: Arc<MapReader>,
        map: Map,
        logged: Logged,
        lease: Arc<Lease>,
    ) -> GenerationImage {
        GenerationImage { reader, map, logged, lease }
    }

    fn seen(&self) -> GenerationReader<'_> {
        GenerationReader { reader: &self.reader, map: &self.map, logged: Some(&self.logged) }
    }

    fn superblock(&self) -> Result<Superblock> {
        export::superblock(&self.seen(), self.reader.volume.block_size)
    }

    /// The number of blocks from `block` on that are at home, up to `most`.
    fn at_home(&self, block: u64, most: u64) -> Result<u64> {
        for n in 0..most {
            let at_home = match self.logged.get(&(block + n)) {
                Some(contents) => contents.is_none(),
                None => self.map.get(&self.reader, BlockNr(block + n))?.is_none(),
            };
            if !at_home {
                return Ok(n);
            }
        }
        Ok(most)
    }

    fn read(&self, mut buf: &mut [u8], mut offset: u64) -> Result<()> {
        let volume = &self.reader.volume;
        let block_size = volume.block_size;
        while !buf.is_empty() {
            let block = offset / block_size as u64;
            let within = (offset % block_size as u64) as usize;
            let whole = if within == 0 { self.at_home(block, (buf.len() / block_size) as u64)? } else { 0 };
            let len = if whole > 0 {
                let len = whole as usize * block_size;
                volume.read(BlockNr(block), &mut buf[..len])?;
                len
            } else {
                let len = buf.len().min(block_size - within);
                let contents = self.seen().read_block(BlockNr(block))?;
                buf[..len].copy_from_slice(&contents[within..within + len]);
                len
            };
            buf = &mut buf[len..];
            offset += len as u64;
        }
        Ok(())
    }
}

fn read_only<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a generation is never written"))
}

impl BlockDevice for GenerationImage {
    fn size_bytes(&self) -> u64 {
        self.reader.volume.blocks * self.reader.volume.block_size as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size_bytes()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "read outside the image"));
        }
        let _kept = self.lease.hold()?;
        self.read(buf, offset).map_err(io::Error::other)
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> io::Result<()> {
        read_only()
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

impl SnapshotImage for GenerationImage {
    fn used(&self) -> Result<Vec<Range<u64>>> {
        let _kept = self.lease.hold().map_err(|e| Error::io("reading a snapshot", e))?;
        let block_size = self.reader.volume.block_size as u64;
        let used = export::used_blocks(&self.seen(), &self.superblock()?)?;
        Ok(used.into_iter().map(|(start, end)| start * block_size..end * block_size).collect())
    }

    fn export(&self, out: &dyn BlockDevice) -> Result<u64> {
        export::export(self, self.reader.volume.block_size, out)
    }
}
