//! A call of a user's process and its reply: as bytes for that process, and as text for people.

use std::fmt;

/// The kind of a call. Each comment lists the meaning of its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum What {
    // By path.
    Stat,
    List,
    /// offset, length
    Read,
    ReadLink,
    /// offset, how (`WRITE_…`)
    Write,
    /// mode
    Create,
    MakeDir,
    /// `other`: the target
    Symlink,
    MakeFifo,
    /// `other`: the new name
    Link,
    Unlink,
    RemoveDir,
    /// `other`: the new name; flags of renameat2
    Rename,
    Chmod,
    /// user, group, each plus 1, 0 for none
    Chown,
    /// size
    Truncate,
    /// `other`: its name; flags of setxattr
    SetXattr,
    GetXattr,
    RemoveXattr,
    ListXattrs,
    /// as in `FS_IOC_SETFLAGS`
    SetFlags,
    GetFlags,
    /// mode of fallocate, offset, length
    Allocate,
    /// `other`: the destination; from offset, to offset, length
    Copy,
    /// `other`: its name; mode
    Unnamed,
    /// 0: now, else the time
    SetTimes,
    /// as in access(2)
    Access,
    /// The paths in `bytes`, NUL between them: which can be looked up, listed and read.
    Probe,
    // By descriptor: `slot` names one that the process has.
    /// flags
    Open,
    OpenChannel,
    Close,
    /// offset
    WriteAt,
    /// command; `bytes`: the argument
    Ioctl,
    /// Maps the first two pages, shared.
    Map,
    /// offset, 1 for no msync after it
    Store,
    Send,
    Receive,
    /// Closes all.
    Reset,
}

pub const WRITE_APPEND: u64 = 1;
pub const WRITE_TRUNCATE: u64 = 2;
pub const WRITE_CREATE: u64 = 4;

/// The errno of a call that its process skipped, since it would be part of an open atomic write.
pub const SKIPPED: i32 = 9999;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub what: What,
    pub path: String,
    pub other: String,
    pub numbers: [u64; 3],
    pub slot: u64,
    pub bytes: Vec<u8>,
}

impl Call {
    pub fn new(what: What, path: &str) -> Call {
        Call {
            what,
            path: path.to_owned(),
            other: String::new(),
            numbers: [0; 3],
            slot: 0,
            bytes: Vec::new(),
        }
    }

    pub fn on(what: What, slot: u64) -> Call {
        Call { slot, ..Call::new(what, "") }
    }

    pub fn other(self, other: &str) -> Call {
        Call { other: other.to_owned(), ..self }
    }

    pub fn number(self, number: u64) -> Call {
        self.numbers([number, 0, 0])
    }

    pub fn numbers(self, numbers: [u64; 3]) -> Call {
        Call { numbers, ..self }
    }

    pub fn slot(self, slot: u64) -> Call {
        Call { slot, ..self }
    }

    pub fn bytes(self, bytes: Vec<u8>) -> Call {
        Call { bytes, ..self }
    }

    /// Whether it changes nothing.
    pub fn looks(&self) -> bool {
        use What::*;
        // A rename to the same name changes nothing.
        if self.what == Rename && self.path == self.other {
            return true;
        }
        matches!(
            self.what,
            Stat | List | Read | ReadLink | GetXattr | ListXattrs | GetFlags | Access | Probe | Open | Close
        )
    }

    /// The paths that it names.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let second = matches!(self.what, What::Link | What::Rename | What::Copy | What::Unnamed);
        let other = second.then_some(self.other.as_str());
        Some(self.path.as_str()).into_iter().chain(other).filter(|path| !path.is_empty())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.what)?;
        if self.slot != 0 {
            write!(f, " #{}", self.slot)?;
        }
        for text in [&self.path, &self.other] {
            if !text.is_empty() {
                write!(f, " {text}")?;
            }
        }
        match self.what {
            What::Chmod | What::Create | What::MakeDir | What::MakeFifo => {
                write!(f, " {:o}", self.numbers[0])?
            }
            What::Ioctl => write!(f, " {:#x}", self.numbers[0])?,
            _ if self.numbers != [0; 3] => write!(f, " {:?}", self.numbers)?,
            _ => {}
        }
        match self.bytes.len() {
            0 => Ok(()),
            1..64 => write!(f, " \"{}\"", self.bytes.escape_ascii()),
            len => write!(f, " \"{}…\" ({len} bytes)", self.bytes[..24].escape_ascii()),
        }
    }
}

/// The result of a call; `bytes` in a form that can be compared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reply {
    pub errno: i32,
    pub bytes: Vec<u8>,
}

impl Reply {
    pub fn is_ok(&self) -> bool {
        self.errno == 0
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno {
            SKIPPED => return write!(f, "not called"),
            0 => write!(f, "ok")?,
            errno => write!(f, "{}", std::io::Error::from_raw_os_error(errno))?,
        }
        match self.bytes.len() {
            0 => Ok(()),
            len => {
                write!(
                    f,
                    " \"{}\"{}",
                    self.bytes[..len.min(60)].escape_ascii(),
                    if len > 60 { "…" } else { "" }
                )
            }
        }
    }
}

/// Lengths and numbers in the form that is sent over a socket.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    pub fn call(&mut self, call: &Call) {
        self.0.push(call.what as u8);
        self.bytes(call.path.as_bytes());
        self.bytes(call.other.as_bytes());
        call.numbers.into_iter().for_each(|n| self.number(n));
        self.number(call.slot);
        self.bytes(&call.bytes);
    }

    pub fn reply(&mut self, reply: &Reply) {
        self.number(reply.errno as u64);
        self.bytes(&reply.bytes);
    }
}

/// Both ends are this program, so all messages are well formed.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    pub fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    pub fn bytes(&mut self) -> &'a [u8] {
        let len = self.number() as usize;
        self.take(len)
    }

    pub fn text(&mut self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }

    pub fn call(&mut self) -> Call {
        let number = self.take(1)[0];
        assert!(number <= What::Reset as u8);
        // SAFETY: the enum has every number from 0 to that of its last variant.
        let what = unsafe { std::mem::transmute::<u8, What>(number) };
        Call {
            what,
            path: self.text(),
            other: self.text(),
            numbers: [self.number(), self.number(), self.number()],
            slot: self.number(),
            bytes: self.bytes().to_vec(),
        }
    }

    pub fn reply(&mut self) -> Reply {
        Reply { errno: self.number() as i32, bytes: self.bytes().to_vec() }
    }
}
