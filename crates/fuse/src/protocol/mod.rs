//! The FUSE protocol: bytes to values and back, without I/O.

pub mod abi;
pub(crate) mod init;
pub(crate) mod node;
pub(crate) mod reply;
pub mod request;
