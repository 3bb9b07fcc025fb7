//! The block of multi-mount protection (`struct mmp_struct`): a number that the volume's holder
//! keeps changing.

use xact_types::{BlockNr, Error, Result, Site};

use crate::bytes::fields;
use crate::checksum::crc32c;
use crate::superblock::Superblock;
use crate::{get_u32, put_u32};

pub const MMP_BYTES: usize = 1024;
/// `mmp_magic`.
const MAGIC: u32 = 0x004D_4D50;
const CHECKSUM_AT: usize = MMP_BYTES - 4;
const NODE_NAME: std::ops::Range<usize> = 16..80;
const DEVICE_NAME: std::ops::Range<usize> = 80..112;

/// `mmp_seq`: the volume is free (`EXT4_MMP_SEQ_CLEAN`).
pub const SEQUENCE_CLEAN: u32 = 0xFF4D_4D50;
/// `mmp_seq`: e2fsck has it (`EXT4_MMP_SEQ_FSCK`).
pub const SEQUENCE_CHECKING: u32 = 0xE24D_4D50;
/// The largest number of a mount (`EXT4_MMP_SEQ_MAX`).
pub const SEQUENCE_MAX: u32 = 0xE24D_4D4F;

#[derive(Clone, PartialEq, Eq)]
pub struct MmpBlock {
    bytes: [u8; MMP_BYTES],
}

impl MmpBlock {
    /// Checks magic and checksum.
    pub fn decode(bytes: &[u8; MMP_BYTES], sb: &Superblock, block: BlockNr) -> Result<MmpBlock> {
        let mmp = MmpBlock { bytes: *bytes };
        if get_u32(bytes, 0) != MAGIC {
            return Err(Error::corrupt(Site::Block(block), "not a block of multi-mount protection"));
        }
        if sb.has_metadata_csum() && get_u32(bytes, CHECKSUM_AT) != mmp.checksum(sb) {
            return Err(Error::corrupt(Site::Block(block), "checksum of the mmp block does not match"));
        }
        Ok(mmp)
    }

    fields! {
        sequence, set_sequence: u32 @ 4;
        /// Seconds since 1970 of the last change.
        time, set_time: u64 @ 8;
        /// Seconds without a change after which the volume counts as free.
        check_interval, set_check_interval: u16 @ 112;
    }

    /// The holder's node name.
    pub fn node_name(&self) -> &[u8] {
        let field = &self.bytes[NODE_NAME];
        &field[..field.iter().position(|&b| b == 0).unwrap_or(field.len())]
    }

    /// Sets the holder's node name and its name of the device, each as far as it fits.
    pub fn set_holder(&mut self, node: &[u8], device: &[u8]) {
        for (range, name) in [(NODE_NAME, node), (DEVICE_NAME, device)] {
            let field = &mut self.bytes[range];
            field.fill(0);
            let len = name.len().min(field.len() - 1);
            field[..len].copy_from_slice(&name[..len]);
        }
    }

    fn checksum(&self, sb: &Superblock) -> u32 {
        crc32c(sb.checksum_seed(), &self.bytes[..CHECKSUM_AT])
    }

    /// The bytes with their checksum.
    pub fn sealed(&self, sb: &Superblock) -> [u8; MMP_BYTES] {
        let mut bytes = self.bytes;
        if sb.has_metadata_csum() {
            put_u32(&mut bytes, CHECKSUM_AT, self.checksum(sb));
        }
        bytes
    }
}
