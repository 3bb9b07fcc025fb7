//! A reply that waits until the kernel has forgotten what the change makes outdated (see
//! `following`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use parking_lot::Mutex;
use xact_types::Ino;

use crate::protocol::node::ViewNr;
use crate::transport::channel::{Channel, log_refused};

/// An answer that waits.
pub struct HeldReply {
    pub channel: Arc<Channel>,
    pub reply: Vec<u8>,
    /// The written inode and the view that it was written through, if not through the volume's own
    /// node.
    pub written: Option<(Ino, Option<ViewNr>)>,
    pub crosses: bool,
    pub until: Mutex<Instant>,
    pub sent: AtomicBool,
}

impl HeldReply {
    /// Sends it once, from the thread that comes first.
    pub fn send(&self) {
        if !self.sent.swap(true, SeqCst) {
            log_refused(self.channel.send(&self.reply));
        }
    }
}
