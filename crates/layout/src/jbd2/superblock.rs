//! The journal superblock (`journal_superblock_t`), block 0 of the journal.

use xact_types::{Error, Result, Site};

use crate::checksum::crc32c;

use super::{BlockType, Checksums, Header, LogFormat, be32, put32};

/// Size of the journal superblock; the rest of its block is not part of it.
pub const JOURNAL_SUPERBLOCK_BYTES: usize = 1024;

/// Kernels refuse shorter journals (`JBD2_MIN_JOURNAL_BLOCKS`).
pub const MIN_JOURNAL_BLOCKS: u32 = 1024;

/// The number of fast-commit blocks that a count of 0 means (`JBD2_DEFAULT_FAST_COMMIT_BLOCKS`).
pub const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;

const BLOCK_SIZE: usize = 12;
const MAXLEN: usize = 16;
const FIRST: usize = 20;
const SEQUENCE: usize = 24;
const START: usize = 28;
const ERRNO: usize = 32;
/// The end of version 1.
const V2_FIELDS: usize = 36;
const COMPAT: usize = 36;
const INCOMPAT: usize = 40;
const RO_COMPAT: usize = 44;
const UUID: usize = 48;
const NR_USERS: usize = 64;
const DYNSUPER: usize = 68;
const MAX_TRANSACTION: usize = 72;
const MAX_TRANS_DATA: usize = 76;
const CHECKSUM_TYPE: usize = 80;
const NUM_FC_BLKS: usize = 84;
const HEAD: usize = 88;
/// xact's own, in bytes that are padding for the kernel: [`MADE_WITH_MAGIC`] and a count of blocks.
const MADE_WITH: usize = 244;
const CHECKSUM: usize = 252;

/// Marks a journal that is temporarily longer than it was made.
const MADE_WITH_MAGIC: u32 = u32::from_be_bytes(*b"xJnl");

/// `JBD2_CRC32C_CHKSUM`, the only kind that the kernel knows for v2 and v3.
const CHECKSUM_TYPE_CRC32C: u8 = 4;

/// The three feature words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    pub compat: u32,
    pub incompat: u32,
    pub ro_compat: u32,
}

impl Features {
    /// compat: v1 checksums in commit blocks.
    pub const CHECKSUM_V1: u32 = 0x1;
    pub const REVOKE: u32 = 0x1;
    pub const WIDE_BLOCKS: u32 = 0x2;
    pub const ASYNC_COMMIT: u32 = 0x4;
    pub const CSUM_V2: u32 = 0x8;
    pub const CSUM_V3: u32 = 0x10;
    pub const FAST_COMMIT: u32 = 0x20;
    /// Ours: the log has blocks of patches ([`super::PatchWriter`]).
    pub const XACT_PATCHES: u32 = 0x4000_0000;
    const KNOWN_INCOMPAT: u32 = 0x3f | Features::XACT_PATCHES;

    pub fn checksums(&self) -> Checksums {
        if self.incompat & Features::CSUM_V3 != 0 {
            Checksums::V3
        } else if self.incompat & Features::CSUM_V2 != 0 {
            Checksums::V2
        } else if self.compat & Features::CHECKSUM_V1 != 0 {
            Checksums::V1
        } else {
            Checksums::None
        }
    }

    pub fn has_incompat(&self, feature: u32) -> bool {
        self.incompat & feature != 0
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSuperblock {
    /// `SuperblockV1` (no field from `features` on) or `SuperblockV2`.
    pub version: BlockType,
    pub block_size: u32,
    /// Blocks of the whole journal.
    pub maxlen: u32,
    /// First block of the log.
    pub first: u32,
    /// First transaction to be expected in the log.
    pub sequence: u32,
    /// Block where the log begins; 0 if it is empty.
    pub start: u32,
    /// Error with which the journal was aborted, negative; 0 if it was not.
    pub errno: i32,
    pub features: Features,
    pub uuid: [u8; 16],
    pub users: u32,
    pub dynsuper: u32,
    pub max_transaction: u32,
    pub max_trans_data: u32,
    pub checksum_type: u8,
    pub fast_commit_blocks: u32,
    /// Block where the log continues; valid while the log is empty, 0 if unknown.
    pub head: u32,
    /// xact's own: `maxlen` as the journal was made, while it is longer for a large transaction;
    /// else 0.
    pub made_with: u32,
}

impl JournalSuperblock {
    /// Reads and checks the first [`JOURNAL_SUPERBLOCK_BYTES`] of the journal.
    ///
    /// Errors: `Corrupt` for values that no journal has; `Unsupported` for features of newer
    /// kernels and for journals shared by several volumes.
    pub fn decode(bytes: &[u8]) -> Result<JournalSuperblock> {
        let corrupt = |what| Err(Error::corrupt(Site::JournalSuperblock, what));
        if bytes.len() < JOURNAL_SUPERBLOCK_BYTES {
            return corrupt("is cut short");
        }
        let Some(header) = Header::decode(bytes) else {
            return corrupt("has no magic number");
        };
        if !matches!(header.block_type, BlockType::SuperblockV1 | BlockType::SuperblockV2) {
            return corrupt("is of another kind of block");
        }
        let v2 = header.block_type == BlockType::SuperblockV2;
        let word = |at| if v2 || at < V2_FIELDS { be32(bytes, at) } else { 0 };
        let mut uuid = [0; 16];
        if v2 {
            uuid.copy_from_slice(&bytes[UUID..UUID + 16]);
        }
        let sb = JournalSuperblock {
            version: header.block_type,
            block_size: word(BLOCK_SIZE),
            maxlen: word(MAXLEN),
            first: word(FIRST),
            sequence: word(SEQUENCE),
            start: word(START),
            errno: word(ERRNO) as i32,
            features: Features { compat: word(COMPAT), incompat: word(INCOMPAT), ro_compat: word(RO_COMPAT) },
            uuid,
            users: word(NR_USERS),
            dynsuper: word(DYNSUPER),
            max_transaction: word(MAX_TRANSACTION),
            max_trans_data: word(MAX_TRANS_DATA),
            checksum_type: if v2 { bytes[CHECKSUM_TYPE] } else { 0 },
            fast_commit_blocks: word(NUM_FC_BLKS),
            head: word(HEAD),
            made_with: if word(MADE_WITH) == MADE_WITH_MAGIC { word(MADE_WITH + 4) } else { 0 },
        };
        sb.check(bytes)?;
        Ok(sb)
    }

    fn check(&self, bytes: &[u8]) -> Result<()> {
        let corrupt = |what| Err(Error::corrupt(Site::JournalSuperblock, what));
        let unknown = self.features.incompat & !Features::KNOWN_INCOMPAT;
        if unknown != 0 || self.features.ro_compat != 0 {
            return Err(Error::Unsupported(format!(
                "journal features (incompat {unknown:#x}, ro_compat {:#x})",
                self.features.ro_compat
            )));
        }
        if self.users > 1 {
            return Err(Error::Unsupported("a journal shared by several volumes".into()));
        }
        let generations = [
            self.features.compat & Features::CHECKSUM_V1 != 0,
            self.features.has_incompat(Features::CSUM_V2),
            self.features.has_incompat(Features::CSUM_V3),
        ];
        if generations.iter().filter(|on| **on).count() > 1 {
            return corrupt("has checksums of two generations");
        }
        if matches!(self.features.checksums(), Checksums::V2 | Checksums::V3) {
            if self.checksum_type != CHECKSUM_TYPE_CRC32C {
                return corrupt("has an unknown kind of checksum");
            }
            if be32(bytes, CHECKSUM) != superblock_checksum(bytes) {
                return corrupt("checksum does not match");
            }
        }
        if !self.block_size.is_power_of_two() || !(1024..=65536).contains(&self.block_size) {
            return corrupt("has an impossible block size");
        }
        if self.first == 0 || self.first >= self.maxlen {
            return corrupt("has its first log block outside the journal");
        }
        if self.start != 0 && !(self.first..self.log_end()).contains(&self.start) {
            return corrupt("has the start of the log outside of it");
        }
        if self.made_with != 0 && !(self.first + 1..=self.maxlen).contains(&self.made_with) {
            return corrupt("says that it was made with another length than it can have been");
        }
        Ok(())
    }

    /// The end of the ring, exclusively. The fast-commit area, if there is one, follows it.
    pub fn log_end(&self) -> u32 {
        match self.fast_commit_start() {
            Some(area) => area - 1,
            None => self.maxlen,
        }
    }

    /// First block of the fast-commit area. The kernel leaves one block before it unused, and has
    /// no area if the rest of the ring would be too small.
    pub fn fast_commit_start(&self) -> Option<u32> {
        if !self.features.has_incompat(Features::FAST_COMMIT) {
            return None;
        }
        let blocks =
            if self.fast_commit_blocks == 0 { DEFAULT_FAST_COMMIT_BLOCKS } else { self.fast_commit_blocks };
        match self.maxlen.checked_sub(blocks) {
            Some(end) if end >= MIN_JOURNAL_BLOCKS => Some(end + 1),
            _ => None,
        }
    }

    /// Writes the fields into `bytes` (the journal's first block or its first 1024 bytes), with
    /// their checksum. Bytes that are not in the struct (the list of users) stay unchanged.
    pub fn encode_into(&self, bytes: &mut [u8]) {
        Header { block_type: self.version, sequence: be32(bytes, 8) }.encode(bytes);
        put32(bytes, BLOCK_SIZE, self.block_size);
        put32(bytes, MAXLEN, self.maxlen);
        put32(bytes, FIRST, self.first);
        put32(bytes, SEQUENCE, self.sequence);
        put32(bytes, START, self.start);
        put32(bytes, ERRNO, self.errno as u32);
        if self.version != BlockType::SuperblockV2 {
            return;
        }
        put32(bytes, COMPAT, self.features.compat);
        put32(bytes, INCOMPAT, self.features.incompat);
        put32(bytes, RO_COMPAT, self.features.ro_compat);
        bytes[UUID..UUID + 16].copy_from_slice(&self.uuid);
        put32(bytes, NR_USERS, self.users);
        put32(bytes, DYNSUPER, self.dynsuper);
        put32(bytes, MAX_TRANSACTION, self.max_transaction);
        put32(bytes, MAX_TRANS_DATA, self.max_trans_data);
        bytes[CHECKSUM_TYPE] = self.checksum_type;
        put32(bytes, NUM_FC_BLKS, self.fast_commit_blocks);
        put32(bytes, HEAD, self.head);
        let was_noted = be32(bytes, MADE_WITH) == MADE_WITH_MAGIC;
        if self.made_with != 0 || was_noted {
            put32(bytes, MADE_WITH, if self.made_with != 0 { MADE_WITH_MAGIC } else { 0 });
            put32(bytes, MADE_WITH + 4, self.made_with);
        }
        if matches!(self.features.checksums(), Checksums::V2 | Checksums::V3) {
            let sum = superblock_checksum(bytes);
            put32(bytes, CHECKSUM, sum);
        }
    }

    /// Turns a version 1 superblock into one of version 2, which has features.
    pub fn upgrade(&mut self) {
        if self.version == BlockType::SuperblockV1 {
            self.version = BlockType::SuperblockV2;
            self.users = 1;
        }
    }

    /// Sets the log's checksums; only while the log is empty.
    pub fn set_checksums(&mut self, checksums: Checksums) {
        self.features.compat &= !Features::CHECKSUM_V1;
        self.features.incompat &= !(Features::CSUM_V2 | Features::CSUM_V3 | Features::ASYNC_COMMIT);
        self.checksum_type = 0;
        match checksums {
            Checksums::None => {}
            Checksums::V1 => self.features.compat |= Features::CHECKSUM_V1,
            Checksums::V2 => self.features.incompat |= Features::CSUM_V2,
            Checksums::V3 => self.features.incompat |= Features::CSUM_V3,
        }
        if matches!(checksums, Checksums::V2 | Checksums::V3) {
            self.checksum_type = CHECKSUM_TYPE_CRC32C;
        }
    }

    /// How the blocks of this journal's log are written.
    pub fn format(&self) -> LogFormat {
        LogFormat {
            block_size: self.block_size as usize,
            checksums: self.features.checksums(),
            wide: self.features.has_incompat(Features::WIDE_BLOCKS),
            seed: crc32c(!0, &self.uuid),
            uuid: self.uuid,
        }
    }
}

fn superblock_checksum(bytes: &[u8]) -> u32 {
    let sum = crc32c(!0, &bytes[..CHECKSUM]);
    let sum = crc32c(sum, &[0; 4]);
    crc32c(sum, &bytes[CHECKSUM + 4..JOURNAL_SUPERBLOCK_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> JournalSuperblock {
        JournalSuperblock {
            version: BlockType::SuperblockV2,
            block_size: 4096,
            maxlen: 4096,
            first: 1,
            sequence: 7,
            start: 100,
            errno: -5,
            features: Features { compat: 0, incompat: 0x3, ro_compat: 0 },
            uuid: [3; 16],
            users: 1,
            dynsuper: 0,
            max_transaction: 0,
            max_trans_data: 0,
            checksum_type: 0,
            fast_commit_blocks: 0,
            head: 9,
            made_with: 0,
        }
    }

    #[test]
    fn the_length_that_it_was_made_with() {
        let mut bytes = vec![0; 1024];
        bytes[MADE_WITH..CHECKSUM].fill(7);
        let mut sb = sample();
        sb.encode_into(&mut bytes);
        assert!(bytes[MADE_WITH..CHECKSUM].iter().all(|&b| b == 7), "what is not ours stays");
        sb.made_with = 1024;
        sb.encode_into(&mut bytes);
        assert_eq!(JournalSuperblock::decode(&bytes).unwrap(), sb);
        sb.made_with = 0;
        sb.encode_into(&mut bytes);
        assert!(bytes[MADE_WITH..CHECKSUM].iter().all(|&b| b == 0));
    }

    #[test]
    fn round_trip() {
        for checksums in [Checksums::None, Checksums::V1, Checksums::V2, Checksums::V3] {
            let mut sb = sample();
            sb.set_checksums(checksums);
            let mut bytes = vec![0; 4096];
            sb.encode_into(&mut bytes);
            assert_eq!(JournalSuperblock::decode(&bytes).unwrap(), sb);
            assert_eq!(sb.format().checksums, checksums);
            bytes[300] ^= 1;
            let protected = matches!(checksums, Checksums::V2 | Checksums::V3);
            assert_eq!(JournalSuperblock::decode(&bytes).is_err(), protected);
        }
    }

    #[test]
    fn fast_commit_area() {
        let mut sb = sample();
        assert_eq!((sb.log_end(), sb.fast_commit_start()), (4096, None));
        sb.features.incompat |= Features::FAST_COMMIT;
        assert_eq!((sb.log_end(), sb.fast_commit_start()), (3840, Some(3841)));
        sb.fast_commit_blocks = 4000;
        assert_eq!((sb.log_end(), sb.fast_commit_start()), (4096, None));
    }

    #[test]
    fn refusals() {
        type Damage = fn(&mut JournalSuperblock);
        let damages: [Damage; 8] = [
            |s| s.features.incompat |= 0x100,
            |s| s.features.ro_compat = 1,
            |s| s.users = 2,
            |s| s.features.incompat |= Features::CSUM_V2 | Features::CSUM_V3,
            |s| s.block_size = 3000,
            |s| s.first = 5000,
            |s| s.start = 4096,
            |s| s.made_with = 4097,
        ];
        for damage in damages {
            let mut sb = sample();
            damage(&mut sb);
            let mut bytes = vec![0; 1024];
            sb.encode_into(&mut bytes);
            assert!(JournalSuperblock::decode(&bytes).is_err());
        }
        assert!(JournalSuperblock::decode(&[0; 1024]).is_err());
        assert!(JournalSuperblock::decode(&[]).is_err());
    }
}
