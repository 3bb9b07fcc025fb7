//! The operations of workloads, by path.

use std::fmt;

use xact_fs::RenameHow;

/// An operation, as done and as remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Create {
        path: String,
        perm: u16,
    },
    Mkdir {
        path: String,
        perm: u16,
    },
    Symlink {
        path: String,
        target: String,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        how: RenameHow,
    },
    Chmod {
        path: String,
        perm: u16,
    },
    Chown {
        path: String,
        uid: u32,
        gid: u32,
    },
    SetXattr {
        path: String,
        name: String,
        value: Vec<u8>,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    /// Also grows the file.
    Truncate {
        path: String,
        size: u64,
    },
    /// `len` stamped bytes; `generation` names the write.
    Write {
        path: String,
        offset: u64,
        len: u64,
        generation: u32,
    },
    Punch {
        path: String,
        offset: u64,
        len: u64,
    },
    Reserve {
        path: String,
        offset: u64,
        len: u64,
        keep_size: bool,
    },
    /// The range reads as zeros and keeps its space.
    ZeroRange {
        path: String,
        offset: u64,
        len: u64,
        keep_size: bool,
    },
    /// As `chattr +j` and `-j`: selects the way of the data, without an effect on `stat`.
    Journal {
        path: String,
        on: bool,
    },
    Fsync {
        path: String,
    },
    Fdatasync {
        path: String,
    },
    Sync,
    /// The commit of a transaction with these operations; durable on return, or with later changes.
    Commit {
        ops: Vec<Op>,
        durable: bool,
    },
}

impl Op {
    /// Whether it only asks for durability.
    pub fn is_sync(&self) -> bool {
        matches!(self, Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Sync)
    }

    /// Whether it changes the inside of a file.
    pub fn is_inside(&self) -> bool {
        matches!(
            self,
            Op::Write { .. }
                | Op::Truncate { .. }
                | Op::Punch { .. }
                | Op::Reserve { .. }
                | Op::ZeroRange { .. }
        )
    }

    /// The one path of an operation on a file's inside or attributes.
    pub fn path(&self) -> Option<&str> {
        match self {
            Op::Create { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Symlink { path, .. }
            | Op::Unlink { path }
            | Op::Rmdir { path }
            | Op::Chmod { path, .. }
            | Op::Chown { path, .. }
            | Op::SetXattr { path, .. }
            | Op::RemoveXattr { path, .. }
            | Op::Truncate { path, .. }
            | Op::Write { path, .. }
            | Op::Punch { path, .. }
            | Op::Reserve { path, .. }
            | Op::ZeroRange { path, .. }
            | Op::Journal { path, .. }
            | Op::Fsync { path }
            | Op::Fdatasync { path } => Some(path),
            Op::Link { .. } | Op::Rename { .. } | Op::Sync | Op::Commit { .. } => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Create { path, .. } => write!(f, "create {path}"),
            Op::Mkdir { path, .. } => write!(f, "mkdir {path}"),
            Op::Symlink { path, target } => write!(f, "symlink {target} {path}"),
            Op::Link { from, to } => write!(f, "link {from} {to}"),
            Op::Unlink { path } => write!(f, "unlink {path}"),
            Op::Rmdir { path } => write!(f, "rmdir {path}"),
            Op::Rename { from, to, how } => write!(f, "rename {from} {to} ({how:?})"),
            Op::Chmod { path, perm } => write!(f, "chmod {perm:o} {path}"),
            Op::Chown { path, uid, gid } => write!(f, "chown {uid}:{gid} {path}"),
            Op::SetXattr { path, name, .. } => write!(f, "setxattr {name} {path}"),
            Op::RemoveXattr { path, name } => write!(f, "removexattr {name} {path}"),
            Op::Truncate { path, size } => write!(f, "truncate {path} to {size}"),
            Op::Write { path, offset, len, generation } => {
                write!(f, "write {generation}: {len} bytes at {offset} of {path}")
            }
            Op::Punch { path, offset, len } => write!(f, "punch {offset}+{len} of {path}"),
            Op::Reserve { path, offset, len, .. } => write!(f, "reserve {offset}+{len} of {path}"),
            Op::ZeroRange { path, offset, len, .. } => write!(f, "zero {offset}+{len} of {path}"),
            Op::Journal { path, on } => write!(f, "chattr {}j {path}", if *on { "+" } else { "-" }),
            Op::Fsync { path } => write!(f, "fsync {path}"),
            Op::Fdatasync { path } => write!(f, "fdatasync {path}"),
            Op::Sync => write!(f, "sync"),
            Op::Commit { ops, durable } => {
                write!(f, "{} [", if *durable { "commit" } else { "ordered commit" })?;
                for (n, op) in ops.iter().enumerate() {
                    write!(f, "{}{op}", if n > 0 { "; " } else { "" })?;
                }
                write!(f, "]")
            }
        }
    }
}
