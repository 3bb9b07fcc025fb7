//! Second pass: the last transaction that revoked each block.

use xact_layout::jbd2::{LogFormat, decode_revokes};
use xact_types::{BlockNr, Error, Result, Site};

use super::reader::LogReader;
use super::scan::Transaction;
use crate::core::cache::BlockMap;

#[derive(Default)]
pub(super) struct Revokes {
    /// Block to sequence number.
    last: BlockMap<u32>,
    pub records: u64,
}

impl Revokes {
    /// Whether a copy in transaction `sequence` must not be replayed: it was revoked in that
    /// transaction (where a block that became metadata again has no record) or in a later one.
    pub fn stop(&self, block: u64, sequence: u32) -> bool {
        self.last.get(&block).is_some_and(|&revoked| !is_later(sequence, revoked))
    }
}

/// Comparison of sequence numbers that wrap.
fn is_later(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

pub(super) fn collect(
    reader: &mut LogReader<'_>,
    format: &LogFormat,
    transactions: &[Transaction],
) -> Result<Revokes> {
    let mut revokes = Revokes::default();
    for transaction in transactions {
        for &at in &transaction.revokes {
            let Some(blocks) = decode_revokes(format, reader.block(at)?) else {
                let (place, _) = reader.ring.layout.place(at).unwrap_or((BlockNr(0), 0));
                return Err(Error::corrupt(Site::Block(place), "a revoke block of the log is damaged"));
            };
            for block in blocks {
                revokes.records += 1;
                let last = revokes.last.entry(block).or_insert(transaction.sequence);
                if is_later(transaction.sequence, *last) {
                    *last = transaction.sequence;
                }
            }
        }
    }
    Ok(revokes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        assert!(is_later(1, 0));
        assert!(is_later(0, u32::MAX));
        assert!(!is_later(u32::MAX, 0));
        assert!(!is_later(7, 7));
        let mut revokes = Revokes::default();
        revokes.last.insert(5, u32::MAX);
        assert!(revokes.stop(5, u32::MAX - 1));
        assert!(revokes.stop(5, u32::MAX));
        assert!(!revokes.stop(5, 0));
        assert!(!revokes.stop(6, 0));
    }
}
