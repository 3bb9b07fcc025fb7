//! Space that is short: what transactions hold before their commits, what gives way on a full volume, the journal's length.

pub(super) mod journal_size;
pub(super) mod make_space;
pub(super) mod spill;
pub(super) mod tx_space;
