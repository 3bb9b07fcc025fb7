//! Replies to ioctls: a result and the struct that goes back to the caller.

use xact_types::{Errno, Result};
use zerocopy::{Immutable, IntoBytes};

use crate::protocol::abi::IoctlOut;
use crate::protocol::reply::Reply;
use crate::transport::channel::{Channel, SendReply, log_refused};

/// Puts the reply of an ioctl that succeeded.
pub fn put<T: IntoBytes + Immutable>(reply: &mut Reply, output: &T) {
    reply.put(&IoctlOut::default());
    reply.put(output);
}

/// Puts the reply of an ioctl whose output has the reason for a failure.
pub fn put_result<T: IntoBytes + Immutable>(reply: &mut Reply, done: &Result<()>, answer: &T) {
    let result = done.as_ref().map_or_else(|e| -e.errno().0, |()| 0);
    reply.put(&IoctlOut { result, ..Default::default() });
    reply.put(answer);
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
