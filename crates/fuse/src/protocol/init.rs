//! INIT: what kernel and server agree on when the connection starts.

use xact_types::{Error, Result};

use crate::protocol::abi::{self, init};

/// Largest contents of one READ or WRITE, in bytes.
pub const MAX_IO: usize = 1 << 20;
/// The largest request: a WRITE with its headers, which the kernel counts as a page.
pub const BUFFER: usize = MAX_IO + 4096;

/// The features that the kernel offered and the server accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    pub flags: u64,
}

impl Agreed {
    /// The kernel can drop a name and keep what is below it.
    pub fn can_expire(self) -> bool {
        self.flags & init::HAS_EXPIRE_ONLY != 0
    }
}

/// Without these the server would be unsafe, or could not keep its guarantees.
const NEEDED: [(u64, &str); 3] = [
    (init::EXPLICIT_INVAL_DATA, "explicit invalidation"),
    (init::NO_OPEN_SUPPORT, "open without a message"),
    (init::NO_OPENDIR_SUPPORT, "opendir without a message"),
];

/// Options that are used if the kernel offers them:
/// - large requests, several of one file or folder at a time;
/// - listings that include attributes, when the kernel considers them useful;
/// - the kernel enforces ACLs; the umask is sent to the server, since a folder's default ACL
///   replaces it;
/// - the server drops suid and sgid, which saves a GETXATTR for every write;
/// - cached pages and link targets are dropped on demand only: the server knows when. Targets are
///   not cached where reading one may set its access time;
/// - file handles (`name_to_handle_at`): a node id of the live volume is an inode number.
///
/// Not used: WRITEBACK_CACHE, since other views would not see data that the kernel holds back;
/// ATOMIC_O_TRUNC, since OPEN is never sent; locks, which the kernel keeps by inode; ASYNC_DIO,
/// since the kernel would keep pages that it has read during an asynchronous direct write, with the
/// bytes from before it.
const WANTED: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::NO_OPEN_SUPPORT
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::ABORT_ERROR
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::NO_OPENDIR_SUPPORT
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::HAS_EXPIRE_ONLY
    | init::EXPORT_SUPPORT;

/// Answers INIT. A kernel with another major version first receives ours and asks again.
pub fn negotiate(asked: &abi::InitIn, keeps_access_times: bool) -> Result<(abi::InitOut, Agreed)> {
    if asked.major < abi::KERNEL_VERSION
        || asked.major == abi::KERNEL_VERSION && asked.minor < abi::OLDEST_MINOR_VERSION
    {
        return Err(Error::Usage(format!(
            "this kernel speaks FUSE {}.{}, which is too old: Linux 6.1 or newer is needed",
            asked.major, asked.minor
        )));
    }
    let mut offered = u64::from(asked.flags);
    if offered & init::INIT_EXT != 0 {
        offered |= u64::from(asked.flags2) << 32;
    }
    if let Some((_, name)) = NEEDED.iter().find(|(flag, _)| offered & flag == 0) {
        return Err(Error::Usage(format!("this kernel's FUSE lacks {name}, which xact needs")));
    }
    let unwanted = if keeps_access_times { init::CACHE_SYMLINKS } else { 0 };
    let flags = WANTED & offered & !unwanted;
    let reply = abi::InitOut {
        major: abi::KERNEL_VERSION,
        minor: abi::KERNEL_MINOR_VERSION,
        max_readahead: asked.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: 64,
        congestion_threshold: 48,
        max_write: MAX_IO as u32,
        time_gran: 1,
        max_pages: (MAX_IO / 4096) as u16,
        ..Default::default()
    };
    Ok((reply, Agreed { flags }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_offered_flags_are_taken() {
        let offered = init::EXPLICIT_INVAL_DATA | init::NO_OPEN_SUPPORT | init::NO_OPENDIR_SUPPORT;
        let asked = abi::InitIn {
            major: 7,
            minor: 45,
            flags: offered as u32,
            flags2: u32::MAX,
            ..Default::default()
        };
        // flags2 means nothing without INIT_EXT.
        let (reply, agreed) = negotiate(&asked, false).unwrap();
        assert_eq!((reply.flags, reply.flags2), (offered as u32, 0));
        assert!(!agreed.can_expire());

        let asked = abi::InitIn { flags: u32::MAX, ..asked };
        let (reply, agreed) = negotiate(&asked, false).unwrap();
        assert_eq!(u64::from(reply.flags) | u64::from(reply.flags2) << 32, WANTED);
        assert!(agreed.can_expire());
        // ATOMIC_O_TRUNC, WRITEBACK_CACHE.
        assert_eq!(reply.flags & (1 << 3 | 1 << 16), 0);
        let (reply, _) = negotiate(&asked, true).unwrap();
        assert_eq!(u64::from(reply.flags) & init::CACHE_SYMLINKS, 0);
    }

    #[test]
    fn old_kernels_are_refused_by_name() {
        let asked = abi::InitIn { major: 7, minor: 36, flags: u32::MAX, ..Default::default() };
        assert!(negotiate(&asked, false).unwrap_err().to_string().contains("Linux 6.1"));
        let asked = abi::InitIn { major: 7, minor: 45, flags: 0, ..Default::default() };
        assert!(negotiate(&asked, false).unwrap_err().to_string().contains("lacks"));
    }
}
