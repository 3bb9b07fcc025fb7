//! The model: an in-memory file system with independent, simple semantics that remembers what was
//! promised, and judges what a crash left.

mod contents;
mod history;
mod judge;
mod op;
pub mod stamp;
mod state;

pub use contents::Promise;
pub use history::{History, Lane, Step};
pub use op::Op;
pub use state::{Content, Id, Node, ROOT, State};
