//! The fuzz target `control`: two unprivileged users against the server, without a mount. They make
//! only requests that the kernel would let through. Bytes become control ioctls (any command, any
//! input, on any node that the users have opened), plain calls, channels that are closed and a
//! process that dies.
//!
//! These properties must hold: every request is answered within [`TIMEOUT`]; no answer to the two
//! users contains root's secrets; root's files are unchanged in the end; nothing panics in the
//! server; `xact check` finds the volume sound.
//!
//! A test of `xact-fuse` and the target in `fuzz/` include this file.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use xact::mkfs::{MkfsOptions, mkfs};
use xact::{Attr, MemoryDevice, PathExt, SetAttr, Volume, VolumeOptions};
use xact_control::abi as control;
use xact_fuse::protocol::abi::{self, InHeader, OutHeader, fattr, init, opcode};
use xact_fuse::{Connection, serve_socket};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Longest wait for an answer. A transaction that has lost conflicts may delay others for a while.
const TIMEOUT: Duration = Duration::from_secs(20);
const STEPS_MAX: usize = 200;

/// Contents that only root may read, and a name that only root may list.
const SECRET: &[u8] = b"what only root may read";
const SECRET_NAME: &str = "a-name-that-only-root-may-list";

const USERS: [u32; 2] = [1001, 1002];

/// The names of most requests. No request has the secret one, so no answer may.
const NAMES: [&str; 11] =
    ["h1", "h2", "all", "private", "secret", "of-root", "folder", "f", "g", "d", ".xact"];

const COMMANDS: [u32; 30] = [
    control::IOC_VERSION,
    control::IOC_BEGIN,
    control::IOC_COMMIT,
    control::IOC_ABORT,
    control::IOC_STATUS,
    control::IOC_SYNC,
    control::IOC_SELECT,
    control::IOC_DROP,
    control::IOC_KEEP,
    control::IOC_ATTACH,
    control::IOC_INFO,
    control::IOC_DIFF,
    control::IOC_READ,
    control::IOC_SAVEPOINT,
    control::IOC_ROLLBACK,
    control::IOC_RELEASE,
    control::IOC_DIFF_BY_FILE,
    control::IOC_SNAPSHOT,
    control::IOC_SNAPSHOT_PATHS,
    control::IOC_SNAPSHOT_DIFF,
    control::IOC_COUNTERS,
    control::IOC_MODES,
    control::IOC_POOL,
    control::IOC_LATENCIES,
    // The ioctls of F2FS: START, COMMIT, ABORT, GET_FEATURES.
    0xf501,
    0xf502,
    0xf505,
    0x8004_f50c,
    control::IOC_CHANNEL_KEY,
    control::IOC_WRITE_FILE,
];

/// A volume with two homes, a folder for all users, and files of root's in all of them.
fn image() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let device = Arc::new(MemoryDevice::new(8 << 20));
        mkfs(&*device, &MkfsOptions::default()).expect("a volume");
        let volume = Volume::open(device.clone(), &VolumeOptions::default()).expect("opening it");
        let own = |path: &str, uid: u32, perm: u16| {
            let change = SetAttr { uid: Some(uid), gid: Some(uid), perm: Some(perm), ..SetAttr::default() };
            volume.set_attr(path, &change).expect("giving it away");
        };
        for (folder, uid, perm) in
            [("/h1", USERS[0], 0o755), ("/h2", USERS[1], 0o755), ("/all", 0, 0o777), ("/private", 0, 0o700)]
        {
            volume.create_dir_all(folder).expect("a folder");
            let (secret, hidden) = (format!("{folder}/secret"), format!("{folder}/folder"));
            volume.write(&secret, SECRET).expect("a file");
            volume.create_dir_all(&hidden).expect("a folder");
            volume.write(format!("{hidden}/{SECRET_NAME}"), SECRET).expect("a file");
            own(&secret, 0, 0o600);
            own(&hidden, 0, 0o700);
            volume.write(format!("{folder}/f"), [b'f'; 8192]).expect("a file");
            own(&format!("{folder}/f"), if uid == 0 { USERS[0] } else { uid }, 0o644);
            own(folder, uid, perm);
        }
        volume.close().expect("closing it");
        device.to_bytes()
    })
}

/// The bytes that choose. After their end the choices are 0.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn number(&mut self) -> u64 {
        let bytes: [u8; 8] = std::array::from_fn(|_| self.byte());
        u64::from_le_bytes(bytes)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end.max(1)
    }

    fn some(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }
}

/// A node that the kernel knows.
#[derive(Debug, Clone, Copy)]
struct KnownNode {
    lookups: u64,
    mode: u32,
    uid: u32,
    ino: u64,
    /// Whether it is a control channel, which is open from its creation on.
    is_channel: bool,
}

impl KnownNode {
    fn is_dir(self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// Whether the user has the wanted permission. A user has no other group than its own, to which
    /// nothing else belongs.
    fn permits(self, uid: u32, wanted: u32) -> bool {
        let shift = if self.uid == uid { 6 } else { 0 };
        self.mode >> shift & wanted == wanted
    }
}

/// A descriptor. Both users may have it, since it may be passed.
#[derive(Debug, Clone, Copy)]
struct Opened {
    node: u64,
    reads: bool,
    writes: bool,
}

struct Kernel {
    socket: OwnedFd,
    connection: Option<Connection>,
    volume: Arc<Volume>,
    device: Arc<MemoryDevice>,
    known: BTreeMap<u64, KnownNode>,
    opened: Vec<Opened>,
    /// Numbers of transactions.
    ids: Vec<u64>,
    unique: u64,
    mortal: Option<libc::pid_t>,
}

pub fn run(data: &[u8]) {
    let mut choices = Choices(data);
    let mut kernel = Kernel::start();
    let before = kernel.of_root();
    for _ in 0..STEPS_MAX {
        if choices.0.is_empty() {
            break;
        }
        kernel.step(&mut choices);
    }
    kernel.finish(&before);
}

impl Kernel {
    fn start() -> Kernel {
        let device = Arc::new(MemoryDevice::from_bytes(image().to_vec()));
        let options = VolumeOptions {
            commit_interval: Duration::from_secs(86_400),
            flusher: false,
            cache_bytes: 4 << 20,
            ..VolumeOptions::default()
        };
        let volume = Volume::open(device.clone(), &options).expect("opening the volume");
        let mut ends = [0; 2];
        // SAFETY: the call fills both numbers, and no one else has these descriptors.
        let (socket, theirs) = unsafe {
            let made = libc::socketpair(
                libc::AF_UNIX,
                libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
                0,
                ends.as_mut_ptr(),
            );
            assert_eq!(made, 0, "{}", io::Error::last_os_error());
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        let flags = init::EXPLICIT_INVAL_DATA
            | init::NO_OPEN_SUPPORT
            | init::NO_OPENDIR_SUPPORT
            | init::INIT_EXT
            | init::SETXATTR_EXT
            | init::HAS_EXPIRE_ONLY;
        let asked = abi::InitIn {
            major: abi::KERNEL_VERSION,
            minor: abi::KERNEL_MINOR_VERSION,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            ..Default::default()
        };
        let root = KnownNode { lookups: 1, mode: libc::S_IFDIR | 0o755, uid: 0, ino: 2, is_channel: false };
        let mut kernel = Kernel {
            socket,
            connection: None,
            volume: volume.clone(),
            device,
            known: BTreeMap::from([(abi::ROOT_ID, root)]),
            opened: vec![Opened { node: abi::ROOT_ID, reads: true, writes: false }],
            ids: vec![1],
            unique: 0,
            mortal: None,
        };
        // INIT is answered when the server starts, which waits for it.
        kernel.send(0, opcode::INIT, 0, &[asked.as_bytes()]);
        kernel.connection = Some(serve_socket(volume, theirs).expect("starting to serve"));
        kernel.receive(0).expect("INIT succeeds");
        kernel
    }

    /// Root's files.
    fn of_root(&self) -> Vec<Secret> {
        let folders = ["/h1", "/h2", "/all", "/private"];
        let paths =
            folders.map(|folder| [format!("{folder}/secret"), format!("{folder}/folder/{SECRET_NAME}")]);
        let secret = |path: &String| {
            let attr = self.volume.symlink_metadata(path).expect("a file of the image");
            let state = state(&self.volume, &attr).expect("a file of the image");
            // A user with write permission on a folder may delete root's files in it.
            let may_be_deleted = path.ends_with("/secret") && path != "/private/secret";
            Secret { attr, state, may_be_deleted }
        };
        paths.iter().flatten().map(secret).collect()
    }

    fn pid(&mut self, mortal: bool) -> u32 {
        if !mortal {
            return std::process::id();
        }
        let pid = *self.mortal.get_or_insert_with(|| {
            // SAFETY: the child does nothing but wait, and ends with its parent.
            match unsafe { libc::fork() } {
                0 => unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    loop {
                        libc::pause();
                    }
                },
                pid => pid,
            }
        });
        assert!(pid > 0, "{}", io::Error::last_os_error());
        pid as u32
    }

    fn kill(&mut self) {
        if let Some(pid) = self.mortal.take() {
            // SAFETY: it is our child, and no other thread waits for it.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
        }
    }

    fn send(&mut self, by: u32, code: u32, node: u64, body: &[&[u8]]) {
        let (uid, pid) = match by {
            0 => (0, 0),
            by => (by & 0xffff, self.pid(by >> 16 != 0)),
        };
        let body = body.concat();
        self.unique += 2;
        let header = InHeader {
            len: (size_of::<InHeader>() + body.len()) as u32,
            opcode: code,
            unique: self.unique,
            nodeid: node,
            uid,
            gid: uid,
            pid,
            ..Default::default()
        };
        let message = [header.as_bytes(), &body].concat();
        // SAFETY: the kernel reads the number of bytes given.
        let sent = unsafe {
            libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL)
        };
        assert_eq!(sent as usize, message.len(), "{}", io::Error::last_os_error());
    }

    /// The answer to the last request, without notifications; an errno if it failed.
    fn receive(&mut self, by: u32) -> Result<Vec<u8>, i32> {
        let mut buffer = vec![0; 1 << 17];
        loop {
            let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the kernel reads and writes one pollfd, and the number of bytes given.
            let got = unsafe {
                let ready = libc::poll(&mut poll, 1, TIMEOUT.as_millis() as i32);
                assert_eq!(ready, 1, "no answer to request {}", self.unique);
                libc::recv(self.socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0)
            };
            assert!(got > 0, "the server has ended: {}", io::Error::last_os_error());
            let (header, body) =
                OutHeader::read_from_prefix(&buffer[..got as usize]).expect("an answer has a header");
            assert_eq!(header.len as usize, got as usize);
            if header.unique == 0 {
                continue;
            }
            assert_eq!(header.unique, self.unique, "an answer to another request");
            if by != 0 {
                for secret in [SECRET, SECRET_NAME.as_bytes()] {
                    let found = body.windows(secret.len()).any(|window| window == secret);
                    assert!(!found, "user {} was sent {:?}", by & 0xffff, secret.escape_ascii().to_string());
                }
            }
            return if header.error == 0 { Ok(body.to_vec()) } else { Err(-header.error) };
        }
    }

    fn ask(&mut self, by: u32, code: u32, node: u64, body: &[&[u8]]) -> Result<Vec<u8>, i32> {
        self.send(by, code, node, body);
        self.receive(by)
    }

    fn learn(&mut self, entry: &[u8], is_channel: bool) -> u64 {
        let (entry, _) = abi::EntryOut::read_from_prefix(entry).expect("an entry");
        if entry.nodeid == 0 {
            return 0;
        }
        let fresh = KnownNode { lookups: 0, mode: 0, uid: 0, ino: 0, is_channel };
        let known = self.known.entry(entry.nodeid).or_insert(fresh);
        known.lookups += 1;
        (known.mode, known.uid, known.ino) = (entry.attr.mode, entry.attr.uid, entry.attr.ino);
        entry.nodeid
    }

    fn node(&self, choices: &mut Choices<'_>) -> (u64, KnownNode) {
        let (node, known) =
            self.known.iter().nth(choices.below(self.known.len())).expect("the root is known");
        (*node, *known)
    }

    fn name(&self, choices: &mut Choices<'_>) -> Vec<u8> {
        let name = match choices.byte() {
            choice if (choice as usize) < 16 * NAMES.len() => {
                NAMES[choice as usize % NAMES.len()].as_bytes().to_vec()
            }
            250.. => choices.some(9),
            _ => b"tx".to_vec(),
        };
        let mut name: Vec<u8> = name.into_iter().filter(|byte| !matches!(byte, 0 | b'/')).collect();
        // The kernel never sends these to a server.
        if matches!(name.as_slice(), b"" | b"." | b"..") {
            name = b"x".to_vec();
        }
        name.push(0);
        name
    }

    fn lookup(&mut self, by: u32, dir: u64, name: &[u8]) -> Option<u64> {
        let entry = self.ask(by, opcode::LOOKUP, dir, &[name]).ok()?;
        Some(self.learn(&entry, false)).filter(|node| *node != 0)
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let choice = choices.byte();
        // The user, and whether it is the process that may die.
        let who = choices.byte();
        let uid = USERS[usize::from(who & 1)];
        let by = uid | u32::from(who >> 1 & 1) << 16;
        match choice % 16 {
            0 => {
                let Some(hidden) = self.lookup(by, abi::ROOT_ID, b".xact\0") else { return };
                let args = abi::CreateIn { mode: 0o600, ..Default::default() };
                if let Ok(entry) = self.ask(by, opcode::TMPFILE, hidden, &[args.as_bytes()]) {
                    let node = self.learn(&entry, true);
                    self.opened.push(Opened { node, reads: true, writes: true });
                }
            }
            1 | 2 => {
                let (dir, known) = self.node(choices);
                let name = self.name(choices);
                if known.is_dir() && known.permits(uid, 1) {
                    self.lookup(by, dir, &name);
                }
            }
            3 => self.enter_view(by, choices),
            4 => {
                let (node, known) = self.node(choices);
                let (reads, writes) = (known.permits(uid, 4), known.permits(uid, 2) && !known.is_dir());
                if (reads || writes) && self.opened.len() < 64 {
                    self.opened.push(Opened { node, reads, writes });
                }
            }
            5 => {
                // The last descriptor of a channel is closed, or the kernel drops an inode.
                let (node, known) = self.node(choices);
                if node != abi::ROOT_ID {
                    self.known.remove(&node);
                    self.opened.retain(|opened| opened.node != node);
                    let args = abi::ForgetIn { nlookup: known.lookups };
                    self.send(0, opcode::FORGET, node, &[args.as_bytes()]);
                }
            }
            6 => self.kill(),
            7..=11 => self.ioctl(by, choices),
            12 => self.write(by, choices),
            _ => self.change(by, uid, choices),
        }
    }

    /// Enters a transaction's view, as far as its user may.
    fn enter_view(&mut self, by: u32, choices: &mut Choices<'_>) {
        let id = self.ids[choices.below(self.ids.len())];
        let uid = by & 0xffff;
        let mut at = abi::ROOT_ID;
        for name in [".xact", "tx", &id.to_string(), "root", NAMES[choices.below(3)]] {
            let name = format!("{name}\0");
            match self.known.get(&at) {
                Some(known) if known.permits(uid, 1) => {}
                _ => return,
            }
            let Some(next) = self.lookup(by, at, name.as_bytes()) else { return };
            at = next;
        }
        self.opened.push(Opened { node: at, reads: true, writes: false });
    }

    fn ioctl(&mut self, by: u32, choices: &mut Choices<'_>) {
        let opened = self.opened[choices.below(self.opened.len())];
        let command = match choices.byte() {
            255 => choices.number() as u32,
            choice => COMMANDS[usize::from(choice) % COMMANDS.len()],
        };
        let size = (command >> 16 & 0x3fff) as usize;
        let mut input = vec![0; size];
        // The first fields of structs: flags, or the numbers of a transaction and an inode.
        let shape = choices.byte();
        let words = if shape & 1 != 0 {
            let id = self.ids[choices.below(self.ids.len())];
            let (_, known) = self.node(choices);
            let second = if shape & 2 != 0 { known.ino } else { u64::from(choices.byte()) };
            [id, second, u64::from(choices.byte()), u64::from(choices.byte())].as_bytes().to_vec()
        } else if shape & 2 != 0 {
            [u32::from(choices.byte()), u32::from(choices.byte())].as_bytes().to_vec()
        } else {
            let len = choices.below(48);
            choices.some(len)
        };
        if shape & 4 != 0 {
            // A path or a name.
            let name = self.name(choices);
            let at = if command == control::IOC_SELECT { 8 } else { 40 };
            input.iter_mut().skip(at).zip(name).for_each(|(to, from)| *to = from);
        }
        input.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        if command == control::IOC_WRITE_FILE && shape & 8 != 0 {
            // Few flags, and a part with bytes.
            let part = control::WritePart { offset: choices.byte().into(), len: 5, kind: 0 };
            let header = [u32::from(choices.byte()) & 7, 24];
            let fields = [header.as_bytes(), part.as_bytes()].concat();
            input.iter_mut().skip(8).zip(fields).for_each(|(to, from)| *to = from);
        }
        let (reads, writes) = (command >> 31 != 0, command >> 30 & 1 != 0);
        let args = abi::IoctlIn {
            cmd: command,
            in_size: if writes { size as u32 } else { 0 },
            out_size: if reads { size as u32 } else { 0 },
            ..Default::default()
        };
        let input = if writes { input } else { Vec::new() };
        let Ok(answer) = self.ask(by, opcode::IOCTL, opened.node, &[args.as_bytes(), &input]) else { return };
        let Ok((result, output)) = abi::IoctlOut::read_from_prefix(&answer) else { return };
        assert!(output.len() <= (args.out_size as usize).max(size), "more than was asked for");
        if command == control::IOC_CHANNEL_KEY
            && result.result == 0
            && let Ok(key) = control::ChannelKey::read_from_bytes(output)
        {
            self.ids.push(key.key);
        }
        if command == control::IOC_BEGIN
            && result.result == 0
            && let Ok(begin) = control::Begin::read_from_bytes(output)
            && self.ids.len() < 64
        {
            self.ids.push(begin.id);
        }
    }

    fn write(&mut self, by: u32, choices: &mut Choices<'_>) {
        let opened = self.opened[choices.below(self.opened.len())];
        let known = self.known[&opened.node];
        if known.is_dir() || known.is_channel {
            return;
        }
        let offset = u64::from(choices.byte() & 3) * 4096;
        let (bytes, mapped) = (vec![choices.byte(); 4096], choices.byte() & 3 == 0);
        if opened.writes {
            let write_flags = if mapped { abi::WRITE_CACHE } else { 0 };
            let args = abi::WriteIn { offset, size: 4096, write_flags, ..Default::default() };
            let _ = self.ask(by, opcode::WRITE, opened.node, &[args.as_bytes(), &bytes]);
        } else if opened.reads {
            let args = abi::ReadIn { offset, size: 4096, ..Default::default() };
            let _ = self.ask(by, opcode::READ, opened.node, &[args.as_bytes()]);
        }
    }

    /// A call that changes something, if its user may.
    fn change(&mut self, by: u32, uid: u32, choices: &mut Choices<'_>) {
        let (node, known) = self.node(choices);
        let (name, other) = (self.name(choices), self.name(choices));
        let (what, mode) = (choices.byte(), u32::from(choices.byte()) << 1 | 0o600);
        let may = known.is_dir() && known.permits(uid, 3);
        match what % 8 {
            0 if may => {
                let args = abi::MknodIn { mode: libc::S_IFREG | mode & 0o777, ..Default::default() };
                self.make(by, opcode::MKNOD, node, &[args.as_bytes(), &name]);
            }
            1 if may => {
                let args = abi::MkdirIn { mode: mode & 0o777 | 0o100, umask: 0 };
                self.make(by, opcode::MKDIR, node, &[args.as_bytes(), &name]);
            }
            2 if may => {
                let _ = self.ask(by, opcode::UNLINK, node, &[&name]);
            }
            3 if may => {
                let _ = self.ask(by, opcode::RMDIR, node, &[&name]);
            }
            4 | 5 if may => {
                // Within the folder: a move to another one needs permissions for the moved folder.
                let args = abi::Rename2In { newdir: node, flags: u32::from(mode & 4 != 0), padding: 0 };
                let _ = self.ask(by, opcode::RENAME2, node, &[args.as_bytes(), &name, &other]);
            }
            6 if known.uid == uid => {
                let args = abi::SetattrIn { valid: fattr::MODE, mode, ..Default::default() };
                if self.ask(by, opcode::SETATTR, node, &[args.as_bytes()]).is_ok() {
                    let known = self.known.get_mut(&node).expect("it is known");
                    known.mode = known.mode & libc::S_IFMT | mode & 0o7777;
                }
            }
            _ => {
                let _ = self.ask(by, opcode::GETATTR, node, &[abi::StatxIn::new_zeroed().as_bytes()]);
            }
        }
    }

    fn make(&mut self, by: u32, code: u32, dir: u64, body: &[&[u8]]) {
        if let Ok(entry) = self.ask(by, code, dir, body) {
            self.learn(&entry, false);
        }
    }

    fn finish(mut self, before: &[Secret]) {
        self.kill();
        let (volume, device) = (self.volume.clone(), self.device.clone());
        let connection = self.connection.take().expect("it was started");
        // The other end sees that it is closed.
        drop(self.socket);
        connection.wait();
        volume.health().expect("nothing went wrong in the server");
        for secret in before {
            match state(&volume, &secret.attr) {
                Some(now) => assert_eq!(now, secret.state, "a file of root's was changed"),
                None => assert!(secret.may_be_deleted, "deleted: {:?}", secret.state),
            }
        }
        volume.close().expect("closing the volume");
        let report = xact_check::check(device, &mut |_, _| ()).expect("a check");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

/// A file of root's, as it was at first.
struct Secret {
    attr: Attr,
    state: String,
    may_be_deleted: bool,
}

/// Contents and attributes of an inode; `None` if it was deleted, even if its number was used
/// again.
fn state(volume: &Volume, was: &Attr) -> Option<String> {
    let base = volume.base();
    let attr = base.attr(was.ino).ok().filter(|attr| attr.nlink > 0 && attr.generation == was.generation)?;
    let mut bytes = Vec::new();
    base.read(was.ino, 0, 4096, &mut bytes).ok()?;
    Some(format!("{:o} {} {}", attr.perm, attr.uid, bytes.escape_ascii()))
}
