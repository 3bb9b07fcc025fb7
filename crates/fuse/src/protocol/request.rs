//! Decoding of requests: the bytes that the kernel hands over, as one typed operation.
//!
//! The bytes come from the kernel, which is trusted; still every length is checked, so that a
//! misread of the protocol shows as an error and not as a wrong operation.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use xact_control::abi as control;
use xact_types::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::protocol::abi::{self, InHeader, opcode};
use crate::protocol::node::Node;

/// The operation of a request. Names are without their NUL.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        nlookup: u64,
    },
    BatchForget {
        items: &'a [u8],
    },
    GetAttr,
    SetAttr(abi::SetattrIn),
    Statx,
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        args: abi::MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        args: abi::MkdirIn,
        name: &'a [u8],
    },
    Tmpfile {
        args: abi::CreateIn,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        new_dir: u64,
        flags: u32,
        old: &'a [u8],
        new: &'a [u8],
    },
    Link {
        old_node: u64,
        name: &'a [u8],
    },
    Read(abi::ReadIn),
    Write {
        args: abi::WriteIn,
        data: &'a [u8],
    },
    Fallocate(abi::FallocateIn),
    Lseek(abi::LseekIn),
    /// `wide`: the reply has 64 bits.
    CopyFileRange {
        args: abi::CopyFileRangeIn,
        wide: bool,
    },
    Fsync {
        data_only: bool,
    },
    SyncFs,
    Statfs,
    ReadDir {
        args: abi::ReadIn,
        plus: bool,
    },
    SetXattr {
        args: abi::SetxattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Ioctl {
        args: abi::IoctlIn,
        input: &'a [u8],
    },
    Init(abi::InitIn),
    Destroy,
    /// Operations that the server leaves to the kernel: OPEN and OPENDIR (so that they cost
    /// nothing), CREATE (MKNOD takes its place, and no RELEASE follows), FLUSH, INTERRUPT
    /// (operations are as uninterruptible as a disk's), locks, POLL, BMAP, ACCESS.
    Refused,
}

impl Operation<'_> {
    /// Whether the operation changes nothing.
    pub fn only_looks(&self) -> bool {
        matches!(
            self,
            Operation::Lookup { .. }
                | Operation::ReadDir { .. }
                | Operation::GetAttr
                | Operation::Statx
                | Operation::ReadLink
                | Operation::GetXattr { .. }
                | Operation::ListXattr { .. }
                | Operation::Read(_)
                | Operation::Lseek(_)
        )
    }
}

/// One request, decoded once.
#[derive(Debug, PartialEq)]
pub struct Request<'a> {
    pub header: InHeader,
    pub operation: Operation<'a>,
    /// The encoded request, which is copied if it is answered later.
    pub bytes: &'a [u8],
}

impl<'a> Request<'a> {
    /// `EIO`: the bytes break the protocol.
    pub fn decode(bytes: &'a [u8]) -> Result<Request<'a>, Errno> {
        let (header, rest) = InHeader::read_from_prefix(bytes).map_err(|_| Errno::EIO)?;
        if header.len as usize != bytes.len() {
            return Err(Errno::EIO);
        }
        // Extensions (supplementary groups, security contexts) follow the arguments.
        let extensions = usize::from(header.total_extlen) * 8;
        let body = rest.len().checked_sub(extensions).map(|n| &rest[..n]).ok_or(Errno::EIO)?;
        let operation = Body { rest: body }.operation(header.opcode)?;
        Ok(Request { header, operation, bytes })
    }

    /// The request's node; `None` if the number is not that of a node.
    pub fn node(&self) -> Option<Node> {
        Node::from_id(self.header.nodeid)
    }

    /// Whether it may have to wait for the lock of a transaction.
    pub fn may_wait_for_transaction(&self) -> bool {
        matches!(self.node(), Some(Node::View(..)))
    }

    /// Whether the operation is likely to wait for the device: because it reads contents, or runs
    /// as long as its caller asked for. FSYNC does not count. Programs that sync often do so alone,
    /// and would pay for a second worker each time; the guard of `worker_pool` notices soon enough.
    /// The begin and the end of a transaction do not count either. A begin waits for nothing, and
    /// an end waits as an FSYNC does, or on a separate thread.
    pub fn device_wait(&self) -> DeviceWait {
        let waits = match &self.operation {
            Operation::Read(args) => {
                return DeviceWait::UnlessCached {
                    node: self.node(),
                    offset: args.offset,
                    len: args.size.into(),
                };
            }
            Operation::SyncFs | Operation::Fallocate(_) | Operation::CopyFileRange { .. } => true,
            Operation::Ioctl { args, .. } => {
                const SHORT: [u32; 4] =
                    [control::IOC_BEGIN, control::IOC_COMMIT, control::IOC_ABORT, control::IOC_WRITE_FILE];
                !SHORT.contains(&args.cmd)
            }
            _ => false,
        };
        if waits { DeviceWait::Yes } else { DeviceWait::No }
    }
}

/// Whether the device is likely to be waited for.
#[derive(Debug, PartialEq, Eq)]
pub enum DeviceWait {
    No,
    Yes,
    /// Yes, unless these contents are in memory.
    UnlessCached {
        node: Option<Node>,
        offset: u64,
        len: u64,
    },
}

/// The part of a request's arguments that is not decoded yet.
struct Body<'a> {
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Errno> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Errno::EIO)?;
        self.rest = rest;
        Ok(value)
    }

    fn name(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.rest.iter().position(|&b| b == 0).ok_or(Errno::EIO)?;
        let name = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(name)
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.rest.split_at_checked(len as usize).ok_or(Errno::EIO)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn operation(&mut self, code: u32) -> Result<Operation<'a>, Errno> {
        use Operation as Op;
        Ok(match code {
            opcode::LOOKUP => Op::Lookup { name: self.name()? },
            opcode::FORGET => Op::Forget { nlookup: self.take::<abi::ForgetIn>()?.nlookup },
            opcode::BATCH_FORGET => {
                let count = self.take::<abi::BatchForgetIn>()?.count;
                let len = count.checked_mul(size_of::<abi::ForgetOne>() as u32).ok_or(Errno::EIO)?;
                Op::BatchForget { items: self.bytes(len)? }
            }
            opcode::GETATTR => Op::GetAttr,
            opcode::SETATTR => Op::SetAttr(self.take()?),
            opcode::STATX => {
                self.take::<abi::StatxIn>()?;
                Op::Statx
            }
            opcode::READLINK => Op::ReadLink,
            opcode::SYMLINK => Op::Symlink { name: self.name()?, target: self.name()? },
            opcode::MKNOD => Op::Mknod { args: self.take()?, name: self.name()? },
            opcode::MKDIR => Op::Mkdir { args: self.take()?, name: self.name()? },
            opcode::TMPFILE => Op::Tmpfile { args: self.take()? },
            opcode::UNLINK => Op::Unlink { name: self.name()? },
            opcode::RMDIR => Op::Rmdir { name: self.name()? },
            opcode::RENAME => {
                let new_dir = self.take::<abi::RenameIn>()?.newdir;
                Op::Rename { new_dir, flags: 0, old: self.name()?, new: self.name()? }
            }
            opcode::RENAME2 => {
                let args: abi::Rename2In = self.take()?;
                Op::Rename { new_dir: args.newdir, flags: args.flags, old: self.name()?, new: self.name()? }
            }
            opcode::LINK => Op::Link { old_node: self.take::<abi::LinkIn>()?.oldnodeid, name: self.name()? },
            opcode::READ => Op::Read(self.take()?),
            opcode::WRITE => {
                let args: abi::WriteIn = self.take()?;
                Op::Write { args, data: self.bytes(args.size)? }
            }
            opcode::FALLOCATE => Op::Fallocate(self.take()?),
            opcode::LSEEK => Op::Lseek(self.take()?),
            opcode::COPY_FILE_RANGE => Op::CopyFileRange { args: self.take()?, wide: false },
            opcode::COPY_FILE_RANGE_64 => Op::CopyFileRange { args: self.take()?, wide: true },
            opcode::FSYNC | opcode::FSYNCDIR => {
                let flags = self.take::<abi::FsyncIn>()?.fsync_flags;
                Op::Fsync { data_only: flags & abi::FSYNC_FDATASYNC != 0 }
            }
            opcode::SYNCFS => Op::SyncFs,
            opcode::STATFS => Op::Statfs,
            opcode::READDIR => Op::ReadDir { args: self.take()?, plus: false },
            opcode::READDIRPLUS => Op::ReadDir { args: self.take()?, plus: true },
            opcode::SETXATTR => {
                let args: abi::SetxattrIn = self.take()?;
                Op::SetXattr { args, name: self.name()?, value: self.bytes(args.size)? }
            }
            opcode::GETXATTR => {
                let size = self.take::<abi::GetxattrIn>()?.size;
                Op::GetXattr { name: self.name()?, size }
            }
            opcode::LISTXATTR => Op::ListXattr { size: self.take::<abi::GetxattrIn>()?.size },
            opcode::REMOVEXATTR => Op::RemoveXattr { name: self.name()? },
            opcode::IOCTL => {
                let args: abi::IoctlIn = self.take()?;
                Op::Ioctl { args, input: self.bytes(args.in_size)? }
            }
            opcode::INIT => Op::Init(self.init()?),
            opcode::DESTROY => Op::Destroy,
            _ => Op::Refused,
        })
    }

    /// Kernels before 7.36 send the first 16 bytes only.
    fn init(&mut self) -> Result<abi::InitIn, Errno> {
        let mut bytes = [0; size_of::<abi::InitIn>()];
        let len = self.rest.len().min(bytes.len());
        if len < 16 {
            return Err(Errno::EIO);
        }
        bytes[..len].copy_from_slice(&self.rest[..len]);
        abi::InitIn::read_from_bytes(&bytes).map_err(|_| Errno::EIO)
    }
}

/// The fuzz target `messages`: decodes these bytes as a request, with any length that it claims,
/// and formats it.
pub fn fuzz(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if bytes.len() < size_of::<InHeader>() {
        assert_eq!(Request::decode(&bytes), Err(Errno::EIO));
        return;
    }
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    if let Ok(request) = Request::decode(&bytes) {
        let _ = (request.device_wait(), request.may_wait_for_transaction(), request.to_string());
    }
}

/// For the log: operation and node, readable names, no contents.
impl fmt::Display for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.operation {
            Operation::Lookup { name } => write!(f, "LOOKUP {:?}", OsStr::from_bytes(name))?,
            Operation::Write { args, .. } => write!(f, "WRITE of {} bytes at {}", args.size, args.offset)?,
            Operation::Read(args) => write!(f, "READ of {} bytes at {}", args.size, args.offset)?,
            _ => write!(f, "operation {}", self.header.opcode)?,
        }
        write!(f, " on node {:#x}", self.header.nodeid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn request(opcode: u32, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader { len, opcode, unique: 7, nodeid: 1, ..Default::default() };
        [header.as_bytes(), &body].concat()
    }

    #[test]
    fn names_and_contents_end_where_the_protocol_says() {
        let args = abi::SetxattrIn { size: 3, flags: 1, ..Default::default() };
        let bytes = request(opcode::SETXATTR, &[args.as_bytes(), b"user.x\0", b"a\0b"]);
        let Request { header, operation, .. } = Request::decode(&bytes).unwrap();
        assert_eq!(header.unique, 7);
        assert_eq!(operation, Operation::SetXattr { args, name: b"user.x", value: b"a\0b" });

        let args = abi::Rename2In { newdir: 9, flags: 2, padding: 0 };
        let bytes = request(opcode::RENAME2, &[args.as_bytes(), b"from\0to\0"]);
        let operation = Request::decode(&bytes).unwrap().operation;
        assert_eq!(operation, Operation::Rename { new_dir: 9, flags: 2, old: b"from", new: b"to" });
    }

    #[test]
    fn requests_that_wait_are_told_apart_from_those_that_do_not() {
        let waits = |opcode, body: &[u8]| Request::decode(&request(opcode, &[body])).unwrap().device_wait();
        let ioctl = |cmd| {
            let args = abi::IoctlIn { cmd, ..Default::default() };
            waits(opcode::IOCTL, args.as_bytes())
        };
        for long in [ioctl(control::IOC_SYNC), ioctl(control::IOC_DIFF), waits(opcode::SYNCFS, &[])] {
            assert_eq!(long, DeviceWait::Yes);
        }
        let short = [control::IOC_BEGIN, control::IOC_COMMIT, control::IOC_ABORT, control::IOC_WRITE_FILE];
        let short = short.map(ioctl);
        assert!(short.iter().all(|waits| *waits == DeviceWait::No));
        let fsync = abi::FsyncIn::default();
        for other in [waits(opcode::FSYNC, fsync.as_bytes()), waits(opcode::GETATTR, &[])] {
            assert_eq!(other, DeviceWait::No);
        }
        for short in [request(opcode::IOCTL, &[]), request(opcode::READ, &[]), Vec::new()] {
            assert_eq!(Request::decode(&short), Err(Errno::EIO));
        }
        let args = abi::ReadIn { offset: 8192, size: 4096, ..Default::default() };
        let node = Node::from_id(1);
        let reads = DeviceWait::UnlessCached { node, offset: 8192, len: 4096 };
        assert_eq!(waits(opcode::READ, args.as_bytes()), reads);
    }

    #[test]
    fn extensions_after_the_arguments_are_left_out() {
        let args = abi::MkdirIn { mode: 0o755, umask: 0o22 };
        let mut bytes = request(opcode::MKDIR, &[args.as_bytes(), b"d\0", &[0xff; 16]]);
        bytes[36..38].copy_from_slice(&2_u16.to_ne_bytes());
        let operation = Request::decode(&bytes).unwrap().operation;
        assert_eq!(operation, Operation::Mkdir { args, name: b"d" });
    }

    #[test]
    fn short_requests_are_refused() {
        let args = abi::WriteIn { size: 10, ..Default::default() };
        assert_eq!(Request::decode(&request(opcode::WRITE, &[args.as_bytes(), b"short"])), Err(Errno::EIO));
        assert_eq!(Request::decode(&request(opcode::LOOKUP, &[b"no end"])), Err(Errno::EIO));
        let args = abi::BatchForgetIn { count: u32::MAX, dummy: 0 };
        assert_eq!(Request::decode(&request(opcode::BATCH_FORGET, &[args.as_bytes()])), Err(Errno::EIO));
        let mut bytes = request(opcode::LOOKUP, &[b"x\0"]);
        bytes.push(0);
        assert_eq!(Request::decode(&bytes), Err(Errno::EIO));
        for len in 0..bytes.len() - 1 {
            assert_eq!(Request::decode(&bytes[..len]), Err(Errno::EIO));
        }
    }

    /// Decodes every operation with arbitrary bytes behind it. `make fuzz TARGET=messages`
    /// continues from here.
    #[test]
    fn any_bytes_are_decoded_or_refused() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u32
        };
        for opcode in 0..60 {
            for _ in 0..200 {
                let len = random() as usize % 120;
                let body: Vec<u8> =
                    (0..len).map(|_| if random() % 4 == 0 { 0 } else { random() as u8 }).collect();
                fuzz(&request(opcode, &[&body]));
            }
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/messages");
        for entry in std::fs::read_dir(folder).expect("a corpus") {
            fuzz(&std::fs::read(entry.expect("a corpus").path()).expect("an input"));
        }
    }

    #[test]
    fn init_of_an_old_kernel_is_padded() {
        let mut body = abi::InitIn { major: 7, minor: 31, ..Default::default() }.as_bytes().to_vec();
        body.truncate(16);
        let bytes = request(opcode::INIT, &[&body]);
        let Operation::Init(args) = Request::decode(&bytes).unwrap().operation else { panic!("not INIT") };
        assert_eq!((args.minor, args.flags2), (31, 0));
    }
}
