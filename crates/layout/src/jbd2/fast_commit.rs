//! Fast commits (`fs/ext4/fast_commit.c`): detects whether there are any.
//!
//! With the feature FAST_COMMIT the last `s_num_fc_blks` blocks of a journal are not part of the
//! ring. The kernel writes logical records there (tag and length in little-endian, then the value).
//! Its recovery reads the first block of that area only after the ring has been scanned. The area
//! holds fast commits if the block begins with a HEAD record whose transaction is the one after the
//! last complete one of the ring; other contents are obsolete.

const TAG_HEAD: u16 = 0x0009;
const HEAD_BYTES: u16 = 8;

/// The record with which a live fast-commit area begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastCommitHead {
    pub features: u32,
    /// The transaction that the fast commits belong to.
    pub sequence: u32,
}

/// The HEAD record of the area's first block, if it begins with one.
pub fn fast_commit_head(block: &[u8]) -> Option<FastCommitHead> {
    let le16 = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let le32 = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    if block.len() < 12 || le16(0) != TAG_HEAD || le16(2) < HEAD_BYTES {
        return None;
    }
    Some(FastCommitHead { features: le32(4), sequence: le32(8) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_or_not() {
        assert_eq!(
            fast_commit_head(&[9, 0, 8, 0, 1, 0, 0, 0, 0x78, 0x56, 0, 0]),
            Some(FastCommitHead { features: 1, sequence: 0x5678 })
        );
        assert_eq!(fast_commit_head(&[0; 4096]), None);
        assert_eq!(fast_commit_head(&[9, 0]), None);
    }
}
