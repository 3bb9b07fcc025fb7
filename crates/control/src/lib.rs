//! The control interface of a mounted volume: how a program begins, commits and inspects
//! transactions, and reads the statistics of the volume.
//!
//! ```text
//!   abi      structs, numbers and limits of the ioctls, equal to include/xact_ioctl.h
//!            (compared by tests/header.rs)
//!   tx_info  a transaction as its user sees it
//!   client   calls of a program: a control channel, a savepoint, requests by mount point
//! ```
//!
//! Both sides depend on this crate: the daemon (`xact-fuse`), which answers, and its clients
//! (`xact-cli`, `xact-namespace`, `libxact`), which need nothing else of the daemon.

pub mod abi;
pub mod client;
mod tx_info;

pub use tx_info::TxInfo;
