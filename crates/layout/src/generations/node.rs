//! A node of the block map: pointers to blocks of the volume (level 0) or to nodes a level below,
//! and nothing else. Its level, its range and the generation that wrote it are part of the checksum
//! in the pointer to it.
//!
//! ```text
//!  pointer:  pool block, low 32 bits | pool block, high 16 bits | birth, high 16 bits
//!            birth, low 32 bits | checksum
//! ```
//! Pool block 0 means no pointer: the block is at home, or the node below has no pointers. Pool
//! block 1 in a pointer to a block is [`Pointer::ZEROS`].

use xact_types::{BlockNr, Error, Result, Site};

use super::{Pointer, PoolShape};
use crate::{get_u16, get_u32, put_u16, put_u32};

pub(super) const POINTER_BYTES: usize = 16;

/// Pointers of a node: a power of two.
pub const fn fanout(block_size: usize) -> usize {
    block_size / POINTER_BYTES
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapNode {
    /// As many as [`fanout`].
    pub pointers: Vec<Option<Pointer>>,
}

impl MapNode {
    pub fn encode(&self, block_size: usize) -> Vec<u8> {
        let mut bytes = vec![0; block_size];
        for (out, pointer) in bytes.chunks_exact_mut(POINTER_BYTES).zip(&self.pointers) {
            if let Some(pointer) = pointer {
                put_pointer(out, 0, pointer);
            }
        }
        bytes
    }

    /// Reads the node of level `level` behind the pointer `at`, whose checksum the caller has
    /// verified. `Corrupt` if it points outside the pool, or to what is younger than itself.
    pub fn decode(bytes: &[u8], at: Pointer, level: u32, shape: &PoolShape) -> Result<MapNode> {
        let corrupt = |what| Err(Error::corrupt(Site::Block(at.pool_block), what));
        let mut pointers = Vec::with_capacity(fanout(bytes.len()));
        for bytes in bytes.chunks_exact(POINTER_BYTES) {
            let pointer = get_pointer(bytes, 0);
            let leads_on = |p: Pointer| shape.contains(p.pool_block) || level == 0 && p.is_zeros();
            if pointer.is_some_and(|p| !leads_on(p)) {
                return corrupt("a node of the block map points outside the pool");
            }
            if pointer.is_some_and(|p| p.birth > at.birth) {
                return corrupt("a node of the block map points to what is younger than itself");
            }
            pointers.push(pointer);
        }
        Ok(MapNode { pointers })
    }
}

pub(super) fn put_pointer(bytes: &mut [u8], at: usize, pointer: &Pointer) {
    put_u32(bytes, at, pointer.pool_block.0 as u32);
    put_u16(bytes, at + 4, (pointer.pool_block.0 >> 32) as u16);
    put_u16(bytes, at + 6, (pointer.birth >> 32) as u16);
    put_u32(bytes, at + 8, pointer.birth as u32);
    put_u32(bytes, at + 12, pointer.sum);
}

pub(super) fn get_pointer(bytes: &[u8], at: usize) -> Option<Pointer> {
    let wide =
        |low: usize, high: usize| u64::from(get_u32(bytes, low)) | u64::from(get_u16(bytes, high)) << 32;
    let pool_block = wide(at, at + 4);
    let (birth, sum) = (wide(at + 8, at + 6), get_u32(bytes, at + 12));
    (pool_block != 0).then_some(Pointer { pool_block: BlockNr(pool_block), birth, sum })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: PoolShape = PoolShape { block_size: 1024, volume_blocks: 1000, device_blocks: 2000 };

    fn pointer(pool_block: u64, birth: u64) -> Option<Pointer> {
        Some(Pointer { pool_block: BlockNr(pool_block), birth, sum: !7 })
    }

    #[test]
    fn nodes_survive_the_way_to_bytes_and_back() {
        let mut pointers = vec![None; fanout(1024)];
        (pointers[0], pointers[63]) = (pointer(1500, 9), pointer(1999, 1));
        let node = MapNode { pointers };
        let bytes = node.encode(1024);
        let at = pointer(1200, 9).unwrap();
        assert_eq!(MapNode::decode(&bytes, at, 1, &SHAPE).unwrap(), node);
        assert!(MapNode::decode(&bytes, Pointer { birth: 8, ..at }, 1, &SHAPE).is_err());
        assert!(MapNode::decode(&bytes, at, 1, &PoolShape { device_blocks: 1900, ..SHAPE }).is_err());
        // A block can be zeros, a node cannot.
        let zeros = MapNode { pointers: [vec![Some(Pointer::ZEROS)], vec![None; fanout(1024) - 1]].concat() };
        assert_eq!(MapNode::decode(&zeros.encode(1024), at, 0, &SHAPE).unwrap(), zeros);
        assert!(MapNode::decode(&zeros.encode(1024), at, 1, &SHAPE).is_err());
    }

    #[test]
    fn pointers_keep_48_bits_of_a_number() {
        let mut bytes = [0; POINTER_BYTES];
        for pointer in [pointer(0xFEDC_BA98_7654, 0x1234_5678_9ABC), pointer(2, 1), pointer(1 << 47, 1 << 47)]
        {
            put_pointer(&mut bytes, 0, &pointer.unwrap());
            assert_eq!(get_pointer(&bytes, 0), pointer);
        }
    }
}
