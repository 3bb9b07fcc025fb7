//! The FUSE protocol: bytes to values and back, without I/O.

pub mod abi;
pub mod init;
pub mod node;
pub mod reply;
pub mod request;
