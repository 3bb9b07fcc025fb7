//! A request that was set aside, to be answered later.

use std::sync::Arc;

use crate::transport::channel::Channel;

/// A parked request, with the channel for its reply.
pub struct ParkedRequest {
    pub channel: Arc<Channel>,
    pub request: Vec<u8>,
}

impl ParkedRequest {
    pub fn new(channel: &Arc<Channel>, request: &[u8]) -> ParkedRequest {
        ParkedRequest { channel: channel.clone(), request: request.to_vec() }
    }
}
