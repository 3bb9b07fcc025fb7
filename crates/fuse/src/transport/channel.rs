//! The device: requests in, replies and notifications out, over descriptors of `/dev/fuse`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::protocol::abi;
use crate::protocol::node::Node;
use crate::transport::single_caller::SingleCaller;

/// The result of reading the device.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A request of this length is in the buffer.
    Request(usize),
    /// No request this time: it was withdrawn, or a signal came.
    Nothing,
    /// The file system is unmounted, or its connection was aborted.
    Closed,
}

/// One descriptor of a FUSE connection. Each worker has its own, with its own queue of requests
/// that wait for their reply, so that workers do not contend for the kernel's lock of it.
pub struct Channel {
    fd: OwnedFd,
    /// How a worker replies.
    caller: Option<Arc<SingleCaller>>,
}

/// How a reply is sent.
pub type SendReply = fn(&Channel, &[u8]) -> io::Result<()>;

/// Logs that the kernel refused a reply, if it did.
pub fn log_refused(result: io::Result<()>) {
    if let Err(e) = result {
        crate::log(format_args!("a reply was refused: {e}"));
    }
}

pub fn open_device() -> io::Result<OwnedFd> {
    let file =
        std::fs::File::options().read(true).write(true).custom_flags(libc::O_CLOEXEC).open("/dev/fuse")?;
    Ok(file.into())
}

impl Channel {
    pub fn new(fd: OwnedFd) -> Channel {
        Channel { fd, caller: None }
    }

    /// Another descriptor of the same connection.
    pub fn clone_queue(&self) -> io::Result<Channel> {
        let fd = open_device()?;
        let mut source = self.fd.as_raw_fd() as u32;
        // SAFETY: the ioctl reads a u32 from a valid address.
        if unsafe { libc::ioctl(fd.as_raw_fd(), abi::DEV_IOC_CLONE as _, &mut source) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Channel { fd, caller: None })
    }

    /// The same descriptor for another thread. If /dev/fuse may not be opened (mounted by
    /// fusermount3 in a sandbox), all threads share one queue.
    pub fn share(&self) -> io::Result<Channel> {
        Ok(Channel { fd: self.fd.try_clone()?, caller: None })
    }

    /// For a worker of a pool, whose replies may let the caller run first.
    pub fn replying_by(self, caller: Arc<SingleCaller>) -> Channel {
        Channel { caller: Some(caller), ..self }
    }

    /// Waits for a request. `buffer` must hold the largest request, or the kernel refuses.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        // SAFETY: the kernel writes at most `buffer.len()` bytes to it.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        match n {
            // A socket is used in place of the device, and its other end is closed.
            0 => return Ok(Received::Closed),
            1.. => return Ok(Received::Request(n as usize)),
            _ => {}
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => Ok(Received::Nothing),
            Some(libc::ENODEV | libc::ECONNABORTED) => Ok(Received::Closed),
            _ => Err(error),
        }
    }

    /// Whether requests wait to be received.
    pub fn has_requests(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel reads and writes one pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLIN != 0 }
    }

    /// Whether a single thread calls, and a single worker serves it.
    pub fn has_single_caller(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| caller.is_on())
    }

    /// Sends a worker's reply to the request that it has just received.
    pub fn reply(&self, reply: &[u8]) -> io::Result<()> {
        if let Some(caller) = &self.caller {
            caller.lower_priority();
        }
        self.send(reply)
    }

    /// Sends a finished reply. If its connection has ended, the reply is dropped.
    pub fn send(&self, reply: &[u8]) -> io::Result<()> {
        self.deliver(reply).map(drop)
    }

    /// Writes to the device; false if no receiver exists any more.
    fn deliver(&self, message: &[u8]) -> io::Result<bool> {
        // SAFETY: the kernel reads `message.len()` bytes from it.
        let n = unsafe { libc::write(self.fd.as_raw_fd(), message.as_ptr().cast(), message.len()) };
        if n >= 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::EPIPE) => Ok(false),
            _ => Err(error),
        }
    }

    /// Makes the kernel write out the dirty pages of an inode's mappings, then forget its pages and
    /// attributes. Waits for the pages' READ and WRITE requests, so a worker may never call it.
    /// Like all of these functions, it returns false if the kernel does not know the node.
    pub fn forget_contents(&self, node: Node) -> io::Result<bool> {
        let body = abi::NotifyInvalInodeOut { ino: node.id(), off: 0, len: 0 };
        self.notify(abi::NOTIFY_INVAL_INODE, body.as_bytes(), &[])
    }

    /// As [`Channel::forget_contents`] for the pages of a range (in bytes), with all attributes.
    pub fn forget_range(&self, node: Node, offset: u64, len: u64) -> io::Result<bool> {
        let body = abi::NotifyInvalInodeOut { ino: node.id(), off: offset as i64, len: len as i64 };
        self.notify(abi::NOTIFY_INVAL_INODE, body.as_bytes(), &[])
    }

    /// Makes the kernel ask again for an inode's attributes. It does not wait.
    pub fn forget_attributes(&self, node: Node) -> io::Result<bool> {
        let body = abi::NotifyInvalInodeOut { ino: node.id(), off: -1, len: 0 };
        self.notify(abi::NOTIFY_INVAL_INODE, body.as_bytes(), &[])
    }

    /// Makes the kernel ask again for a name, whether it exists or not. With `expire` the kernel
    /// keeps everything below the name (open files, mounts, working directories) if the answer is
    /// the same; kernels before 6.2 cannot. Waits for the lock of the directory, so a worker may
    /// never call it.
    pub fn forget_name(&self, dir: Node, name: &[u8], expire: bool) -> io::Result<bool> {
        let flags = if expire { abi::EXPIRE_ONLY } else { 0 };
        let body = abi::NotifyInvalEntryOut { parent: dir.id(), namelen: name.len() as u32, flags };
        self.notify(abi::NOTIFY_INVAL_ENTRY, body.as_bytes(), &[name, b"\0"].concat())
    }

    fn notify(&self, code: i32, body: &[u8], name: &[u8]) -> io::Result<bool> {
        let len = size_of::<abi::OutHeader>() + body.len() + name.len();
        let header = abi::OutHeader { len: len as u32, error: code, unique: 0 };
        match self.deliver(&[header.as_bytes(), body, name].concat()) {
            // The kernel does not know the directory.
            Err(e) if e.raw_os_error() == Some(libc::ENOTDIR) => Ok(false),
            other => other,
        }
    }
}
