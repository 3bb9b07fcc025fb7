//! The model: an in-memory file system with independent, simple semantics that remembers all
//! promises, and judges the result of a crash.

mod contents;
mod history;
mod judge;
mod op;
pub mod stamp;
mod state;

pub use contents::Promise;
pub use history::{History, Step, ThreadHistory};
pub use op::Op;
pub use state::{Content, Id, Node, ROOT, State};
