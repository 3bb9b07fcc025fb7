//! The contents of blocks, as a function of their use.

use super::{BLOCK_BYTES, JBD2_MAGIC, ROOT};

/// The owner and contents of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockUse {
    /// No owner: its bytes do not matter.
    Free,
    Meta {
        generation: u32,
        /// Looks like a block of the journal.
        disguised: bool,
    },
    Data {
        generation: u32,
    },
    /// Metadata that looks like a part of a transaction with this sequence number: its descriptor,
    /// a copy of the root, its commit block.
    Forged {
        part: ForgedPart,
        sequence: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForgedPart {
    Descriptor,
    Copy,
    Commit,
}

impl BlockUse {
    pub fn is_meta(self) -> bool {
        matches!(self, BlockUse::Meta { .. } | BlockUse::Forged { .. })
    }
}

pub(super) fn contents(block: u64, used: BlockUse) -> Vec<u8> {
    let (kind, generation) = match used {
        BlockUse::Free => (0, 0),
        BlockUse::Meta { generation, disguised: false } => (1, generation),
        BlockUse::Meta { generation, disguised: true } => (2, generation),
        BlockUse::Data { generation } => (3, generation),
        BlockUse::Forged { part, sequence } => return forged(part, sequence),
    };
    let mut bytes = crate::model::stamp::bytes(kind << 24 | block as u32, generation, 0, BLOCK_BYTES as u64);
    if kind == 2 {
        bytes[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
    }
    bytes
}

/// Blocks of a journal without checksums, which a reader of the log would accept.
fn forged(part: ForgedPart, sequence: u32) -> Vec<u8> {
    const DESCRIPTOR: u32 = 1;
    const COMMIT: u32 = 2;
    const SAME_UUID_AND_LAST: u16 = 2 | 8;
    let header = |kind: u32| {
        let mut bytes = vec![0; BLOCK_BYTES];
        for (n, word) in [JBD2_MAGIC, kind, sequence].iter().enumerate() {
            bytes[4 * n..4 * n + 4].copy_from_slice(&word.to_be_bytes());
        }
        bytes
    };
    match part {
        ForgedPart::Descriptor => {
            let mut bytes = header(DESCRIPTOR);
            bytes[12..16].copy_from_slice(&(ROOT as u32).to_be_bytes());
            bytes[18..20].copy_from_slice(&SAME_UUID_AND_LAST.to_be_bytes());
            bytes
        }
        // Another one in each commit: a block that stays the same is not written.
        ForgedPart::Copy => {
            let mut bytes = vec![0xee; BLOCK_BYTES];
            bytes[..4].copy_from_slice(&sequence.to_be_bytes());
            bytes
        }
        ForgedPart::Commit => header(COMMIT),
    }
}
