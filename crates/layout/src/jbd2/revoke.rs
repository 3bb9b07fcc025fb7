//! Revoke blocks: blocks whose older copies in the log must not be replayed.

use super::{BlockType, HEADER_BYTES, Header, LogFormat, be32, be64, put32};

/// After the header, the number of bytes used, header and count included.
const USED: usize = HEADER_BYTES;
const RECORDS: usize = HEADER_BYTES + 4;

fn record_bytes(format: &LogFormat) -> usize {
    if format.wide { 8 } else { 4 }
}

/// The most records of one revoke block.
pub fn revokes_per_block(format: &LogFormat) -> usize {
    (format.block_size - RECORDS - format.tail_bytes()) / record_bytes(format)
}

/// A revoke block of at most [`revokes_per_block`] block numbers.
pub fn encode_revokes(format: &LogFormat, sequence: u32, blocks: &[u64]) -> Vec<u8> {
    assert!(blocks.len() <= revokes_per_block(format), "more revoke records than fit one block");
    let mut out = vec![0; format.block_size];
    Header { block_type: BlockType::Revoke, sequence }.encode(&mut out);
    let mut at = RECORDS;
    for &block in blocks {
        if format.wide {
            put32(&mut out, at, (block >> 32) as u32);
            put32(&mut out, at + 4, block as u32);
        } else {
            put32(&mut out, at, block as u32);
        }
        at += record_bytes(format);
    }
    put32(&mut out, USED, at as u32);
    format.seal_tail(&mut out);
    out
}

/// The block numbers of a revoke block; `None` if its count of bytes is invalid.
pub fn decode_revokes(format: &LogFormat, block: &[u8]) -> Option<Vec<u64>> {
    let used = be32(block, USED) as usize;
    if used > block.len() - format.tail_bytes() {
        return None;
    }
    let records = block.get(RECORDS..used).unwrap_or(&[]);
    Some(
        records
            .chunks_exact(record_bytes(format))
            .map(|r| if format.wide { be64(r, 0) } else { u64::from(be32(r, 0)) })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::formats;
    use super::*;

    #[test]
    fn round_trip() {
        for format in formats() {
            let max = revokes_per_block(&format);
            let blocks: Vec<u64> =
                (0..max as u64).map(|i| if format.wide { i << 33 | i } else { i }).collect();
            let block = encode_revokes(&format, 5, &blocks);
            assert!(format.tail_is_valid(&block));
            assert_eq!(decode_revokes(&format, &block).unwrap(), blocks);
        }
    }

    #[test]
    fn counts_that_cannot_be() {
        for format in formats() {
            let mut block = encode_revokes(&format, 5, &[1, 2]);
            put32(&mut block, USED, 3);
            assert_eq!(decode_revokes(&format, &block).unwrap(), []);
            put32(&mut block, USED, u32::MAX);
            assert_eq!(decode_revokes(&format, &block), None);
        }
    }
}
