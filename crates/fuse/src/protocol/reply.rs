//! Building of replies: one buffer for each worker, header first, sent with one `write`.

use xact_fs::{Attr, VolumeSpace};
use xact_types::{Errno, Timestamp};
use zerocopy::{Immutable, IntoBytes};

use crate::protocol::abi;

const HEADER: usize = size_of::<abi::OutHeader>();

/// A reply under construction: 16 bytes for the header, then the operation's output.
#[derive(Debug, Default)]
pub struct Reply {
    bytes: Vec<u8>,
}

impl Reply {
    pub fn new() -> Reply {
        Reply { bytes: vec![0; HEADER] }
    }

    /// Empties it for the next request; the memory stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(HEADER, 0);
    }

    /// The buffer's capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Number of bytes after the header.
    pub fn len(&self) -> usize {
        self.bytes.len() - HEADER
    }

    pub fn put<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.bytes.extend_from_slice(value.as_bytes());
    }

    pub fn put_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The buffer, for a caller that appends contents. The present bytes must stay.
    pub fn vec(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// An entry of a listing, padded; false, and nothing added, if it exceeds `limit` bytes.
    pub fn put_dirent(
        &mut self,
        limit: usize,
        plus: Option<&abi::EntryOut>,
        dirent: abi::Dirent,
        name: &[u8],
    ) -> bool {
        let entry = plus.map_or(0, |_| size_of::<abi::EntryOut>());
        let len = entry + (size_of::<abi::Dirent>() + name.len()).next_multiple_of(8);
        if self.len() + len > limit {
            return false;
        }
        let end = self.bytes.len() + len;
        if let Some(entry) = plus {
            self.put(entry);
        }
        self.put(&dirent);
        self.put_bytes(name);
        self.bytes.resize(end, 0);
        true
    }

    /// The whole reply to the request `unique`: the collected output, or only an error.
    pub fn finish(&mut self, unique: u64, outcome: Result<(), Errno>) -> &[u8] {
        let error = match outcome {
            Ok(()) => 0,
            Err(errno) => {
                self.bytes.truncate(HEADER);
                // The kernel rejects a reply with an error beyond 511 and fails with EINVAL.
                if (1..512).contains(&errno.0) { -errno.0 } else { -Errno::EIO.0 }
            }
        };
        let header = abi::OutHeader { len: self.bytes.len() as u32, error, unique };
        self.bytes[..HEADER].copy_from_slice(header.as_bytes());
        &self.bytes
    }
}

/// How long the kernel may trust names and attributes, in seconds. Changes that it does not see are
/// invalidated explicitly, so there is no limit.
pub const VALID_SECS: u64 = 1 << 30;

/// An inode's attributes in the protocol's form. `st_ino` is the volume's inode number on the live
/// volume and in every transaction. A snapshot's inodes have other numbers.
pub fn wire_attr(st_ino: u64, attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: st_ino,
        size: attr.size,
        blocks: attr.sectors,
        atime: attr.atime.secs as u64,
        mtime: attr.mtime.secs as u64,
        ctime: attr.ctime.secs as u64,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: u32::from(attr.kind.mode_bits() | attr.perm & 0o7777),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The low 32 bits of `makedev` are what the kernel's new_encode_dev gives.
        rdev: attr.rdev as u32,
        // 0: the kernel's page size.
        blksize: 0,
        flags: 0,
    }
}

/// `lifetime`: how long the kernel may trust the attributes, in seconds.
pub fn attr_out(st_ino: u64, attr: &Attr, lifetime: u64) -> abi::AttrOut {
    abi::AttrOut { attr_valid: lifetime, attr: wire_attr(st_ino, attr), ..Default::default() }
}

pub fn entry_out(nodeid: u64, st_ino: u64, attr: &Attr, lifetime: u64) -> abi::EntryOut {
    abi::EntryOut {
        nodeid,
        generation: u64::from(attr.generation),
        entry_valid: VALID_SECS,
        attr_valid: lifetime,
        attr: wire_attr(st_ino, attr),
        ..Default::default()
    }
}

/// `i_flags` that `statx` shows: (`FS_*_FL`, `STATX_ATTR_*`).
const STATX_ATTRIBUTES: [(u32, u64); 4] = [
    (0x10, libc::STATX_ATTR_IMMUTABLE as u64),
    (0x20, libc::STATX_ATTR_APPEND as u64),
    (0x40, libc::STATX_ATTR_NODUMP as u64),
    (0x800, libc::STATX_ATTR_ENCRYPTED as u64),
];

pub fn statx_out(st_ino: u64, attr: &Attr, lifetime: u64) -> abi::StatxOut {
    let time = |t: Timestamp| abi::SxTime { tv_sec: t.secs, tv_nsec: t.nanos, reserved: 0 };
    let birth = if attr.crtime.is_some() { libc::STATX_BTIME } else { 0 };
    let wire = wire_attr(st_ino, attr);
    let stat = abi::Statx {
        mask: libc::STATX_BASIC_STATS | birth,
        blksize: 4096,
        attributes: STATX_ATTRIBUTES.iter().filter(|(f, _)| attr.flags & f != 0).map(|(_, a)| a).sum(),
        attributes_mask: STATX_ATTRIBUTES.iter().map(|(_, a)| a).sum(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: wire.mode as u16,
        ino: wire.ino,
        size: attr.size,
        blocks: attr.sectors,
        atime: time(attr.atime),
        btime: time(attr.crtime.unwrap_or_default()),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: libc::major(attr.rdev),
        rdev_minor: libc::minor(attr.rdev),
        ..Default::default()
    };
    abi::StatxOut { attr_valid: lifetime, stat, ..Default::default() }
}

pub fn statfs_out(space: &VolumeSpace) -> abi::StatfsOut {
    abi::StatfsOut {
        blocks: space.blocks,
        bfree: space.free_blocks,
        bavail: space.available_blocks,
        files: space.inodes,
        ffree: space.free_inodes,
        bsize: space.block_size,
        namelen: 255,
        frsize: space.block_size,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_drops_the_output_and_stays_in_the_kernels_range() {
        let mut reply = Reply::new();
        reply.put(&abi::WriteOut { size: 3, padding: 0 });
        let bytes = reply.finish(5, Err(Errno::ENOSPC));
        assert_eq!(bytes, abi::OutHeader { len: 16, error: -libc::ENOSPC, unique: 5 }.as_bytes());
        reply.clear();
        let bytes = reply.finish(6, Err(Errno(524)));
        assert_eq!(bytes, abi::OutHeader { len: 16, error: -libc::EIO, unique: 6 }.as_bytes());
    }

    #[test]
    fn entries_are_padded_and_stop_at_the_limit() {
        let mut reply = Reply::new();
        let dirent = abi::Dirent { ino: 12, off: 1, namelen: 3, kind: 8 };
        assert!(reply.put_dirent(40, None, dirent, b"abc"));
        assert_eq!(reply.len(), 32);
        assert!(!reply.put_dirent(40, None, dirent, b"abc"));
        assert!(!reply.put_dirent(32 + 128 + 31, Some(&Default::default()), dirent, b"abc"));
        assert!(reply.put_dirent(32 + 128 + 32, Some(&Default::default()), dirent, b"abc"));
        assert_eq!(reply.len(), 32 + 128 + 32);
    }
}
