//! Replies to ioctls: a result and the struct that goes back to the caller.

use xact_control::abi::{ERRMSG_MAX, FileMode, Modes, MountInfo, Snapshot, SnapshotDiff, SnapshotPaths};
use xact_types::{Errno, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::protocol::abi::IoctlOut;
use crate::protocol::reply::Reply;
use crate::server::Server;
use crate::transport::channel::{Channel, SendReply, log_refused};

/// Puts the reply of an ioctl that succeeded.
pub fn put<T: IntoBytes + Immutable>(reply: &mut Reply, output: &T) {
    reply.put(&IoctlOut::default());
    reply.put(output);
}

/// The struct of an ioctl that also goes back to the caller on a failure, with the reason.
pub(crate) trait WithReason: FromBytes + IntoBytes + Immutable {
    /// The length of the reason in bytes, and its text.
    fn reason(&mut self) -> (&mut u32, &mut [u8; ERRMSG_MAX]);
}

macro_rules! with_reason {
    ($($name:ty),*) => {$(
        impl WithReason for $name {
            fn reason(&mut self) -> (&mut u32, &mut [u8; ERRMSG_MAX]) {
                (&mut self.errmsg_len, &mut self.errmsg)
            }
        }
    )*};
}
with_reason!(Modes, FileMode, MountInfo, Snapshot, SnapshotPaths, SnapshotDiff);

impl Server {
    /// Applies `action` to the struct of an ioctl and replies with it, also on a failure.
    pub(crate) fn reply_with_reason<T: WithReason>(
        &self,
        input: &[u8],
        reply: &mut Reply,
        action: impl FnOnce(&mut T) -> Result<()>,
    ) -> Result<()> {
        let (mut request, _) = T::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
        let done = action(&mut request);
        let text = done.as_ref().err().map_or_else(String::new, |error| self.sentence(error));
        let (len, errmsg) = request.reason();
        let shown = text.len().min(ERRMSG_MAX);
        errmsg[..shown].copy_from_slice(&text.as_bytes()[..shown]);
        *len = shown as u32;
        let result = done.map_or_else(|error| -error.errno().0, |()| 0);
        reply.put(&IoctlOut { result, ..Default::default() });
        reply.put(&request);
        Ok(())
    }
}

/// Answers an ioctl with its output, also on an error.
pub fn answer<T: IntoBytes + Immutable>(channel: &Channel, unique: u64, errno: Option<Errno>, output: &T) {
    answer_by(Channel::send, channel, unique, errno, output);
}

pub fn answer_by<T: IntoBytes + Immutable>(
    send: SendReply,
    channel: &Channel,
    unique: u64,
    errno: Option<Errno>,
    output: &T,
) {
    let mut reply = Reply::new();
    reply.put(&IoctlOut { result: errno.map_or(0, |e| -e.0), ..Default::default() });
    reply.put(output);
    log_refused(send(channel, reply.finish(unique, Ok(()))));
}
