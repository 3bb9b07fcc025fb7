//! File operations as calls of a view, one file for each kind.

pub mod attributes;
pub mod credentials;
pub mod io;
pub mod listing;
pub mod names;
