//! The list of snapshots: one record for each, from the oldest to the newest.
//!
//! ```text
//!  0 generation   8 time (seconds)   16 map root (pointer)   28 name, 100 bytes, filled up with 0
//! ```

use xact_base::{Error, Result, Site};

use super::node::{get_pointer, put_pointer};
use super::{Pointer, PoolShape};
use crate::{get_u64, put_u64};

/// Longest name, in bytes.
pub const SNAPSHOT_NAME_BYTES: usize = 100;
/// Bytes of one record.
pub const SNAPSHOT_RECORD_BYTES: usize = 128;

/// A generation that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRecord {
    pub generation: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// Root of its block map; `None` where every block was at home.
    pub map: Option<Pointer>,
    pub name: String,
}

/// The list as whole blocks; none for an empty list.
pub fn encode_snapshots(records: &[SnapshotRecord], block_size: usize) -> Vec<u8> {
    let mut bytes = vec![0; (records.len() * SNAPSHOT_RECORD_BYTES).next_multiple_of(block_size)];
    for (record, out) in records.iter().zip(bytes.chunks_exact_mut(SNAPSHOT_RECORD_BYTES)) {
        put_u64(out, 0, record.generation);
        put_u64(out, 8, record.time);
        if let Some(map) = &record.map {
            put_pointer(out, 16, map);
        }
        out[28..28 + record.name.len()].copy_from_slice(record.name.as_bytes());
    }
    bytes
}

/// Reads a list whose checksum the caller has verified.
pub fn decode_snapshots(bytes: &[u8], shape: &PoolShape) -> Result<Vec<SnapshotRecord>> {
    let corrupt = |what| Err(Error::corrupt(Site::Root, what));
    let mut records: Vec<SnapshotRecord> = Vec::new();
    for record in bytes.chunks_exact(SNAPSHOT_RECORD_BYTES) {
        let generation = get_u64(record, 0);
        if generation == 0 {
            break;
        }
        let map = get_pointer(record, 16);
        if map.is_some_and(|p| !shape.contains(p.place)) {
            return corrupt("a snapshot's map lies outside the pool");
        }
        if records.last().is_some_and(|last| last.generation >= generation) {
            return corrupt("the snapshots are not in order");
        }
        let name = &record[28..];
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        let Ok(name) = std::str::from_utf8(&name[..end]) else {
            return corrupt("a snapshot's name is no text");
        };
        records.push(SnapshotRecord { generation, time: get_u64(record, 8), map, name: name.to_owned() });
    }
    Ok(records)
}

const _: () = assert!(28 + SNAPSHOT_NAME_BYTES <= SNAPSHOT_RECORD_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use xact_base::BlockNr;

    #[test]
    fn lists_survive_the_way_to_bytes_and_back() {
        let shape = PoolShape { block_size: 1024, volume_blocks: 16384, device_blocks: 40_000 };
        let record = |n: u64| SnapshotRecord {
            generation: n,
            time: 1000 + n,
            map: (n % 2 == 0).then_some(Pointer { place: BlockNr(30_000 + n), sum: 3 }),
            name: "x".repeat(n as usize),
        };
        let records: Vec<_> = (1..=100).map(record).collect();
        for count in [0, 1, 8, 9, 100] {
            let bytes = encode_snapshots(&records[..count], 1024);
            assert_eq!(bytes.len(), (count * 128).next_multiple_of(1024));
            assert_eq!(decode_snapshots(&bytes, &shape).unwrap(), records[..count]);
        }
    }
}
