//! A transaction as its user sees it, in the daemon and in its clients.

use std::time::Duration;

use crate::abi::TxStatus;

/// State of a transaction.
#[derive(Debug, Clone)]
pub struct TxInfo {
    pub id: u64,
    pub status: TxStatus,
    pub uid: u32,
    pub label: Vec<u8>,
    /// The time since its begin.
    pub age: Duration,
    /// The time until it is dropped.
    pub left: Option<Duration>,
    /// Whether it survives the end of the mount.
    pub persistent: bool,
}
