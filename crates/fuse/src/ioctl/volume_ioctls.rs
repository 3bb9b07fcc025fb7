//! ioctls on the volume as a whole, on any file of the mount: fstrim, the label, shutting down.
//!
//! The kernel's VFS does not pass on some others: it refuses `FIEMAP`, `FIFREEZE`, `FICLONE` and
//! `FS_IOC_GETFSUUID` on every FUSE mount.

use xact::Shutdown;
use xact_types::{Errno, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ioctl::answer::put;
use crate::protocol::abi::{InHeader, IoctlIn, IoctlOut};
use crate::protocol::node::Node;
use crate::protocol::reply::Reply;
use crate::server::Server;

const FITRIM: u32 = 0xc018_5879;
const GETFSLABEL: u32 = 0x8100_9431;
const SETFSLABEL: u32 = 0x4100_9432;
const SHUTDOWN: u32 = 0x8004_587d;
/// `FS_IOC_SETVERSION` and ext4's own number for it.
const SETVERSION: [u32; 2] = [0x4008_7602, 0x4008_6604];

/// Bytes of a label's buffer (`FSLABEL_MAX`).
const LABEL_BUFFER: usize = 256;

/// `struct fstrim_range`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TrimRange {
    start: u64,
    len: u64,
    minlen: u64,
}

impl Server {
    /// Answers an ioctl on the volume; false for any other ioctl.
    pub(crate) fn volume_ioctl(
        &self,
        header: &InHeader,
        node: Node,
        args: &IoctlIn,
        input: &[u8],
        reply: &mut Reply,
    ) -> Result<bool> {
        if !matches!(node, Node::Live(_) | Node::View(..)) {
            return Ok(false);
        }
        match args.cmd {
            GETFSLABEL => {
                let mut buffer = self.volume.label()?;
                buffer.resize(LABEL_BUFFER, 0);
                reply.put(&IoctlOut::default());
                reply.put_bytes(&buffer);
            }
            SETFSLABEL => {
                privileged(header)?;
                // It would take effect at once, and stay if the transaction fails.
                if !matches!(node, Node::Live(_)) {
                    return Err(Errno::EPERM.into());
                }
                let end = input.iter().position(|&byte| byte == 0).ok_or(Errno::EINVAL)?;
                self.volume.set_label(&input[..end])?;
                put(reply, &());
            }
            FITRIM => {
                privileged(header)?;
                let (mut range, _) = TrimRange::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
                let end = range.start.saturating_add(range.len);
                range.len = self.volume.trim(range.start..end, range.minlen)?;
                put(reply, &range);
            }
            SHUTDOWN => {
                privileged(header)?;
                // A process in a transaction's view must not shut down the volume for all others.
                if !matches!(node, Node::Live(_)) {
                    return Err(Errno::EPERM.into());
                }
                let how = match argument(header, args.arg)? {
                    0 => Shutdown::Sync,
                    1 => Shutdown::FlushLog,
                    2 => Shutdown::AtOnce,
                    _ => return Err(Errno::EINVAL.into()),
                };
                self.volume.shut_down(how)?;
                put(reply, &());
            }
            // The checksums of an inode's blocks include the generation. ext4 refuses this for the
            // same reason.
            command if SETVERSION.contains(&command) => return Err(Errno::EOPNOTSUPP.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// `CAP_SYS_ADMIN`, as far as the daemon can see it.
fn privileged(header: &InHeader) -> Result<()> {
    if header.uid == 0 { Ok(()) } else { Err(Errno::EPERM.into()) }
}

/// The word that an ioctl's argument points at. By its number, `FS_IOC_SHUTDOWN` writes the word,
/// so the kernel does not send it. It is read from the memory of the caller, which waits.
fn argument(header: &InHeader, address: u64) -> Result<u32> {
    let mut word = [0_u8; 4];
    let local = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: word.len() };
    // SAFETY: `local` is a buffer of our own; the other side's address is checked by the kernel.
    let read = unsafe { libc::process_vm_readv(header.pid as libc::pid_t, &local, 1, &remote, 1, 0) };
    if read == word.len() as isize { Ok(u32::from_ne_bytes(word)) } else { Err(Errno::EOPNOTSUPP.into()) }
}
