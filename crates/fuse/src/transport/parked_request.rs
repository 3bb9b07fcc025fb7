//! A request that was set aside, to be answered later.

use std::sync::Arc;

use crate::transport::channel::Channel;

/// A request that waits, with the channel that its reply goes to.
pub struct ParkedRequest {
    pub channel: Arc<Channel>,
    pub request: Vec<u8>,
}

impl ParkedRequest {
    pub fn new(channel: &Arc<Channel>, request: &[u8]) -> ParkedRequest {
        ParkedRequest { channel: channel.clone(), request: request.to_vec() }
    }
}
