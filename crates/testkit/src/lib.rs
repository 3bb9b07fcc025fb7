//! What xact is tested with: a simulated device, a crash explorer, and a model file system that
//! knows what was promised (docs/CRASH.md).
//!
//! - [`image`], [`recording`], [`device`]: a device that records writes and flushes, and the devices
//!   that a crash at any point may leave.
//! - [`crash`], [`explorer`]: which of these to try, and how; findings with a line that replays them.
//! - [`ace`]: every short sequence of operations.
//! - [`sittings`]: what of an exploration is done.
//! - [`blocks`]: workloads on the journal engine alone.
//! - [`canaries`]: rules left out, which the explorer must notice.
//! - [`files`], [`workloads`]: workloads on whole volumes.
//! - [`damage`]: a volume with one of everything, and what programs do to it when it is damaged.
//! - [`fuzz`]: what the fuzz targets do with their bytes.
//! - [`gate`]: one thread held back, while others go on.
//! - [`late`]: operations that end in a generation that is closed, beside others in the next one.
//! - [`tools`]: e2fsprogs and the kernel as witnesses.
//! - [`model`], [`session`], [`tree`]: operations by path, what they mean, and what may be left of
//!   them.
pub mod ace;
pub mod blocks;
pub mod canaries;
pub mod crash;
pub mod damage;
pub mod device;
pub mod explorer;
pub mod files;
pub mod fuzz;
pub mod gate;
pub mod generations;
pub mod image;
pub mod late;
pub mod model;
pub mod recording;
pub mod rng;
pub mod session;
pub mod sittings;
pub mod tools;
pub mod tree;
pub mod workloads;
