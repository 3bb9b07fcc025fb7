//! A request that was set aside, to be answered later.

use std::sync::Arc;

use crate::transport::channel::Channel;

/// A request that waits, with the channel that its reply goes to.
pub struct ParkedRequest {
    pub channel: Arc<Channel>,
    pub request: Vec<u8>,
}
