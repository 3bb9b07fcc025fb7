//! Test tools of xact: a simulated device, a crash explorer, and a model file system with the
//! promises of docs/CRASH.md.
//!
//! - [`image`], [`recording`], [`device`]: a device that records writes and flushes, and the
//!   devices that a crash at any point may leave.
//! - [`crash`], [`explorer`]: the choice of these devices, and their checks; findings with a line
//!   that replays them.
//! - [`ace`]: every short sequence of operations.
//! - [`resume`]: the finished parts of an exploration.
//! - [`blocks`]: workloads on the journal engine alone.
//! - [`canaries`]: rules left out, which the explorer must notice.
//! - [`files`], [`workloads`]: workloads on whole volumes.
//! - [`damage`]: a volume with one of everything, and the calls of programs on it when it is
//!   damaged.
//! - [`fields`]: every field of every structure changed, and `xact check` compared with e2fsck.
//! - [`fuzz`]: the bodies of the fuzz targets.
//! - [`stall`]: one stalled thread, while others continue.
//! - [`draining_ops`]: operations that end in a closed generation, beside others in the next one.
//! - [`tools`]: e2fsprogs and the kernel as independent implementations.
//! - [`model`], [`driver`], [`tree`]: operations by path, their meaning, and the legal results.
pub mod ace;
pub mod blocks;
pub mod canaries;
pub mod crash;
pub mod damage;
pub mod device;
pub mod draining_ops;
pub mod driver;
pub mod explorer;
pub mod fields;
pub mod files;
pub mod fuzz;
pub mod generations;
pub mod image;
pub mod model;
pub mod recording;
pub mod resume;
pub mod rng;
pub mod stall;
pub mod tools;
pub mod tree;
pub mod workloads;
