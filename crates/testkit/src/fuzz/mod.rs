//! What the fuzz targets in `fuzz/` do with the bytes that a fuzzer makes up. It is here so that tests
//! can do the same with the corpus and with what was found before (`tests/regress`), without a fuzzer.
//!
//! Each target panics where something is wrong, and has more to say than "it crashed":
//!
//! - [`codecs`]: bytes to structures; what was read and is written again reads the same.
//! - [`replay`]: a log, mostly sound; replayed as the kernel would, or refused with nothing written.
//! - [`volume`]: a volume with changed bytes under sound checksums; where `xact check` finds nothing
//!   wrong, nothing may go wrong.
//! - [`operations`]: operations on files, transactions, remounts and crashes, against the model.

pub mod codecs;
mod log_model;
pub mod operations;
pub mod replay;
mod reseal;
pub mod volume;

/// A target: its name, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: [Target; 4] = [
    ("codecs", codecs::run),
    ("replay", replay::run),
    ("volume", volume::run),
    ("operations", operations::run),
];
