//! The process of a user: makes the calls that it receives, with the user's own rights.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use crate::call::{Call, Reader, Reply, SKIPPED, WRITE_APPEND, WRITE_CREATE, WRITE_TRUNCATE, What, Writer};
use crate::tag;
use crate::tree::FLAGS;

/// A user and its groups. The first group is the user's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub groups: &'static [u32],
}

/// The other end: a process that waits for calls.
pub struct Process {
    child: Child,
    calls: UnixStream,
    rights: UnixStream,
}

impl Process {
    pub fn start(user: User) -> Process {
        let (calls, theirs) = UnixStream::pair().unwrap();
        let (rights, their_rights) = UnixStream::pair().unwrap();
        let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["as", &user.uid.to_string(), &groups.join(",")])
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(OwnedFd::from(their_rights)))
            .spawn()
            .unwrap();
        Process { child, calls, rights }
    }

    /// Makes each call on each of the sides. A side is a number, by which descriptors are known,
    /// and a folder.
    pub fn call(&mut self, sides: &[(u64, &str)], calls: &[&Call]) -> Vec<Vec<Reply>> {
        let mut writer = Writer(vec![0; 8]);
        writer.number(sides.len() as u64);
        for (side, root) in sides {
            writer.number(*side);
            writer.bytes(root.as_bytes());
        }
        writer.number(calls.len() as u64);
        calls.iter().for_each(|call| writer.call(call));
        send(&mut self.calls, writer).expect("the process lives");
        let message = receive(&mut self.calls).expect("the process lives").expect("the process lives");
        let mut reader = Reader(&message);
        calls.iter().map(|_| sides.iter().map(|_| reader.reply()).collect()).collect()
    }

    /// Sends it a descriptor, which its next `Receive` takes.
    pub fn give(&self, descriptor: &OwnedFd) {
        pass(&self.rights, descriptor.as_raw_fd()).unwrap();
    }

    /// Takes the descriptor that its last `Send` has sent.
    pub fn take(&self) -> OwnedFd {
        accept(&self.rights).unwrap()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Writes the length into the message's first bytes, and sends it.
fn send(stream: &mut UnixStream, Writer(mut message): Writer) -> io::Result<()> {
    let len = (message.len() - 8) as u64;
    message[..8].copy_from_slice(&len.to_le_bytes());
    stream.write_all(&message)
}

fn receive(stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 8];
    match stream.read_exact(&mut len) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut message = vec![0; u64::from_le_bytes(len) as usize];
    stream.read_exact(&mut message)?;
    Ok(Some(message))
}

/// A message of one byte with a descriptor.
fn message<R>(work: impl FnOnce(&mut libc::msghdr) -> R) -> R {
    let mut byte = [0_u8; 1];
    let mut slice = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // Space for one descriptor, aligned as a cmsghdr.
    let mut control = [0_u64; 3];
    // SAFETY: an all-zero msghdr is a valid one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut slice;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    work(&mut message)
}

fn pass(stream: &UnixStream, descriptor: RawFd) -> io::Result<()> {
    message(|message| {
        // SAFETY: the control buffer holds a header and one descriptor.
        let sent = unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor);
            libc::sendmsg(stream.as_raw_fd(), message, 0)
        };
        check(sent as i32)
    })
}

fn accept(stream: &UnixStream) -> io::Result<OwnedFd> {
    message(|message| {
        // SAFETY: the message points at buffers of the lengths in it, alive during the call. A
        // descriptor follows a header of SCM_RIGHTS, and only this process owns it.
        unsafe {
            check(libc::recvmsg(stream.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) as i32)?;
            let header = libc::CMSG_FIRSTHDR(message);
            if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
                return Err(io::Error::other("no descriptor came"));
            }
            Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
        }
    })
}

/// The program of such a process: the user and its groups are its arguments.
pub fn serve(uid: &str, groups: &str) {
    let uid: u32 = uid.parse().unwrap();
    let groups: Vec<u32> = groups.split(',').map(|group| group.parse().unwrap()).collect();
    // SAFETY: plain calls; the process has one thread.
    unsafe {
        libc::umask(0);
        check(libc::setgroups(groups.len(), groups.as_ptr())).unwrap();
        check(libc::setgid(groups[0])).unwrap();
        check(libc::setuid(uid)).unwrap();
    }
    // SAFETY: both are sockets, and nothing else here owns them.
    let (mut calls, rights) = unsafe { (UnixStream::from_raw_fd(0), UnixStream::from_raw_fd(1)) };
    let mut state = State { rights, slots: HashMap::new(), maps: HashMap::new(), sections: HashSet::new() };
    while let Some(message) = receive(&mut calls).unwrap() {
        let mut reader = Reader(&message);
        let sides: Vec<(u64, String)> =
            (0..reader.number()).map(|_| (reader.number(), reader.text())).collect();
        let mut writer = Writer(vec![0; 8]);
        for _ in 0..reader.number() {
            let call = reader.call();
            let skipped = state.is_in_section(&sides[0].1, &call);
            for (side, root) in &sides {
                let reply = match skipped {
                    true => Reply { errno: SKIPPED, bytes: Vec::new() },
                    false => state.make(root, *side, &call),
                };
                writer.reply(&reply);
            }
        }
        send(&mut calls, writer).unwrap();
    }
}

struct State {
    rights: UnixStream,
    /// Descriptors, by slot and side.
    slots: HashMap<(u64, u64), File>,
    maps: HashMap<(u64, u64), Mapping>,
    /// Files that this process writes to atomically.
    sections: HashSet<Identity>,
}

/// Two pages of a file.
struct Mapping(*mut u8);

const MAPPED: usize = 8192;

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference into it exists.
        unsafe { libc::munmap(self.0.cast(), MAPPED) };
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

/// Device and inode number, and when the inode was created: numbers are used again.
type Identity = (u64, u64, SystemTime);

fn identity(m: &std::fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (m.dev(), m.ino(), m.created().expect("both file systems store it"))
}

impl State {
    /// Whether a call would write to a file in which this process has an atomic write open. It
    /// would be part of the atomic write then.
    fn is_in_section(&self, root: &str, call: &Call) -> bool {
        if self.sections.is_empty() {
            return false;
        }
        let path = match call.what {
            What::Write | What::Allocate | What::Truncate => &call.path,
            What::Copy => &call.other,
            // The calls of an atomic write itself are made on one side only.
            _ => return false,
        };
        std::fs::metadata(format!("{root}/{path}")).is_ok_and(|m| self.sections.contains(&identity(&m)))
    }

    fn make(&mut self, root: &str, side: u64, call: &Call) -> Reply {
        if call.what == What::Ioctl {
            return self.ioctl(side, call);
        }
        match self.try_make(root, side, call) {
            Ok(bytes) => Reply { errno: 0, bytes },
            Err(e) => Reply { errno: e.raw_os_error().unwrap_or(libc::EPROTO), bytes: Vec::new() },
        }
    }

    fn slot(&self, side: u64, call: &Call) -> io::Result<&File> {
        self.slots.get(&(call.slot, side)).ok_or(io::Error::from_raw_os_error(libc::EBADF))
    }

    /// An error also has output, as for the control calls.
    fn ioctl(&mut self, side: u64, call: &Call) -> Reply {
        let file = match self.slot(side, call) {
            Ok(file) => file,
            Err(_) => return Reply { errno: libc::EBADF, bytes: Vec::new() },
        };
        // The largest size that an ioctl's number can encode.
        let mut argument = call.bytes.clone();
        argument.resize(1 << 14, 0);
        let command = call.numbers[0] as u32;
        // SAFETY: no command writes more than the size in its number, and the buffer has the
        // largest.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), command as _, argument.as_mut_ptr()) };
        let errno = if done < 0 { io::Error::last_os_error().raw_os_error().unwrap() } else { 0 };
        if errno == 0 && matches!(command, crate::START | crate::COMMIT_ATOMIC | crate::ABORT_ATOMIC) {
            let identity = identity(&file.metadata().expect("it is open"));
            match command {
                crate::START => _ = self.sections.insert(identity),
                _ => _ = self.sections.remove(&identity),
            }
        }
        argument.truncate((command >> 16 & 0x3fff) as usize);
        Reply { errno, bytes: argument }
    }

    fn try_make(&mut self, root: &str, side: u64, call: &Call) -> io::Result<Vec<u8>> {
        let path = format!("{root}/{}", call.path);
        let other = format!("{root}/{}", call.other);
        let at = c(&path);
        let [first, second, third] = call.numbers;
        let done = |()| Vec::new();
        match call.what {
            What::Stat => std::fs::symlink_metadata(&path).map(|m| stat_text(&m)),
            What::List => {
                let names: io::Result<BTreeSet<Vec<u8>>> = std::fs::read_dir(&path)?
                    .map(|entry| entry.map(|entry| entry.file_name().as_bytes().to_vec()))
                    .collect();
                Ok(names?.into_iter().collect::<Vec<_>>().join(&b'\0'))
            }
            What::Read => {
                let file = open(&path, libc::O_RDONLY)?;
                read_at(&file, first, second as usize)
            }
            What::ReadLink => std::fs::read_link(&path).map(|target| target.as_os_str().as_bytes().to_vec()),
            What::Write => {
                let mut flags = libc::O_WRONLY;
                for (bit, flag) in [
                    (WRITE_APPEND, libc::O_APPEND),
                    (WRITE_TRUNCATE, libc::O_TRUNC),
                    (WRITE_CREATE, libc::O_CREAT),
                ] {
                    flags |= if second & bit != 0 { flag } else { 0 };
                }
                write_at(&open(&path, flags)?, first, &call.bytes)
            }
            What::Create => {
                let flags = libc::O_CREAT | libc::O_EXCL;
                let mode = first as u32;
                File::options().write(true).custom_flags(flags | libc::O_NONBLOCK).mode(mode).open(&path)?;
                Ok(Vec::new())
            }
            // SAFETY: C strings, here and below.
            What::MakeDir => check(unsafe { libc::mkdir(at.as_ptr(), first as u32) }).map(done),
            What::Symlink => std::os::unix::fs::symlink(&call.other, &path).map(done),
            What::MakeFifo => {
                check(unsafe { libc::mknod(at.as_ptr(), libc::S_IFIFO | first as u32, 0) }).map(done)
            }
            What::Link => std::fs::hard_link(&path, &other).map(done),
            What::Unlink => std::fs::remove_file(&path).map(done),
            What::RemoveDir => std::fs::remove_dir(&path).map(done),
            What::Rename => {
                let to = c(&other);
                let cwd = libc::AT_FDCWD;
                // SAFETY: C strings.
                check(unsafe { libc::renameat2(cwd, at.as_ptr(), cwd, to.as_ptr(), first as u32) }).map(done)
            }
            // SAFETY: C strings, here and below.
            What::Chmod => check(unsafe { libc::chmod(at.as_ptr(), first as u32) }).map(done),
            What::Chown => {
                let id = |plus_one: u64| (plus_one as u32).wrapping_sub(1);
                check(unsafe { libc::lchown(at.as_ptr(), id(first), id(second)) }).map(done)
            }
            What::Truncate => check(unsafe { libc::truncate(at.as_ptr(), first as i64) }).map(done),
            What::SetXattr => {
                let (name, value) = (c(&call.other), &call.bytes);
                // SAFETY: C strings, and the number of bytes given.
                check(unsafe {
                    let (name, bytes) = (name.as_ptr(), value.as_ptr().cast());
                    libc::lsetxattr(at.as_ptr(), name, bytes, value.len(), first as i32)
                })
                .map(done)
            }
            What::GetXattr => get_xattr(&at, &c(&call.other)),
            What::RemoveXattr => {
                // SAFETY: C strings.
                check(unsafe { libc::lremovexattr(at.as_ptr(), c(&call.other).as_ptr()) }).map(done)
            }
            What::ListXattrs => {
                let mut list = vec![0_u8; 4096];
                // SAFETY: a C string, and a buffer of the given size.
                let len = unsafe { libc::llistxattr(at.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
                check(len as i32)?;
                list.truncate(len as usize);
                let mut names: Vec<_> = list.split(|&b| b == 0).filter(|name| !name.is_empty()).collect();
                names.sort();
                Ok(names.join(&b'\0'))
            }
            What::SetFlags => {
                let file = open(&path, libc::O_RDONLY)?;
                // As in chattr, which keeps flags that users cannot set.
                let flags = libc::c_long::from((flags_of(&file)? & !FLAGS) as i32) | first as libc::c_long;
                // SAFETY: the ioctl reads a number.
                check(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &flags) }).map(done)
            }
            What::GetFlags => flags_of(&open(&path, libc::O_RDONLY)?).map(|f| f.to_le_bytes().to_vec()),
            What::Allocate => {
                // Space of an append-only file may be allocated through a descriptor that appends.
                let file = open(&path, libc::O_WRONLY | libc::O_APPEND)?;
                let (mode, offset, len) = (first as i32, second as i64, third as i64);
                // SAFETY: a descriptor and numbers.
                check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) }).map(done)
            }
            What::Copy => {
                let (from, to) = (open(&path, libc::O_RDONLY)?, open(&other, libc::O_WRONLY)?);
                let (mut first, mut second) = (first as i64, second as i64);
                // SAFETY: descriptors, and offsets that live as long as the call.
                let copied = unsafe {
                    let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
                    libc::copy_file_range(from, &mut first, to, &mut second, third as usize, 0)
                };
                check(copied as i32).map(|()| copied.to_string().into_bytes())
            }
            What::Unnamed => {
                let flags = libc::O_TMPFILE;
                let file = File::options().write(true).custom_flags(flags).mode(first as u32).open(&path)?;
                file.write_all_at(&call.bytes, 0)?;
                let from = c(&format!("/proc/self/fd/{}", file.as_raw_fd()));
                let (to, cwd) = (c(&other), libc::AT_FDCWD);
                // SAFETY: C strings.
                check(unsafe { libc::linkat(cwd, from.as_ptr(), cwd, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) })
                    .map(done)
            }
            What::SetTimes => {
                let time = libc::timespec { tv_sec: first as i64, tv_nsec: 0 };
                let times = [time, time];
                let times = if first == 0 { std::ptr::null() } else { times.as_ptr() };
                // SAFETY: a C string, and null or two times.
                check(unsafe { libc::utimensat(libc::AT_FDCWD, at.as_ptr(), times, 0) }).map(done)
            }
            What::Access => check(unsafe { libc::access(at.as_ptr(), first as i32) }).map(done),
            What::Probe => Ok(probe(root, &call.bytes)),
            What::Open => {
                let file = open(&path, first as i32)?;
                self.slots.insert((call.slot, side), file);
                Ok(Vec::new())
            }
            What::OpenChannel => {
                let file = File::options()
                    .read(true)
                    .write(true)
                    .mode(0o600)
                    .custom_flags(libc::O_TMPFILE)
                    .open(path)?;
                self.slots.insert((call.slot, side), file);
                Ok(Vec::new())
            }
            What::Close => {
                self.maps.remove(&(call.slot, side));
                self.slots.remove(&(call.slot, side));
                Ok(Vec::new())
            }
            What::WriteAt => write_at(self.slot(side, call)?, first, &call.bytes),
            What::Map => {
                let file = self.slot(side, call)?;
                if file.metadata()?.len() < MAPPED as u64 {
                    return Err(io::Error::from_raw_os_error(libc::EINVAL));
                }
                let prot = libc::PROT_READ | libc::PROT_WRITE;
                let (shared, fd) = (libc::MAP_SHARED, file.as_raw_fd());
                // SAFETY: a new mapping, at an address that the kernel chooses.
                let mapped = unsafe { libc::mmap(std::ptr::null_mut(), MAPPED, prot, shared, fd, 0) };
                if mapped == libc::MAP_FAILED {
                    return Err(io::Error::last_os_error());
                }
                self.maps.insert((call.slot, side), Mapping(mapped.cast()));
                Ok(Vec::new())
            }
            What::Store => {
                let mapping = self.maps.get(&(call.slot, side)).ok_or(io::ErrorKind::NotFound)?;
                // A page beyond the end would kill the process, and so would one of an immutable
                // file on the kernel's ext4.
                let file = self.slot(side, call)?;
                let immutable = flags_of(file)? & crate::generator::IMMUTABLE as u32 != 0;
                if immutable || file.metadata()?.len() < MAPPED as u64 {
                    return Err(io::Error::from_raw_os_error(libc::EFAULT));
                }
                let offset = first as usize;
                assert!(offset + call.bytes.len() <= MAPPED);
                // SAFETY: within the mapping, which the file covers; others may change the bytes at
                // any time.
                let synced = unsafe {
                    mapping.0.add(offset).copy_from(call.bytes.as_ptr(), call.bytes.len());
                    if second == 1 { 0 } else { libc::msync(mapping.0.cast(), MAPPED, libc::MS_SYNC) }
                };
                check(synced).map(done)
            }
            What::Send => pass(&self.rights, self.slot(side, call)?.as_raw_fd()).map(done),
            What::Receive => {
                let file = File::from(accept(&self.rights)?);
                self.slots.insert((call.slot, side), file);
                Ok(Vec::new())
            }
            What::Reset => {
                self.maps.clear();
                self.slots.clear();
                Ok(Vec::new())
            }
            What::Ioctl => unreachable!("made above"),
        }
    }
}

/// Never waits for the other end of a FIFO.
fn open(path: &str, flags: i32) -> io::Result<File> {
    let (path, flags) = (c(path), flags | libc::O_NONBLOCK | libc::O_CLOEXEC);
    // SAFETY: a C string; the descriptor is ours.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o644) };
    check(fd)?;
    // SAFETY: it was opened just now.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn read_at(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let got = file.read_at(&mut bytes, offset)?;
    bytes.truncate(got);
    Ok(bytes)
}

fn write_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<Vec<u8>> {
    file.write_at(bytes, offset).map(|written| written.to_string().into_bytes())
}

pub fn get_xattr(at: &CString, name: &CString) -> io::Result<Vec<u8>> {
    let mut value = vec![0_u8; 4096];
    // SAFETY: C strings, and a buffer of the given size.
    let len = unsafe { libc::lgetxattr(at.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    check(len as i32)?;
    value.truncate(len as usize);
    Ok(value)
}

pub fn flags_of(file: &File) -> io::Result<u32> {
    let mut flags: libc::c_long = 0;
    // SAFETY: the ioctl writes a number.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &mut flags) })?;
    Ok(flags as u32)
}

/// The fields of stat that both file systems agree on: not a folder's size and links, nor times.
fn stat_text(m: &std::fs::Metadata) -> Vec<u8> {
    use std::os::unix::fs::MetadataExt;
    let (links, size) = if m.is_dir() { (0, 0) } else { (m.nlink(), m.len()) };
    format!("{:o} {}:{} {links} {size}", mode_of(m), m.uid(), m.gid()).into_bytes()
}

/// Type and permissions. Without the right to execute for the group, a file's setgid bit means
/// nothing. The kernel drops it when a process writes that is not in the group; a FUSE server does
/// not know the writer's groups.
pub fn mode_of(m: &std::fs::Metadata) -> u32 {
    use std::os::unix::fs::MetadataExt;
    let means_nothing = m.is_file() && m.mode() & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID;
    if means_nothing { m.mode() & !libc::S_ISGID } else { m.mode() }
}

/// Lines about the paths that this user can reach: `p PATH` if it can be looked up, `l PATH` with
/// the names in a folder, `t TAG` of contents.
fn probe(root: &str, paths: &[u8]) -> Vec<u8> {
    let mut said = Vec::new();
    for name in paths.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        let name = std::str::from_utf8(name).unwrap();
        let path = format!("{root}/{name}");
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        said.extend(format!("p {name}\n").bytes());
        let contents = if meta.is_dir() {
            for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                said.extend(format!("p {name}/{}\n", entry.file_name().to_str().unwrap()).bytes());
            }
            continue;
        } else if meta.is_file() {
            std::fs::read(&path).unwrap_or_default()
        } else if meta.is_symlink() {
            std::fs::read_link(&path).map(|t| t.as_os_str().as_bytes().to_vec()).unwrap_or_default()
        } else {
            continue;
        };
        for tag in tag::all(&contents) {
            said.extend(format!("t {tag}\n").bytes());
        }
    }
    said
}
