//! The list of snapshots, from the oldest to the newest. Each snapshot has one record. The paths of
//! a partial snapshot are in records of text behind it.
//!
//! ```text
//!  0 generation   8 time (seconds)   16 map root (pointer)   32 name, 100 bytes, padded with 0
//! ```
//! Two bits of the generation give the kind of snapshot. Bit 63: of chosen paths, whose text is in
//! the following records. Bit 62: of the whole volume, until it is pruned to such paths. A record
//! of text has bit 61 and no generation:
//!
//! ```text
//!  0 2^61 + its bytes   8 up to 128 bytes: paths from the volume's root, each followed by a NUL
//! ```

use xact_types::{Error, Result, SNAPSHOT_NAME_MAX, SNAPSHOT_PATHS_MAX, Site};

use super::node::{get_pointer, put_pointer};
use super::{Pointer, PoolShape};
use crate::{get_u64, put_u64};

/// Bytes of one record.
pub const SNAPSHOT_RECORD_BYTES: usize = 136;

const OF_PATHS: u64 = 1 << 63;
const TO_BE_PRUNED: u64 = 1 << 62;
const TEXT: u64 = 1 << 61;
const NAME_AT: usize = 32;
const TEXT_AT: usize = 8;
const TEXT_BYTES: usize = SNAPSHOT_RECORD_BYTES - TEXT_AT;

/// The files of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotOf {
    Volume,
    /// Files and folders, by their paths from the volume's root, and the folders that lead to them.
    Paths(Vec<Vec<u8>>),
    /// The volume, until it is pruned to chosen paths. If a crash leaves it, it is not a snapshot
    /// that a user asked for.
    ToBePruned,
}

/// A generation that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRecord {
    pub generation: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// Root of its block map; `None` if every block was at home.
    pub map: Option<Pointer>,
    pub name: String,
    pub of: SnapshotOf,
}

impl SnapshotRecord {
    /// Records that it takes in the list.
    pub fn count(&self) -> usize {
        match &self.of {
            SnapshotOf::Paths(paths) => 1 + paths_text(paths).len().div_ceil(TEXT_BYTES),
            SnapshotOf::Volume | SnapshotOf::ToBePruned => 1,
        }
    }
}

/// The paths as one text, each followed by a NUL.
pub fn paths_text(paths: &[Vec<u8>]) -> Vec<u8> {
    paths.iter().flat_map(|path| path.iter().copied().chain([0])).collect()
}

/// The paths of such a text; `None` if the text is invalid.
pub fn paths_from_text(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let paths: Vec<_> = text.strip_suffix(&[0])?.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
    paths.iter().all(|path| !path.is_empty()).then_some(paths)
}

/// The list as whole blocks; none for an empty list.
pub fn encode_snapshots(records: &[SnapshotRecord], block_size: usize) -> Vec<u8> {
    let count: usize = records.iter().map(SnapshotRecord::count).sum();
    let mut bytes = vec![0; (count * SNAPSHOT_RECORD_BYTES).next_multiple_of(block_size)];
    let mut slots = bytes.chunks_exact_mut(SNAPSHOT_RECORD_BYTES);
    for record in records {
        let out = slots.next().expect("records were counted");
        let (kind, text) = match &record.of {
            SnapshotOf::Volume => (0, Vec::new()),
            SnapshotOf::Paths(paths) => (OF_PATHS, paths_text(paths)),
            SnapshotOf::ToBePruned => (TO_BE_PRUNED, Vec::new()),
        };
        put_u64(out, 0, record.generation | kind);
        put_u64(out, 8, record.time);
        if let Some(map) = &record.map {
            put_pointer(out, 16, map);
        }
        out[NAME_AT..NAME_AT + record.name.len()].copy_from_slice(record.name.as_bytes());
        for part in text.chunks(TEXT_BYTES) {
            let out = slots.next().expect("records were counted");
            put_u64(out, 0, TEXT | part.len() as u64);
            out[TEXT_AT..TEXT_AT + part.len()].copy_from_slice(part);
        }
    }
    bytes
}

/// Reads a list whose checksum the caller has verified.
pub fn decode_snapshots(bytes: &[u8], shape: &PoolShape) -> Result<Vec<SnapshotRecord>> {
    let corrupt = |what| Err(Error::corrupt(Site::Root, what));
    let mut records: Vec<SnapshotRecord> = Vec::new();
    let mut slots = bytes.chunks_exact(SNAPSHOT_RECORD_BYTES).peekable();
    while let Some(record) = slots.next() {
        let word = get_u64(record, 0);
        if word == 0 {
            break;
        }
        let generation = word & (TEXT - 1);
        let of = match word & !(TEXT - 1) {
            0 => SnapshotOf::Volume,
            TO_BE_PRUNED => SnapshotOf::ToBePruned,
            OF_PATHS => {
                let mut text = Vec::new();
                while let Some(part) = slots.next_if(|part| get_u64(part, 0) & !(TEXT - 1) == TEXT) {
                    let len = (get_u64(part, 0) & (TEXT - 1)).min(TEXT_BYTES as u64) as usize;
                    text.extend_from_slice(&part[TEXT_AT..TEXT_AT + len]);
                }
                match paths_from_text(&text) {
                    Some(paths) if text.len() <= SNAPSHOT_PATHS_MAX => SnapshotOf::Paths(paths),
                    _ => return corrupt("a snapshot of chosen paths has no paths"),
                }
            }
            _ => return corrupt("a snapshot is of a kind that is not known"),
        };
        let map = get_pointer(record, 16);
        if map.is_some_and(|p| !shape.contains(p.pool_block)) {
            return corrupt("a snapshot's map lies outside the pool");
        }
        if generation == 0 || records.last().is_some_and(|last| last.generation >= generation) {
            return corrupt("the snapshots are not in order");
        }
        let name = &record[NAME_AT..];
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        let Ok(name) = std::str::from_utf8(&name[..end]) else {
            return corrupt("a snapshot's name is not UTF-8");
        };
        let (time, name) = (get_u64(record, 8), name.to_owned());
        records.push(SnapshotRecord { generation, time, map, name, of });
    }
    Ok(records)
}

const _: () = assert!(NAME_AT + SNAPSHOT_NAME_MAX <= SNAPSHOT_RECORD_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use xact_types::BlockNr;

    #[test]
    fn lists_survive_the_way_to_bytes_and_back() {
        let shape = PoolShape { block_size: 1024, volume_blocks: 16384, device_blocks: 40_000 };
        let record = |n: u64| SnapshotRecord {
            generation: n,
            time: 1000 + n,
            map: (n % 2 == 0).then_some(Pointer { pool_block: BlockNr(30_000 + n), birth: n, sum: 3 }),
            name: "x".repeat(n as usize),
            of: match n % 3 {
                0 => SnapshotOf::Volume,
                1 => SnapshotOf::Paths((1..=n).map(|k| vec![b'a'; k as usize]).collect()),
                _ => SnapshotOf::ToBePruned,
            },
        };
        let records: Vec<_> = (1..=100).map(record).collect();
        for count in [0, 1, 8, 9, 100] {
            let bytes = encode_snapshots(&records[..count], 1024);
            let slots: usize = records[..count].iter().map(SnapshotRecord::count).sum();
            assert_eq!(bytes.len(), (slots * SNAPSHOT_RECORD_BYTES).next_multiple_of(1024));
            assert_eq!(decode_snapshots(&bytes, &shape).unwrap(), records[..count]);
        }
    }

    #[test]
    fn a_list_that_cannot_be_is_refused() {
        let shape = PoolShape { block_size: 1024, volume_blocks: 16384, device_blocks: 40_000 };
        let of = |of| SnapshotRecord { generation: 7, time: 0, map: None, name: "x".into(), of };
        let whole = encode_snapshots(&[of(SnapshotOf::Paths(vec![b"a/b".to_vec()]))], 1024);
        assert!(decode_snapshots(&whole, &shape).is_ok());
        // Without its text, with an unfinished text, with a text that belongs to no snapshot, of an
        // unknown kind.
        for (at, word) in [
            (SNAPSHOT_RECORD_BYTES, 0),
            (SNAPSHOT_RECORD_BYTES, TEXT | 3),
            (0, TEXT | 1),
            (0, 7 | OF_PATHS | TO_BE_PRUNED),
        ] {
            let mut bytes = whole.clone();
            put_u64(&mut bytes, at, word);
            assert!(decode_snapshots(&bytes, &shape).is_err(), "{at} {word:x}");
        }
    }
}
