//! A root slot, which describes one generation. A generation counts from the moment when its root
//! is whole in its slot.
//!
//! Eight sectors of 512 bytes. The last 8 bytes of each are the stamp, the generation's number,
//! which reveals a slot in which a crash left some old sectors (the paper on meta-data
//! snapshotting, III-E). The other 504 bytes of each, one after the other, hold:
//!
//! ```text
//!   0 magic          8 generation     16 uuid                 32 block size    36 map levels
//!  40 volume blocks 48 device blocks  56 pool blocks in use   64 map root (pointer)
//!  80 checksum of all 4032 bytes with this field as 0
//!  84 flags: 1: blocks of files may be in the pool
//!  88 snapshot list: 88 first block (pointer)  104 number of blocks, one after the other
//! 108 number of bitmap blocks
//! 112 intent log: 112 first block   120 number of blocks
//! 504 (the second sector) for each bitmap block: its checksum
//!     then one bit each: which copy of it counts
//! ```

use xact_types::{BlockNr, Error, Result, Site};

use super::node::{POINTER_BYTES, get_pointer, put_pointer};
use super::{Pointer, PoolShape};
use crate::checksum::crc32c;
use crate::{get_u32, get_u64, put_u32, put_u64};

pub const ROOT_BYTES: usize = 4096;
/// The most that fit a slot: a pool of 4 GiB at 1 KiB blocks, 64 GiB at 4 KiB.
pub const MAX_BITMAP_BLOCKS: u64 = 512;

/// "XCXGEN2T" in the order of the bytes.
const MAGIC: u64 = 0x5432_4E45_4758_4358;
const SECTOR: usize = 512;
const PAYLOAD: usize = SECTOR - 8;
const SECTORS: usize = ROOT_BYTES / SECTOR;
const MAP_AT: usize = 64;
const SUM_AT: usize = 80;
const FLAGS_AT: usize = 84;
const MOVED_DATA: u32 = 1;
const SNAPSHOTS_AT: usize = 88;
const BITMAP_COUNT_AT: usize = 108;
const LOG_AT: usize = 112;
const BITMAPS_AT: usize = PAYLOAD;

/// The root of one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    pub generation: u64,
    pub uuid: [u8; 16],
    pub shape: PoolShape,
    /// Levels of the block map.
    pub map_levels: u32,
    /// `None`: every block is at home.
    pub map: Option<Pointer>,
    /// Pool blocks in use by this generation and all snapshots.
    pub used: u64,
    /// First of the blocks of the snapshot list, which are adjacent; the checksum covers all of
    /// them.
    pub snapshots: Option<(Pointer, u32)>,
    /// Blocks of files may be in the pool, not only metadata.
    pub has_moved_data: bool,
    /// Area of the intent log that continues this generation: first block and number of blocks.
    pub log: Option<(BlockNr, u32)>,
    /// For each block of the pool's bitmap, its checksum and the copy that counts.
    pub bitmaps: Vec<(u32, usize)>,
}

impl Root {
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = vec![0; SECTORS * PAYLOAD];
        put_u64(&mut payload, 0, MAGIC);
        put_u64(&mut payload, 8, self.generation);
        payload[16..32].copy_from_slice(&self.uuid);
        put_u32(&mut payload, 32, self.shape.block_size);
        put_u32(&mut payload, 36, self.map_levels);
        put_u64(&mut payload, 40, self.shape.volume_blocks);
        put_u64(&mut payload, 48, self.shape.device_blocks);
        put_u64(&mut payload, 56, self.used);
        if let Some(map) = &self.map {
            put_pointer(&mut payload, MAP_AT, map);
        }
        if let Some((first, blocks)) = &self.snapshots {
            put_pointer(&mut payload, SNAPSHOTS_AT, first);
            put_u32(&mut payload, SNAPSHOTS_AT + POINTER_BYTES, *blocks);
        }
        put_u32(&mut payload, BITMAP_COUNT_AT, self.bitmaps.len() as u32);
        put_u32(&mut payload, FLAGS_AT, if self.has_moved_data { MOVED_DATA } else { 0 });
        if let Some((first, blocks)) = self.log {
            put_u64(&mut payload, LOG_AT, first.0);
            put_u32(&mut payload, LOG_AT + 8, blocks);
        }
        let bits_at = BITMAPS_AT + 4 * self.bitmaps.len();
        for (i, (sum, copy)) in self.bitmaps.iter().enumerate() {
            put_u32(&mut payload, BITMAPS_AT + 4 * i, *sum);
            payload[bits_at + i / 8] |= (*copy as u8) << (i % 8);
        }
        let sum = crc32c(!0, &payload);
        put_u32(&mut payload, SUM_AT, sum);
        let mut bytes = vec![0; ROOT_BYTES];
        for (sector, part) in bytes.chunks_exact_mut(SECTOR).zip(payload.chunks_exact(PAYLOAD)) {
            sector[..PAYLOAD].copy_from_slice(part);
            put_u64(sector, PAYLOAD, self.generation);
        }
        bytes
    }

    /// Reads a slot. `shape`: that of a pool up to the end of the device; the root's pool may end
    /// before it. `Corrupt` for one that is not whole: never written, torn, or damaged. `check`
    /// is only off in a canary that shows why the checks are needed.
    pub fn decode(bytes: &[u8], shape: &PoolShape, check: bool) -> Result<Root> {
        let corrupt = |what| Err(Error::corrupt(Site::Root, what));
        let stamp = |sector: usize| get_u64(bytes, sector * SECTOR + PAYLOAD);
        let mut payload: Vec<u8> =
            bytes.chunks_exact(SECTOR).flat_map(|sector| sector[..PAYLOAD].iter().copied()).collect();
        let generation = get_u64(&payload, 8);
        if get_u64(&payload, 0) != MAGIC {
            return corrupt("holds none");
        }
        if check && (0..SECTORS).any(|sector| stamp(sector) != generation) {
            return corrupt("is torn: its sectors are of different generations");
        }
        let sum = get_u32(&payload, SUM_AT);
        put_u32(&mut payload, SUM_AT, 0);
        if check && crc32c(!0, &payload) != sum {
            return corrupt("checksum does not match");
        }
        let found = PoolShape {
            block_size: get_u32(&payload, 32),
            volume_blocks: get_u64(&payload, 40),
            device_blocks: get_u64(&payload, 48),
        };
        let is_within =
            found.device_blocks > found.volume_blocks && found.device_blocks <= shape.device_blocks;
        if !is_within || (PoolShape { device_blocks: shape.device_blocks, ..found }) != *shape {
            return corrupt("is that of a volume or device of another size");
        }
        let shape = &found;
        let map = get_pointer(&payload, MAP_AT);
        let snapshots = get_pointer(&payload, SNAPSHOTS_AT)
            .map(|first| (first, get_u32(&payload, SNAPSHOTS_AT + POINTER_BYTES)));
        let log = (get_u64(&payload, LOG_AT) != 0)
            .then(|| (BlockNr(get_u64(&payload, LOG_AT)), get_u32(&payload, LOG_AT + 8)));
        let is_run = |first: BlockNr, blocks: u32| {
            shape.contains(first) && blocks > 0 && u64::from(blocks) <= shape.device_blocks - first.0
        };
        let listed = snapshots.is_none_or(|(first, blocks)| is_run(first.pool_block, blocks));
        let logged = log.is_none_or(|(first, blocks)| is_run(first, blocks));
        if !listed || !logged || map.is_some_and(|p| !shape.contains(p.pool_block)) {
            return corrupt("points outside the pool");
        }
        if map.is_some_and(|p| p.birth > generation) {
            return corrupt("points to what is younger than itself");
        }
        let count = u64::from(get_u32(&payload, BITMAP_COUNT_AT));
        if count != shape.bitmap_blocks() || count > MAX_BITMAP_BLOCKS {
            return corrupt("number of bitmap blocks does not fit the pool");
        }
        let count = count as usize;
        let bits_at = BITMAPS_AT + 4 * count;
        let bitmap = |i: usize| {
            let copy = payload[bits_at + i / 8] >> (i % 8) & 1;
            (get_u32(&payload, BITMAPS_AT + 4 * i), usize::from(copy))
        };
        Ok(Root {
            generation,
            uuid: payload[16..32].try_into().expect("16 bytes"),
            shape: *shape,
            map_levels: get_u32(&payload, 36),
            map,
            used: get_u64(&payload, 56),
            snapshots,
            has_moved_data: get_u32(&payload, FLAGS_AT) & MOVED_DATA != 0,
            log,
            bitmaps: (0..count).map(bitmap).collect(),
        })
    }
}

const _: () = assert!(
    BITMAPS_AT + MAX_BITMAP_BLOCKS as usize * 4 + MAX_BITMAP_BLOCKS as usize / 8 <= SECTORS * PAYLOAD
);

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: PoolShape = PoolShape { block_size: 1024, volume_blocks: 16384, device_blocks: 40_000 };

    fn root(generation: u64) -> Root {
        Root {
            generation,
            uuid: [7; 16],
            shape: SHAPE,
            map_levels: 3,
            map: Some(Pointer { pool_block: BlockNr(20_000 + generation), birth: generation, sum: 1 }),
            used: 55,
            snapshots: Some((Pointer { pool_block: BlockNr(30_000), birth: 1, sum: 9 }, 2)),
            has_moved_data: true,
            log: Some((BlockNr(25_000), 16)),
            bitmaps: vec![(1, 0), (generation as u32, 1), (3, 1)],
        }
    }

    #[test]
    fn roots_survive_the_way_to_bytes_and_back() {
        assert_eq!(Root::decode(&root(5).encode(), &SHAPE, true).unwrap(), root(5));
        // The volume may take a part of the device.
        let larger = PoolShape { device_blocks: 40_001, ..SHAPE };
        assert_eq!(Root::decode(&root(5).encode(), &larger, true).unwrap(), root(5));
        for other in [
            PoolShape { device_blocks: 39_999, ..SHAPE },
            PoolShape { volume_blocks: 16_383, ..SHAPE },
            PoolShape { block_size: 2048, ..SHAPE },
        ] {
            assert!(Root::decode(&root(5).encode(), &other, true).is_err(), "{other:?}");
        }
    }

    #[test]
    fn every_torn_slot_is_known() {
        let (old, new) = (root(5).encode(), root(7).encode());
        for mask in 1u32..255 {
            let mut torn = old.clone();
            for sector in (0..8).filter(|s| mask & 1 << s != 0) {
                torn[sector * 512..][..512].copy_from_slice(&new[sector * 512..][..512]);
            }
            assert!(Root::decode(&torn, &SHAPE, true).is_err(), "mask {mask:x}");
        }
    }

    #[test]
    fn every_flipped_bit_is_known() {
        let good = root(5).encode();
        for at in (0..ROOT_BYTES).step_by(3) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(Root::decode(&bad, &SHAPE, true).is_err(), "byte {at}");
        }
    }
}
