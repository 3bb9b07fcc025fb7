//! Space that is short.
//!
//! - `tx_space`: what open transactions hold before their commits
//! - `make_space`: what gives way before a caller gets `NoSpace`
//! - `journal_size`: the journal's length follows the largest commit

pub(super) mod journal_size;
pub(super) mod make_space;
pub(super) mod tx_space;

use journal_size::LongJournal;
use make_space::{RemovalUnderWay, SpaceMaking};
use tx_space::TxSpaces;

/// Who holds space, and what is done to get some.
#[derive(Default)]
pub(super) struct Space {
    transactions: TxSpaces,
    making: SpaceMaking,
    long_journal: LongJournal,
}

impl Space {
    /// Blocks are given back as long as the result lives: callers that find none wait for that.
    pub fn begin_removal(&self) -> RemovalUnderWay<'_> {
        self.making.begin_removal()
    }
}
