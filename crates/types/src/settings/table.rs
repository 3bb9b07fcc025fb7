//! The rows of the table. [`super`] says what else a new setting needs.

use std::time::Duration;

use super::{Bare, Form, Kind, Preset, Scope, Setting, Value, Word, Zero};

/// The settings, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Id {
    Data,
    CommitWrites,
    InodeUpdate,
    Timestamps,
    LogRecords,
    Fsync,
    Commit,
    DirtyBlocks,
    TxSpace,
    VersionSpace,
    Errors,
    ReserveUser,
    ReserveGroup,
    GroupOfFolder,
    MinixDf,
    AccessTimes,
    NoDirAtime,
    LazyTime,
    Discard,
    UserQuota,
    GroupQuota,
    ProjectQuota,
    NoQuota,
    ReadOnly,
    NoLoad,
    AllowOther,
    SingleCaller,
    FuseBlk,
    Exclusive,
    Notify,
    NoSuid,
    NoDev,
    NoExec,
    NoSymFollow,
    Sync,
    DirSync,
    Defaults,
    CacheSize,
    UserMemory,
    UserTransactions,
    SnapshotEvery,
    SnapshotRetain,
}

const fn word(word: &'static str, help: &'static str) -> Word {
    Word { word, help }
}

/// A mount option without aliases and notes.
const fn option(id: Id, name: &'static str, kind: Kind, default: Preset, help: &'static str) -> Setting {
    Setting {
        id,
        name,
        kind,
        default,
        form: Form::Option,
        scope: Scope::Mount,
        help,
        notes: "",
        aliases: &[],
    }
}

const fn flag(id: Id, on: &'static str, off: Option<&'static str>, help: &'static str) -> Setting {
    option(id, on, Kind::Flag { on, off }, Preset::Value(Value::Flag(false)), help)
}

/// A mode of the volume. `default` is the position of a word.
const fn mode(
    id: Id,
    name: &'static str,
    position: usize,
    words: &'static [Word],
    default: usize,
    help: &'static str,
) -> Setting {
    let preset = Preset::Value(Value::Choice(default));
    Setting { scope: Scope::Volume { position }, ..option(id, name, Kind::Choice(words), preset, help) }
}

const DAY: Duration = Duration::from_secs(86_400);

/// All settings.
pub static SETTINGS: [Setting; 42] = [
    Setting {
        notes: "After 'chattr +j', a file's data also goes through the journal. Volumes with generations accept \
                adaptive, ordered and writeback; with adaptive, their log for fsyncs takes the place of the journal.",
        ..mode(
            Id::Data,
            "data",
            0,
            &[
                word("writeback", "None; after a crash, blocks of new data may show their old contents"),
                word("ordered", "None; data is written to its place before the commit that refers to it"),
                word("journal", "All data"),
                word("selective", "Data that overwrites old data; new data is written as with ordered"),
                word(
                    "adaptive",
                    "What a small fsync overwrites, and all data of one that needs a commit anyway; the rest as with ordered",
                ),
            ],
            4,
            "Which file data goes through the journal",
        )
    },
    Setting {
        notes: "In either case, data is on the device before the metadata that refers to it.",
        aliases: &[("journal_async_commit", Value::Choice(1)), ("nojournal_async_commit", Value::Choice(0))],
        ..mode(
            Id::CommitWrites,
            "commit_writes",
            1,
            &[
                word("two-step", "In two writes with a flush between them, as by ext4's default"),
                word("single", "In one write with a checksum, which saves a write and usually a flush"),
            ],
            1,
            "How a commit is written to the journal",
        )
    },
    mode(
        Id::InodeUpdate,
        "inode_update",
        2,
        &[
            word(
                "immediate",
                "At the write, as in ext4; a crash may leave a file with a size but without its data",
            ),
            word("delayed", "When the data is written back"),
        ],
        1,
        "When the new size of a written file enters the journal",
    ),
    mode(
        Id::Timestamps,
        "timestamps",
        3,
        &[
            word(
                "immediate",
                "At the write, as in ext4; an fsync commits the inodes of all files written since the last commit",
            ),
            word("delayed", "When the data is written back"),
        ],
        1,
        "When the new times of a written file enter the journal",
    ),
    Setting {
        notes: "With sub-block, only xact can replay the journal. So Linux and e2fsck reject the volume after a crash, \
                until 'xact recover' or a clean unmount.",
        ..mode(
            Id::LogRecords,
            "log_records",
            4,
            &[
                word("block", "A copy of each changed block"),
                word("sub-block", "Only the changed bytes of a block, if they are few"),
            ],
            0,
            "What a commit writes to the journal",
        )
    },
    Setting {
        notes: "Each makes the file durable. With generation and log, all changes of other files before the fsync \
                survive with it; with file, a crash may undo them.",
        ..mode(
            Id::Fsync,
            "fsync",
            5,
            &[
                word("generation", "Makes a generation"),
                word("log", "Writes all changes to a log, which the next generation makes obsolete"),
                word(
                    "file",
                    "As log; if only the data of an old file is new, it writes no changes of other files",
                ),
            ],
            2,
            "What an fsync does on a volume with generations",
        )
    },
    Setting {
        form: Form::Both("commit-interval"),
        ..option(
            Id::Commit,
            "commit",
            Kind::Duration {
                min: Duration::from_millis(10),
                max: DAY,
                bare: Bare::Seconds,
                zero: Zero::Default,
            },
            Preset::Value(Value::Duration(Duration::from_secs(5))),
            "Maximum delay before changes are durable without a sync, data included",
        )
    },
    option(
        Id::DirtyBlocks,
        "dirty_blocks",
        Kind::Count { unit: "blocks", min: 1, max: u32::MAX as u64, zero: Zero::Default },
        Preset::Rule("half of the limit of one commit"),
        "Number of changed metadata blocks at which the next generation is made at once",
    ),
    Setting {
        notes: "Beyond it, calls in these transactions fail with \"disk quota exceeded\". Root has no limit.",
        ..option(
            Id::TxSpace,
            "tx_space",
            Kind::Percent,
            Preset::Value(Value::Count(50)),
            "Share of the free space and free inodes that open transactions of one user may hold",
        )
    },
    Setting {
        notes: "Beyond it, or when the volume would otherwise be full for others, the oldest transactions become too \
                old. Old contents stay in memory until old versions take more than an eighth of the cache; then \
                they are written to free space.",
        ..option(
            Id::VersionSpace,
            "version_space",
            Kind::Percent,
            Preset::Value(Value::Count(50)),
            "Share of the free space that old versions for open transactions may take",
        )
    },
    Setting {
        notes: "The damage is always noted in the superblock.",
        ..option(
            Id::Errors,
            "errors",
            Kind::Choice(&[
                word("continue", "Log it and continue"),
                word("remount-ro", "Make the volume read-only"),
                word("panic", "Stop serving the volume"),
            ]),
            Preset::Rule("as the superblock says"),
            "What to do when damage of the volume is found",
        )
    },
    option(
        Id::ReserveUser,
        "resuid",
        Kind::Count { unit: "UID", min: 0, max: u32::MAX as u64, zero: Zero::Invalid },
        Preset::Rule("as the superblock says"),
        "User, in addition to root, that may fill the space reserved for root",
    ),
    Setting {
        notes: "Of a process's groups, only its first one counts.",
        ..option(
            Id::ReserveGroup,
            "resgid",
            Kind::Count { unit: "GID", min: 0, max: u32::MAX as u64, zero: Zero::Invalid },
            Preset::Rule("as the superblock says"),
            "Group whose members may fill the space reserved for root",
        )
    },
    Setting {
        aliases: &[("bsdgroups", Value::Flag(true)), ("sysvgroups", Value::Flag(false))],
        notes: "Otherwise they get the group of the process, and the folder's group only in folders with the \
                set-group-ID bit.",
        ..flag(Id::GroupOfFolder, "grpid", Some("nogrpid"), "Give new files the group of their folder")
    },
    flag(
        Id::MinixDf,
        "minixdf",
        Some("bsddf"),
        "Count the blocks of fixed metadata in the size that df shows",
    ),
    Setting {
        notes: "Reads that the kernel answers from its cache set no access time.",
        aliases: &[("atime", Value::Choice(2))],
        ..option(
            Id::AccessTimes,
            "access times",
            Kind::Words(&[
                word("noatime", "Never"),
                word(
                    "relatime",
                    "If the access time is older than the last change of the file, or more than a day old",
                ),
                word("strictatime", "Always"),
            ]),
            Preset::Value(Value::Choice(0)),
            "When a read sets the access time",
        )
    },
    flag(Id::NoDirAtime, "nodiratime", Some("diratime"), "Keep no access times of folders"),
    flag(
        Id::LazyTime,
        "lazytime",
        Some("nolazytime"),
        "Keep access times in memory until a change of the inode, a sync or the unmount, for at most a day",
    ),
    Setting {
        notes: "A freed block is discarded when the commit that freed it is durable and no open transaction reads it. \
                fstrim(8) discards all free blocks. \
                An image file gives their space back to the file system that it lies on.",
        ..flag(
            Id::Discard,
            "discard",
            Some("nodiscard"),
            "Discard freed blocks on the device (punch holes in an image file)",
        )
    },
    Setting {
        notes: "Usage is always counted on a volume with quotas.",
        aliases: &[("quota", Value::Flag(true))],
        ..flag(Id::UserQuota, "usrquota", None, "Enforce the quotas of users")
    },
    flag(Id::GroupQuota, "grpquota", None, "Enforce the quotas of groups"),
    flag(Id::ProjectQuota, "prjquota", None, "Enforce the quotas of projects"),
    flag(Id::NoQuota, "noquota", None, "Enforce no quotas"),
    Setting {
        notes: "As in ext4, the journal that a crash left is replayed first, which needs write access.",
        ..flag(Id::ReadOnly, "ro", Some("rw"), "Mount read-only")
    },
    Setting {
        aliases: &[("norecovery", Value::Flag(true))],
        notes: "Needs ro, and writes nothing to the image or device. A volume with a journal may show damage then, \
                because its newest changes exist only in the log; a volume with generations shows its newest generation.",
        ..flag(Id::NoLoad, "noload", None, "Ignore the log that a crash left")
    },
    Setting {
        default: Preset::Rule("allow_other for root, else noallow_other"),
        notes: "Permissions apply. A user other than root also needs user_allow_other in /etc/fuse.conf.",
        ..flag(
            Id::AllowOther,
            "allow_other",
            Some("noallow_other"),
            "Let users other than the mounting one use the mount",
        )
    },
    Setting {
        default: Preset::Value(Value::Flag(true)),
        notes: "The worker replies under SCHED_IDLE, which saves the wake-up of another CPU at each request. This mode \
                needs root and two CPUs. With nosingle_caller the kernel alone chooses the CPUs of workers.",
        ..flag(
            Id::SingleCaller,
            "single_caller",
            Some("nosingle_caller"),
            "Run a worker on the CPU of the thread that makes most of the calls",
        )
    },
    Setting {
        default: Preset::Rule("fuseblk for root where the kernel supports it, else nofuseblk"),
        notes: "Then sync(2), syncfs(2) and 'mount -o remount,ro' make everything durable (Linux 6.18), and umount(2) \
                waits for the daemon. An image file gets a loop device. 'xact stat' shows what applies.",
        ..flag(
            Id::FuseBlk,
            "fuseblk",
            Some("nofuseblk"),
            "Mount with the type fuseblk, which has a block device as its source",
        )
    },
    Setting {
        default: Preset::Rule("exclusive for root, else noexclusive"),
        notes: "A program that had the image file open before the mount can still write to it. Block devices are \
                claimed in any case.",
        ..flag(
            Id::Exclusive,
            "exclusive",
            Some("noexclusive"),
            "Deny other programs, such as losetup and e2fsck, to open the image file for writing",
        )
    },
    Setting {
        notes: "A child process of the daemon makes calls on the mount that change nothing, and the commit returns after \
                them. The guide's page on limits lists what watchers do not learn.",
        ..flag(
            Id::Notify,
            "notify",
            Some("nonotify"),
            "Report the changes of a commit to programs that watch files with inotify or fanotify",
        )
    },
    flag(Id::NoSuid, "nosuid", Some("suid"), "Ignore set-user-ID and set-group-ID bits, as in mount(8)"),
    flag(Id::NoDev, "nodev", Some("dev"), "Ignore device files, as in mount(8)"),
    flag(Id::NoExec, "noexec", Some("exec"), "Forbid the execution of programs, as in mount(8)"),
    flag(Id::NoSymFollow, "nosymfollow", Some("symfollow"), "Follow no symbolic links, as in mount(8)"),
    flag(Id::Sync, "sync", Some("async"), "Make every write durable at once, as in mount(8)"),
    flag(Id::DirSync, "dirsync", None, "Make every change of a folder durable at once, as in mount(8)"),
    Setting {
        aliases: &[("default_permissions", Value::Flag(true))],
        ..flag(Id::Defaults, "defaults", None, "Change nothing; accepted for fstab(5)")
    },
    Setting {
        form: Form::Long("cache-size"),
        ..option(
            Id::CacheSize,
            "cache_size",
            Kind::Size,
            Preset::Value(Value::Size(256 << 20)),
            "Memory for cached data and metadata",
        )
    },
    Setting {
        form: Form::Long("user-memory"),
        notes: "It holds their read sets, changes and lists of changes. Near the limit, read sets are recorded more \
                coarsely; at the limit, calls in the transaction fail with ENOMEM. Root and the user who mounts have no \
                limit; all other users together have four times the limit of one.",
        ..option(
            Id::UserMemory,
            "user_memory",
            Kind::Size,
            Preset::Rule("1/8 of --cache-size, at least 24M"),
            "Memory of the daemon for the transactions of each user",
        )
    },
    Setting {
        form: Form::Long("user-transactions"),
        notes: "The limits of savepoints and control channels are ten and four times this number. The same \
                users are exempt as for --user-memory.",
        ..option(
            Id::UserTransactions,
            "user_transactions",
            Kind::Count { unit: "N", min: 1, max: 100_000, zero: Zero::Invalid },
            Preset::Value(Value::Count(100)),
            "Maximum number of open transactions of each user",
        )
    },
    Setting {
        form: Form::Long("snapshot-every"),
        notes: "Needs a volume with generations. Snapshots are named by the time, such as auto-2026-03-01T17:05:09Z.",
        ..option(
            Id::SnapshotEvery,
            "snapshot_every",
            Kind::Duration {
                min: Duration::from_millis(1),
                max: Duration::MAX,
                bare: Bare::Invalid,
                zero: Zero::Invalid,
            },
            Preset::Rule("no snapshots"),
            "Make a snapshot at this interval if anything has changed, such as 15m, 1h or 1d",
        )
    },
    Setting {
        form: Form::Long("snapshot-retain"),
        ..option(
            Id::SnapshotRetain,
            "snapshot_retain",
            Kind::Policy,
            Preset::Value(Value::Policy("hourly=24,daily=7")),
            "Retention policy of the snapshots of --snapshot-every; see 'xact snapshot prune --help'",
        )
    },
];

// A setting is found by its number.
const _: () = {
    let mut at = 0;
    while at < SETTINGS.len() {
        assert!(SETTINGS[at].id as usize == at);
        at += 1;
    }
};

impl Id {
    pub const fn setting(self) -> &'static Setting {
        &SETTINGS[self as usize]
    }
}
