//! The end of a transaction, and how the kernel sees all of a commit at once.

pub mod cache_fence;
pub mod expected_call;
pub mod followers;
pub mod following;
pub mod held_reply;
pub mod inline_end;
pub mod publish;
pub mod tx_end;
pub mod watchers;
