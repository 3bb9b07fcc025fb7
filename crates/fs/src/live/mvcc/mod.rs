//! The volume as of an instant, for transactions: stamps, old versions, reads of them.

pub(super) mod reads;
pub(super) mod stamps;
pub(super) mod versions;
