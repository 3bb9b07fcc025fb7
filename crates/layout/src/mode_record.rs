//! The record of a volume's own default modes, in the last bytes of the superblock's reserved area.
//!
//! ```text
//!  0x3E0  magic 0x646F6D78 ("xmod")
//!  0x3E4  version, 1
//!  0x3E5  for each setting, in the order of `xact mode get`: its value's number, or 0 for none
//!  0x3F8  crc32c (seed ~0) of the 24 bytes before
//!  0x3FC  (the superblock's own checksum)
//! ```
//! The kernel and e2fsprogs keep these bytes and do not read them; new fields of ext4 come from the
//! area's other end. Bytes that are neither zeros nor such a record belong to other software and
//! stay.

use crate::checksum::crc32c;
use crate::{get_u32, put_u32};

pub(crate) const MODE_RECORD_AT: usize = 0x3E0;
pub(crate) const MODE_RECORD_BYTES: usize = 28;
/// The most settings in a record.
pub const MODE_SETTINGS: usize = 8;

const MAGIC: u32 = u32::from_le_bytes(*b"xmod");
const VERSION: u8 = 1;
const VALUES_AT: usize = 5;
const CHECKSUM_AT: usize = 24;

/// The contents of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeRecord {
    /// Zeros: no mode was ever set.
    Empty,
    Values([u8; MODE_SETTINGS]),
    /// Not ours, or of a newer version, or damaged.
    Foreign,
}

impl ModeRecord {
    pub(crate) fn decode(bytes: &[u8]) -> ModeRecord {
        if bytes.iter().all(|&byte| byte == 0) {
            return ModeRecord::Empty;
        }
        let sound = get_u32(bytes, 0) == MAGIC
            && bytes[4] == VERSION
            && get_u32(bytes, CHECKSUM_AT) == crc32c(!0, &bytes[..CHECKSUM_AT]);
        if !sound {
            return ModeRecord::Foreign;
        }
        let values = bytes[VALUES_AT..VALUES_AT + MODE_SETTINGS].try_into();
        ModeRecord::Values(values.expect("a slice of that length"))
    }

    /// The bytes of a record with these values; zeros if all values are 0.
    pub(crate) fn encode(values: [u8; MODE_SETTINGS]) -> [u8; MODE_RECORD_BYTES] {
        let mut bytes = [0; MODE_RECORD_BYTES];
        if values != [0; MODE_SETTINGS] {
            put_u32(&mut bytes, 0, MAGIC);
            bytes[4] = VERSION;
            bytes[VALUES_AT..VALUES_AT + MODE_SETTINGS].copy_from_slice(&values);
            let sum = crc32c(!0, &bytes[..CHECKSUM_AT]);
            put_u32(&mut bytes, CHECKSUM_AT, sum);
        }
        bytes
    }
}

const _: () = assert!(MODE_RECORD_AT + MODE_RECORD_BYTES == 0x3FC);
const _: () = assert!(VALUES_AT + MODE_SETTINGS <= CHECKSUM_AT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_nothing_else_is_taken_for_one() {
        let values = [5, 1, 0, 2, 0, 0, 0, 9];
        let bytes = ModeRecord::encode(values);
        assert_eq!(ModeRecord::decode(&bytes), ModeRecord::Values(values));
        for at in 0..bytes.len() {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(ModeRecord::decode(&other), ModeRecord::Foreign, "byte {at}");
        }
        assert_eq!(ModeRecord::decode(&ModeRecord::encode([0; MODE_SETTINGS])), ModeRecord::Empty);
    }
}
