//! Reads the volume block by block.

use std::sync::Arc;

use xact_device::BlockDevice;
use xact_layout::group::GroupDesc;
use xact_layout::inode::Inode;
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_types::{BlockNr, Error, GroupNr, Ino, Result, Run, Site};

pub(crate) struct Volume {
    device: Arc<dyn BlockDevice>,
    pub sb: Superblock,
    /// One for each group, unchecked.
    pub descs: Vec<GroupDesc>,
}

impl Volume {
    pub fn open(device: Arc<dyn BlockDevice>) -> Result<Volume> {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        device.read_at(&mut bytes, SUPERBLOCK_OFFSET).map_err(|e| Error::io("reading the superblock", e))?;
        let sb = Superblock::decode(&bytes)?;
        if sb.blocks_count().checked_mul(sb.block_size().into()).is_none_or(|end| end > device.size_bytes()) {
            return Err(Error::corrupt(Site::Superblock, "the volume is larger than its device"));
        }
        let mut volume = Volume { device, sb, descs: Vec::new() };
        volume.descs = volume.read_descs()?;
        Ok(volume)
    }

    fn read_descs(&self) -> Result<Vec<GroupDesc>> {
        let sb = &self.sb;
        let mut descs = Vec::with_capacity(sb.group_count() as usize);
        for first in (0..sb.group_count()).step_by(sb.descs_per_block() as usize) {
            let block = sb.desc_place(GroupNr(first)).0;
            if !sb.contains(block, 1) {
                return Err(Error::corrupt(Site::Superblock, "the group descriptors do not fit the volume"));
            }
            let bytes = self.block(block)?;
            let left = (sb.group_count() - first).min(sb.descs_per_block()) as usize;
            descs.extend(bytes.chunks_exact(usize::from(sb.desc_size())).take(left).map(GroupDesc::new));
        }
        Ok(descs)
    }

    pub fn block_size(&self) -> usize {
        self.sb.block_size() as usize
    }

    /// A block of the volume.
    pub fn block(&self, block: BlockNr) -> Result<Vec<u8>> {
        self.blocks(Run { start: block, len: 1 })
    }

    /// Blocks of the volume, one after the other.
    pub fn blocks(&self, run: Run) -> Result<Vec<u8>> {
        let block_size = u64::from(self.sb.block_size());
        if run.end().0 > self.sb.blocks_count() {
            return Err(Error::corrupt(Site::Block(run.start), "lies outside the volume"));
        }
        let mut bytes = vec![0; (u64::from(run.len) * block_size) as usize];
        self.device
            .read_at(&mut bytes, run.start.0 * block_size)
            .map_err(|e| Error::io("reading the volume", e))?;
        Ok(bytes)
    }

    /// An inode from its table, unchecked; `None` for a number outside of the volume.
    pub fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        let Some((group, index)) = self.sb.inode_place(ino) else { return Ok(None) };
        let at = index as usize * usize::from(self.sb.inode_size());
        let table = self.descs[group.0 as usize].inode_table();
        let block = BlockNr(table.0.saturating_add((at / self.block_size()) as u64));
        if !self.sb.contains(block, 1) {
            return Ok(None);
        }
        let bytes = self.block(block)?;
        let at = at % self.block_size();
        Ok(Some(Inode::new(&bytes[at..at + usize::from(self.sb.inode_size())])))
    }
}
