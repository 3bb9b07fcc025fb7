//! A node of the block map: pointers to blocks of the volume (level 0) or to nodes a level below.
//!
//! ```text
//!  0       4       8              16              24             32
//!  magic   level   first block    generation      0              pointers of 12 bytes each
//!
//!  pointer:  pool block, low 32 bits | pool block, high 16 bits | 0 (16 bits) | checksum
//! ```
//! Pool block 0 means no pointer: the block is at home, or the node below has no pointers. Pool
//! block 1 in a pointer to a block is [`Pointer::ZEROS`].

use xact_types::{BlockNr, Error, Result, Site};

use super::{Pointer, PoolShape};
use crate::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};

const MAGIC: u32 = 0x504D_4758;
const POINTERS_AT: usize = 32;
const POINTER_BYTES: usize = 12;

/// Pointers of a node: a power of two.
pub const fn fanout(block_size: usize) -> usize {
    block_size / 16
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapNode {
    /// 0: the pointers are to blocks of the volume.
    pub level: u32,
    /// First block of the node's range.
    pub first: BlockNr,
    /// The generation that wrote the node.
    pub generation: u64,
    /// As many as [`fanout`].
    pub pointers: Vec<Option<Pointer>>,
}

impl MapNode {
    pub fn encode(&self, block_size: usize) -> Vec<u8> {
        let mut bytes = vec![0; block_size];
        put_u32(&mut bytes, 0, MAGIC);
        put_u32(&mut bytes, 4, self.level);
        put_u64(&mut bytes, 8, self.first.0);
        put_u64(&mut bytes, 16, self.generation);
        for (i, pointer) in self.pointers.iter().enumerate() {
            if let Some(pointer) = pointer {
                put_pointer(&mut bytes, POINTERS_AT + i * POINTER_BYTES, pointer);
            }
        }
        bytes
    }

    /// Reads the node at `pool_block`, whose checksum the caller has verified. `Corrupt` if it is
    /// another node, or points outside the pool.
    pub fn decode(
        bytes: &[u8],
        pool_block: BlockNr,
        level: u32,
        first: BlockNr,
        shape: &PoolShape,
    ) -> Result<MapNode> {
        let corrupt = |what| Err(Error::corrupt(Site::Block(pool_block), what));
        if get_u32(bytes, 0) != MAGIC {
            return corrupt("is not a node of the block map");
        }
        if get_u32(bytes, 4) != level || get_u64(bytes, 8) != first.0 {
            return corrupt("is another node of the block map than the one that belongs there");
        }
        let mut pointers = Vec::with_capacity(fanout(bytes.len()));
        for i in 0..fanout(bytes.len()) {
            let pointer = get_pointer(bytes, POINTERS_AT + i * POINTER_BYTES);
            let leads_on = |p: Pointer| shape.contains(p.pool_block) || level == 0 && p.is_zeros();
            if pointer.is_some_and(|p| !leads_on(p)) {
                return corrupt("a node of the block map points outside the pool");
            }
            pointers.push(pointer);
        }
        Ok(MapNode { level, first, generation: get_u64(bytes, 16), pointers })
    }
}

pub(super) fn put_pointer(bytes: &mut [u8], at: usize, pointer: &Pointer) {
    put_u32(bytes, at, pointer.pool_block.0 as u32);
    put_u16(bytes, at + 4, (pointer.pool_block.0 >> 32) as u16);
    put_u32(bytes, at + 8, pointer.sum);
}

pub(super) fn get_pointer(bytes: &[u8], at: usize) -> Option<Pointer> {
    let pool_block = u64::from(get_u32(bytes, at)) | u64::from(get_u16(bytes, at + 4)) << 32;
    (pool_block != 0).then(|| Pointer { pool_block: BlockNr(pool_block), sum: get_u32(bytes, at + 8) })
}

const _: () = assert!(POINTERS_AT + fanout(1024) * POINTER_BYTES <= 1024);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_survive_the_way_to_bytes_and_back() {
        let shape = PoolShape { block_size: 1024, volume_blocks: 1000, device_blocks: 2000 };
        let mut pointers = vec![None; fanout(1024)];
        pointers[0] = Some(Pointer { pool_block: BlockNr(1500), sum: 7 });
        pointers[63] = Some(Pointer { pool_block: BlockNr(1999), sum: !0 });
        let node = MapNode { level: 1, first: BlockNr(4096), generation: 9, pointers };
        let bytes = node.encode(1024);
        let back = MapNode::decode(&bytes, BlockNr(1200), 1, BlockNr(4096), &shape).unwrap();
        assert_eq!(back, node);
        assert!(MapNode::decode(&bytes, BlockNr(1200), 0, BlockNr(4096), &shape).is_err());
        assert!(MapNode::decode(&bytes, BlockNr(1200), 1, BlockNr(0), &shape).is_err());
        // A block can be zeros, a node cannot.
        let leaf = |level| {
            let pointers = [vec![Some(Pointer::ZEROS)], vec![None; fanout(1024) - 1]].concat();
            MapNode { level, first: BlockNr(64), generation: 9, pointers }
        };
        let read =
            |level| MapNode::decode(&leaf(level).encode(1024), BlockNr(1200), level, BlockNr(64), &shape);
        assert_eq!(read(0).unwrap(), leaf(0));
        assert!(read(1).is_err());
        let small = PoolShape { device_blocks: 1900, ..shape };
        assert!(MapNode::decode(&bytes, BlockNr(1200), 1, BlockNr(4096), &small).is_err());
    }
}
