//! The bodies of the fuzz targets in `fuzz/`. They are here so that tests can run them without a
//! fuzzer, on the corpus and on earlier findings (`tests/regress`).
//!
//! Each target panics if something is wrong, and checks more than the absence of a crash:
//!
//! - [`codecs`]: bytes to structures; a structure that was read and written again reads the same.
//! - [`replay`]: a log, mostly sound; replayed as the kernel would, or refused with nothing
//!   written.
//! - [`volume`]: a volume with changed bytes under sound checksums; if `xact check` finds no
//!   problem, no call may fail.
//! - [`check`]: a volume of either engine with changed bytes, crashed or not; the check ends, and
//!   its cost follows the size of the volume.
//! - [`operations`]: operations on files, transactions, remounts and crashes, against the model.

pub mod check;
pub mod codecs;
mod kernel_recovery;
pub mod operations;
pub mod replay;
pub(crate) mod reseal;
pub mod volume;

/// A target: its name, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: [Target; 5] = [
    ("check", check::run),
    ("codecs", codecs::run),
    ("replay", replay::run),
    ("volume", volume::run),
    ("operations", operations::run),
];
