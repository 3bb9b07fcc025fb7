//! Structs, numbers and limits of the control ioctls. `include/xact_ioctl.h` declares the same for
//! C; `tests/header.rs` compares the two, constant by constant and field by field.

use xact_types::LatencySnapshot;
pub use xact_types::{LATENCY_BUCKETS, SNAPSHOT_NAME_MAX, SNAPSHOT_PATHS_MAX};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Version of this interface.
pub const ABI_VERSION: u32 = 2;

/// Longest path that a commit reports, in bytes.
pub const PATH_MAX: usize = 4096;
/// Longest reason that a request reports, in bytes.
pub const ERRMSG_MAX: usize = 256;

#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Version {
    pub abi: u32,
    pub reserved: u32,
}

/// Flags of [`Begin`]. `SNAPSHOT`: files that were only read are not validated. `OWN_INODES`:
/// `stat` in the view returns inode numbers that no other view has, for programs that hold several
/// views at a time. `EAGER`: a change that another open transaction has made before fails at once.
pub const BEGIN_SNAPSHOT: u32 = 1;
pub const BEGIN_OWN_INODES: u32 = 2;
pub const BEGIN_EAGER: u32 = 4;

/// Flags of [`Commit`]. `ORDERED`: it becomes durable together with later changes. `RETAIN`: if the
/// commit is refused, the transaction stays open. `ONLY`: commits the selected changes and keeps
/// the rest open. `CONSOLIDATE`: as `ORDERED`, for contents that later commits are going to
/// replace. `FOLLOW`: descriptors that were opened in the view refer to the committed files
/// afterwards, and are not stale.
pub const COMMIT_ORDERED: u32 = 1;
pub const COMMIT_RETAIN: u32 = 2;
pub const COMMIT_ONLY: u32 = 4;
pub const COMMIT_CONSOLIDATE: u32 = 8;
pub const COMMIT_FOLLOW: u32 = 16;

#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Begin {
    /// In: `BEGIN_…`.
    pub flags: u32,
    pub reserved: u32,
    /// Out: the transaction's number; its view is `MNT/.xact/tx/ID/root`.
    pub id: u64,
}

/// A commit, or the removal of the selected changes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Commit {
    /// In: `COMMIT_…`.
    pub flags: u32,
    /// Out: one of [`Reason`].
    pub reason: u32,
    /// Out: in a conflict, the transaction that committed first, or (`BEGIN_EAGER`) that has made
    /// the change first and was open; 0 for a call outside of any.
    pub conflicting_tx: u64,
    /// Out: bytes in `path` and in `errmsg`.
    pub path_len: u32,
    pub errmsg_len: u32,
    /// Out: the path of a conflict, from the volume's root; not terminated. After a commit of
    /// selected changes it may be that of a conflict of the other changes, with `Reason::None`.
    pub path: [u8; PATH_MAX],
    /// Out: the reason of the failure, or of that conflict, in English.
    pub errmsg: [u8; ERRMSG_MAX],
}

#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Status {
    /// 1 while the channel has a transaction.
    pub active: u32,
    /// 1 if it can never commit, since one of its changes conflicts with a change by others.
    pub doomed: u32,
    /// Its number, else 0.
    pub id: u64,
}

/// A path to be added to the channel's selection.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Select {
    pub len: u32,
    pub reserved: u32,
    /// From the volume's root; not terminated.
    pub path: [u8; PATH_MAX],
}

/// Statistics of the volume since it was mounted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Counters {
    /// Commits of the engine, blocks in them, and those of the blocks that are file data.
    pub commits: u64,
    pub committed_blocks: u64,
    pub journaled_data_blocks: u64,
    /// Blocks that checkpoints wrote to their place, and blocks that never had to be written there.
    pub checkpoint_writes: u64,
    pub checkpoint_writes_saved: u64,
    /// Blocks of file data written back, to new places and over old contents.
    pub new_blocks: u64,
    pub overwritten_blocks: u64,
    /// Requests to the device.
    pub device_reads: u64,
    pub device_read_bytes: u64,
    pub device_writes: u64,
    pub device_written_bytes: u64,
    pub device_flushes: u64,
    /// Flushes with no write since the previous flush.
    pub device_empty_flushes: u64,
    /// Blocks of file data that reads found in the cache, and blocks that they had to read; bytes
    /// in the cache, and its limit.
    pub data_hits: u64,
    pub data_misses: u64,
    pub data_bytes: u64,
    pub data_limit_bytes: u64,
    /// Metadata blocks that were found in memory, and that had to be read.
    pub metadata_hits: u64,
    pub metadata_misses: u64,
    /// The present use of space by open transactions before their commits: bytes of spilled
    /// contents, and inodes. The limit for one user other than root, in percent of the free space.
    pub tx_held_bytes: u64,
    pub tx_held_inodes: u64,
    pub tx_space_percent: u64,
    /// Transactions whose space was revoked because other calls needed it.
    pub tx_revoked: u64,
    /// Errors that the superblock notes (`s_error_count`).
    pub errors_noted: u64,
}

/// Longest name of the socket of [`Outcome`].
pub const SOCKET_MAX: usize = 64;

/// The place at which the daemon reports how it ended.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Outcome {
    /// Out: bytes in `socket`; 0 if there is none.
    pub len: u32,
    pub reserved: u32,
    /// Out: the name of a Unix socket in the abstract namespace, without the leading zero byte. A
    /// program that connects to it before the volume is unmounted reads the report after that.
    pub socket: [u8; SOCKET_MAX],
}

/// The fill level of the pool of a volume with generations, in bytes; all 0 on other volumes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Pool {
    pub size: u64,
    pub used: u64,
    /// The parts of the used space that only snapshots hold, and that the intent log takes.
    pub snapshots: u64,
    pub log: u64,
    /// Changed metadata that takes space with the next generation.
    pub waiting: u64,
    /// The free space needed to add anything.
    pub needed: u64,
    pub reserved: [u64; 2],
}

/// Users that one call returns.
pub const USERS_MAX: usize = 64;

/// Flag of [`UserUse`]: the limits are not for this user.
pub const USER_UNLIMITED: u32 = 1;

/// The resources that one user holds in the daemon, or may hold (2^64 - 1: no limit).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UserUse {
    pub uid: u32,
    /// `USER_…`.
    pub flags: u32,
    pub channels: u64,
    pub transactions: u64,
    pub persisted: u64,
    pub savepoints: u64,
    /// In bytes.
    pub memory: u64,
    pub descriptors: u64,
    /// Calls that were refused because of a limit, since the mount.
    pub refused: u64,
}

/// The resources that users hold. Root and the user who mounted the volume see all users, others
/// themselves.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Users {
    /// In: the uid from which on users are wanted. Out: the next one.
    pub from: u32,
    /// Out: users in `users`.
    pub len: u32,
    /// Out: whether there are no more.
    pub done: u32,
    pub reserved: u32,
    /// Out: the limits of a user who is neither root nor has mounted it.
    pub limits: UserUse,
    pub users: [UserUse; USERS_MAX],
}

/// Files that one call returns.
pub const FILES_MAX: usize = 256;

/// Blocks of a file's data that were written back since the volume was mounted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FileUse {
    pub ino: u64,
    /// Written to places that held no contents of the file.
    pub new_blocks: u64,
    pub overwritten_blocks: u64,
}

/// Files by their written blocks. `EPERM`: the caller is neither root nor has mounted the volume.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FileUses {
    /// In: the inode number from which on files are wanted. Out: the next one.
    pub from: u64,
    /// Out: files in `files`.
    pub len: u32,
    /// Out: whether there are no more.
    pub done: u32,
    /// Out: deleted files, and those that are not counted separately, together; `ino` is 0.
    pub others: FileUse,
    pub files: [FileUse; FILES_MAX],
}

/// The durations of an event, counted since the volume was mounted.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Times {
    pub sum_ns: u64,
    pub worst_ns: u64,
    /// Buckets as in [`xact_types::Latencies`].
    pub buckets: [u32; LATENCY_BUCKETS],
}

impl From<&LatencySnapshot> for Times {
    fn from(snapshot: &LatencySnapshot) -> Times {
        let LatencySnapshot { buckets, sum_ns, worst_ns } = *snapshot;
        Times { sum_ns, worst_ns, buckets }
    }
}

impl From<&Times> for LatencySnapshot {
    fn from(times: &Times) -> LatencySnapshot {
        let Times { sum_ns, worst_ns, buckets } = *times;
        LatencySnapshot { buckets, sum_ns, worst_ns }
    }
}

/// The durations of syncs of files and of commits.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Latencies {
    pub fsync: Times,
    pub commit: Times,
}

/// Actions of [`Modes`].
pub const MODES_GET: u32 = 1;
pub const MODES_SET: u32 = 2;
/// Returns the modes of the mount's options, in `stored`.
pub const MODES_OPTIONS: u32 = 3;

/// The volume's modes, as numbers in its superblock (0: not set). Only root and the user who
/// mounted the volume may set them.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Modes {
    /// In: the action.
    pub action: u32,
    /// Out: the reason of a failure, in English.
    pub errmsg_len: u32,
    /// In or out: the volume's own modes.
    pub stored: [u8; 8],
    /// Out: the modes that it is mounted with.
    pub effective: [u8; 8],
    pub errmsg: [u8; ERRMSG_MAX],
}

/// Actions of [`FileMode`].
pub const FILE_MODE_GET: u32 = 1;
pub const FILE_MODE_SET: u32 = 2;
/// The file follows the volume again.
pub const FILE_MODE_CLEAR: u32 = 3;

/// Data modes of a file, for [`FileMode`]; 0 for none of its own.
pub const FILE_MODE_NONE: u32 = 1;
pub const FILE_MODE_ORDERED: u32 = 2;
pub const FILE_MODE_DATA: u32 = 3;
pub const FILE_MODE_SELECTIVE: u32 = 4;
pub const FILE_MODE_ADAPTIVE: u32 = 5;

/// The data mode of the file on which the call is made, or of the new files in a folder. Only root
/// and the file's owner may change it. `EINVAL`: the volume cannot have it, as `errmsg` says.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FileMode {
    /// In: the action.
    pub action: u32,
    /// Out: the reason of a failure, in English.
    pub errmsg_len: u32,
    /// In or out: the mode of its own; 0 if it has none.
    pub own: u32,
    /// Out: the mode in which its data is written.
    pub effective: u32,
    pub errmsg: [u8; ERRMSG_MAX],
}

/// Flag of [`Keep`]: the transaction is also saved on the volume, and is open again after the next
/// mount. If that is impossible, `KEEP` fails, and the transaction is kept as without the flag.
pub const KEEP_PERSISTENT: u16 = 1;

/// Longest label of a kept transaction, in bytes.
pub const LABEL_MAX: usize = 256;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Keep {
    /// Seconds until it is dropped; 0 for never.
    pub timeout_s: u32,
    pub label_len: u16,
    /// `KEEP_…`.
    pub flags: u16,
    /// A description for people, such as the command that was run in it.
    pub label: [u8; LABEL_MAX],
}

/// Flag of [`Info`], in: the next open transaction above `id`.
pub const INFO_NEXT: u32 = 1;
/// Flag of [`Info`], out: the transaction survives the end of the mount.
pub const INFO_PERSISTENT: u32 = 2;

/// Status of a transaction, for [`Info`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum TxStatus {
    /// It belongs to an open channel and ends with it.
    Running = 1,
    /// It stays open until it is committed or aborted.
    LeftOpen = 2,
    Committed = 3,
    Aborted = 4,
    /// Aborted because its time had passed.
    TimedOut = 5,
}

impl TxStatus {
    pub fn from_number(number: u32) -> Option<TxStatus> {
        use TxStatus::*;
        [Running, LeftOpen, Committed, Aborted, TimedOut].into_iter().find(|s| *s as u32 == number)
    }
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Info {
    /// In: its number; with `INFO_NEXT`, the number below the next open one. Out: its number.
    pub id: u64,
    /// In: 0 or `INFO_NEXT`. Out: 0 or `INFO_PERSISTENT`.
    pub flags: u32,
    /// Out: one of [`TxStatus`]. Of the ended transactions only kept ones are remembered, for a
    /// while.
    pub status: u32,
    /// Out: its owner.
    pub uid: u32,
    pub label_len: u32,
    /// Out: milliseconds since its begin, and until it is dropped (0 for never).
    pub age_ms: u64,
    pub left_ms: u64,
    pub label: [u8; LABEL_MAX],
}

/// Bytes of a list of changes, or of a file, that one call returns.
pub const PAGE_BYTES: usize = 15 << 10;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Diff {
    /// In: the transaction.
    pub id: u64,
    /// In: the first change wanted; 0 makes a new list. Out: the next.
    pub index: u64,
    /// Out: whether that was the last one.
    pub done: u32,
    /// Out: bytes in `data`: a [`Change`] and its paths, one after the other.
    pub len: u32,
    pub data: [u8; PAGE_BYTES],
}

/// The kind of a change to a path, for [`Change`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ChangeKind {
    Added = 1,
    Deleted = 2,
    Modified = 3,
    Renamed = 4,
    Attributes = 5,
}

impl ChangeKind {
    pub fn from_number(number: u32) -> Option<ChangeKind> {
        use ChangeKind::*;
        [Added, Deleted, Modified, Renamed, Attributes].into_iter().find(|k| *k as u32 == number)
    }
}

/// One change, followed by its path, and by the earlier path in case of a rename.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Change {
    pub kind: u32,
    pub path_len: u32,
    pub from_len: u32,
    pub reserved: u32,
    /// The file before and after the change; all 0 where none exists.
    pub old: ChangeSide,
    pub new: ChangeSide,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChangeSide {
    pub ino: u64,
    pub size: u64,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub reserved: u32,
}

/// Contents of a file (or the target of a link) on one side of a change. The call does not count as
/// a read.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadSide {
    /// In: the transaction and the inode.
    pub id: u64,
    pub ino: u64,
    pub offset: u64,
    /// In: 0 for the contents before the change, 1 for those after it.
    pub side: u32,
    /// Out: bytes in `data`; 0 at the end.
    pub len: u32,
    pub data: [u8; PAGE_BYTES],
}

/// A savepoint of a transaction.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Savepoint {
    pub number: u64,
}

/// The key of a control channel, by which [`WriteFile`] names it. Only a process that has opened
/// the channel can ask for it.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChannelKey {
    pub key: u64,
}

/// Flags of [`WriteFile`]. `COMMIT`: the batch ends, and its changes become visible at once and
/// durable. `ORDERED`: as for a commit of a transaction. `ABORT`: what the batch has is discarded
/// first.
pub const WRITE_COMMIT: u32 = 1;
pub const WRITE_ORDERED: u32 = 2;
pub const WRITE_ABORT: u32 = 4;

/// Bytes of changes that one call takes.
pub const WRITE_MAX: usize = 16352;

/// Changes of the file on which the call is made, which become part of the channel's batch. A batch
/// may have changes of any number of files.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteFile {
    /// In: the key of a channel of the same user.
    pub key: u64,
    /// In: `WRITE_…`.
    pub flags: u32,
    /// In: bytes in `data`: a [`WritePart`] and its bytes, one after the other, each padded to a
    /// multiple of 8 bytes.
    pub len: u32,
    pub data: [u8; WRITE_MAX],
}

/// One change of a file, followed by its bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WritePart {
    pub offset: u64,
    /// The number of bytes.
    pub len: u32,
    /// `PART_…`.
    pub kind: u32,
}

/// Kinds of [`WritePart`]: bytes at the offset; the file ends at the offset, and no bytes follow.
pub const PART_BYTES: u32 = 0;
pub const PART_TRUNCATE: u32 = 1;

/// The reason why a commit failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// It did not fail.
    None = 0,
    /// Others changed files that the transaction read or wrote; `path` names one. `EAGAIN`.
    Conflict = 1,
    /// `ENOSPC`.
    NoSpace = 2,
    /// The journal is too small for it. `EFBIG`.
    TooLarge = 3,
    /// `EROFS`.
    ReadOnly = 4,
    /// The device failed, or the volume is damaged or was stopped by such an error. `EIO`,
    /// `EUCLEAN`.
    Io = 5,
    Other = 6,
    /// Others changed more since its begin than the daemon remembers. `ESTALE`.
    TooOld = 7,
    /// The selected changes cannot be separated from the rest, or there are none; see `errmsg`.
    /// `EINVAL`.
    NotApart = 8,
    /// The file system that the sparse image lies on is full. `ENOSPC`.
    HostFull = 9,
}

impl Reason {
    pub fn from_number(number: u32) -> Reason {
        use Reason::*;
        [None, Conflict, NoSpace, TooLarge, ReadOnly, Io, Other, TooOld, NotApart, HostFull]
            .into_iter()
            .find(|r| *r as u32 == number)
            .unwrap_or(Other)
    }
}

/// Actions of [`Snapshot`].
pub const SNAPSHOT_CREATE: u32 = 1;
pub const SNAPSHOT_DELETE: u32 = 2;
/// Returns the snapshot at an index of the list, from the oldest (0) on.
pub const SNAPSHOT_GET: u32 = 3;

/// Snapshots of the volume; for root, and for the user who mounted it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Snapshot {
    /// In: the action.
    pub action: u32,
    /// In, for `SNAPSHOT_GET`: its index.
    pub index: u32,
    /// Out: the generation, its time (seconds since 1970), and the bytes of the pool that deleting
    /// it alone would free.
    pub generation: u64,
    pub time: u64,
    pub own_bytes: u64,
    /// In or out: bytes in `name`.
    pub name_len: u32,
    /// Out: the reason of a failure, in English.
    pub errmsg_len: u32,
    pub name: [u8; SNAPSHOT_NAME_MAX],
    /// Out: bytes of its paths in [`SnapshotPaths`]; 0 for a snapshot of the whole volume.
    pub paths_len: u32,
    pub errmsg: [u8; ERRMSG_MAX],
}

/// A snapshot of chosen paths, to be created (`SNAPSHOT_CREATE`) or returned (`SNAPSHOT_GET`, by
/// its name). The permissions are those of [`Snapshot`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SnapshotPaths {
    /// In: the action.
    pub action: u32,
    /// In: bytes in `name`.
    pub name_len: u32,
    /// In or out: bytes in `paths`.
    pub paths_len: u32,
    /// Out: the reason of a failure, in English.
    pub errmsg_len: u32,
    pub name: [u8; SNAPSHOT_NAME_MAX],
    pub reserved: u32,
    /// In or out: paths relative to the volume's root, each followed by a NUL.
    pub paths: [u8; SNAPSHOT_PATHS_MAX],
    pub errmsg: [u8; ERRMSG_MAX],
}

impl SnapshotPaths {
    /// A request; `None` if the name or the paths are too long.
    pub fn new(action: u32, name: &str, paths: &[u8]) -> Option<Box<SnapshotPaths>> {
        let mut request = Box::new(SnapshotPaths::new_zeroed());
        request.name.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        request.paths.get_mut(..paths.len())?.copy_from_slice(paths);
        (request.action, request.name_len, request.paths_len) =
            (action, name.len() as u32, paths.len() as u32);
        Some(request)
    }

    /// The text of the paths.
    pub fn text(&self) -> &[u8] {
        &self.paths[..(self.paths_len as usize).min(SNAPSHOT_PATHS_MAX)]
    }
}

impl Snapshot {
    /// A request; `None` if the name is too long.
    pub fn new(action: u32, name: &str) -> Option<Snapshot> {
        let mut request = Snapshot::new_zeroed();
        request.name.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        (request.action, request.name_len) = (action, name.len() as u32);
        Some(request)
    }
}

impl FileMode {
    /// A request.
    pub fn new(action: u32, own: u32) -> FileMode {
        FileMode { action, own, ..FileMode::new_zeroed() }
    }
}

impl Modes {
    /// A request.
    pub fn new(action: u32, stored: [u8; 8]) -> Modes {
        Modes { action, stored, ..Modes::new_zeroed() }
    }
}

/// Compares a snapshot with another, or with the present volume. Made on a control channel, it
/// creates the channel's list of changes, which [`Diff`] with the id 0 returns.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SnapshotDiff {
    /// In: bytes in `old` and in `new`; 0 in `new` for the present volume.
    pub old_len: u32,
    pub new_len: u32,
    /// Out: the reason of a failure, in English.
    pub errmsg_len: u32,
    pub reserved: u32,
    pub old: [u8; SNAPSHOT_NAME_MAX],
    pub new: [u8; SNAPSHOT_NAME_MAX],
    pub errmsg: [u8; ERRMSG_MAX],
}

/// Flags of [`MountInfo`]. `SYNCS`: sync(2) and syncfs(2) reach the daemon. `EXCLUSIVE`: the daemon
/// denies other programs to open the image for writing. `READ_ONLY`: the daemon has opened the
/// volume read-only. `JOURNAL`, `GENERATIONS`, `UNJOURNALED`: the engine; a daemon of an older
/// version sets none of them.
pub const MOUNT_SYNCS: u32 = 1;
pub const MOUNT_EXCLUSIVE: u32 = 2;
pub const MOUNT_READ_ONLY: u32 = 4;
pub const MOUNT_JOURNAL: u32 = 8;
pub const MOUNT_GENERATIONS: u32 = 16;
pub const MOUNT_UNJOURNALED: u32 = 32;
/// Longest list of options in [`MountInfo`], in bytes.
pub const MOUNT_OPTIONS_MAX: usize = 1024;

/// How the volume is mounted. A request may list mount options: it fails (`EINVAL`) if one of them
/// differs from the mount's, since they cannot be changed while the volume is mounted.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MountInfo {
    /// Out: `MOUNT_…`.
    pub flags: u32,
    /// In: bytes in `options`.
    pub options_len: u32,
    /// Out: the reason of a failure, in English.
    pub errmsg_len: u32,
    pub reserved: u32,
    /// In: options as of `xact mount -o`, separated by commas.
    pub options: [u8; MOUNT_OPTIONS_MAX],
    pub errmsg: [u8; ERRMSG_MAX],
}

impl MountInfo {
    /// A request; `None` if the options are too long.
    pub fn new(options: &str) -> Option<MountInfo> {
        let mut request = MountInfo::new_zeroed();
        request.options.get_mut(..options.len())?.copy_from_slice(options.as_bytes());
        request.options_len = options.len() as u32;
        Some(request)
    }

    /// The listed options.
    pub fn options(&self) -> &[u8] {
        &self.options[..(self.options_len as usize).min(MOUNT_OPTIONS_MAX)]
    }
}

impl SnapshotDiff {
    /// A request; `None` if a name is too long.
    pub fn new(old: &str, new: &str) -> Option<SnapshotDiff> {
        let mut request = SnapshotDiff::new_zeroed();
        request.old.get_mut(..old.len())?.copy_from_slice(old.as_bytes());
        request.new.get_mut(..new.len())?.copy_from_slice(new.as_bytes());
        (request.old_len, request.new_len) = (old.len() as u32, new.len() as u32);
        Some(request)
    }
}

/// `_IOC` of asm-generic: direction (1: to the kernel, 2: from it), size, number.
const fn ioc(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | 0xea << 8 | number
}

pub const IOC_VERSION: u32 = ioc(2, 0, size_of::<Version>());
pub const IOC_BEGIN: u32 = ioc(3, 1, size_of::<Begin>());
pub const IOC_COMMIT: u32 = ioc(3, 2, size_of::<Commit>());
pub const IOC_ABORT: u32 = ioc(0, 3, 0);
pub const IOC_STATUS: u32 = ioc(2, 4, size_of::<Status>());
pub const IOC_SYNC: u32 = ioc(0, 5, 0);
pub const IOC_SELECT: u32 = ioc(1, 6, size_of::<Select>());
pub const IOC_DROP: u32 = ioc(3, 7, size_of::<Commit>());
pub const IOC_KEEP: u32 = ioc(1, 8, size_of::<Keep>());
pub const IOC_ATTACH: u32 = ioc(1, 9, size_of::<Begin>());
pub const IOC_INFO: u32 = ioc(3, 10, size_of::<Info>());
pub const IOC_DIFF: u32 = ioc(3, 11, size_of::<Diff>());
pub const IOC_READ: u32 = ioc(3, 12, size_of::<ReadSide>());
pub const IOC_SAVEPOINT: u32 = ioc(2, 13, size_of::<Savepoint>());
pub const IOC_ROLLBACK: u32 = ioc(1, 14, size_of::<Savepoint>());
pub const IOC_RELEASE: u32 = ioc(1, 15, size_of::<Savepoint>());
pub const IOC_DIFF_BY_FILE: u32 = ioc(3, 16, size_of::<Diff>());
pub const IOC_SNAPSHOT: u32 = ioc(3, 32, size_of::<Snapshot>());
pub const IOC_SNAPSHOT_PATHS: u32 = ioc(3, 38, size_of::<SnapshotPaths>());
pub const IOC_SNAPSHOT_DIFF: u32 = ioc(3, 36, size_of::<SnapshotDiff>());
pub const IOC_COUNTERS: u32 = ioc(2, 33, size_of::<Counters>());
pub const IOC_MODES: u32 = ioc(3, 34, size_of::<Modes>());
pub const IOC_FILE_MODE: u32 = ioc(3, 45, size_of::<FileMode>());
pub const IOC_POOL: u32 = ioc(2, 37, size_of::<Pool>());
pub const IOC_USERS: u32 = ioc(3, 39, size_of::<Users>());
pub const IOC_FILES: u32 = ioc(3, 48, size_of::<FileUses>());
pub const IOC_MOUNT: u32 = ioc(3, 44, size_of::<MountInfo>());
pub const IOC_LATENCIES: u32 = ioc(2, 35, size_of::<Latencies>());
pub const IOC_OUTCOME: u32 = ioc(2, 40, size_of::<Outcome>());
pub const IOC_CHANNEL_KEY: u32 = ioc(2, 56, size_of::<ChannelKey>());
pub const IOC_WRITE_FILE: u32 = ioc(1, 57, size_of::<WriteFile>());

/// Name of the control folder in the mount's root.
pub const FOLDER: &str = ".xact";

const _: () = assert!(size_of::<Commit>() == 24 + PATH_MAX + ERRMSG_MAX);
const _: () = assert!(size_of::<Change>() == 80);
// The number of an ioctl has 14 bits for the size.
const _: () = assert!(size_of::<Latencies>() < 1 << 14 && size_of::<SnapshotPaths>() < 1 << 14);
const _: () = assert!(size_of::<Diff>() < 1 << 14 && size_of::<ReadSide>() < 1 << 14);
