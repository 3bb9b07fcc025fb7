//! The table of settings: each mount option and each mode of a volume, in one place.
//!
//! The following are derived from the table: the parser of `xact mount -o` and of the long options,
//! the defaults of the library, `--help`, the manual, the list of `xact mode`, the record on the
//! volume, and docs/SETTINGS.md. A new setting is a row of [`SETTINGS`], a member of [`Id`], and an
//! arm in the crate that applies it: `VolumeOptions::set` or `MountOptions::set`.

use std::time::Duration;

use crate::units::{duration_text, parse_duration, parse_duration_or_seconds, parse_size, size_text};

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
    Errors,
    AccessTimes,
    NoDirAtime,
    LazyTime,
    Discard,
    UserQuota,
    GroupQuota,
    ProjectQuota,
    NoQuota,
    ReadOnly,
    AllowOther,
    NoSuid,
    NoDev,
    NoExec,
    Sync,
    DirSync,
    Defaults,
    CacheSize,
    UserMemory,
    UserTransactions,
    SnapshotEvery,
    SnapshotRetain,
}

/// A row of the table.
#[derive(Debug)]
pub struct Setting {
    pub id: Id,
    /// As in `-o NAME=VALUE` and in `xact mode`. The name of [`Kind::Words`] is a label only.
    pub name: &'static str,
    pub kind: Kind,
    pub default: Preset,
    pub form: Form,
    pub scope: Scope,
    /// One sentence without its full stop.
    pub help: &'static str,
    /// Further sentences.
    pub notes: &'static str,
    /// Other words for a value, each an option of its own.
    pub aliases: &'static [(&'static str, Value)],
}

/// The values of a setting.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// `NAME=WORD`. In the record on the volume, the number of a word is its position, from 1.
    Choice(&'static [Word]),
    /// `WORD`, an option of its own.
    Words(&'static [Word]),
    /// Two options, of which the second turns off the first.
    Flag { on: &'static str, off: Option<&'static str> },
    /// A duration within limits.
    Duration { min: Duration, max: Duration, bare: Bare, zero: Zero },
    /// A number of bytes.
    Size,
    /// A number of things within limits.
    Count { unit: &'static str, min: u64, max: u64, zero: Zero },
    /// A percentage from 1 to 100, with or without `%`.
    Percent,
    /// A retention policy, such as `last=3,daily=7`.
    Policy,
}

/// A value that is a word.
#[derive(Debug)]
pub struct Word {
    pub word: &'static str,
    /// One sentence without its full stop.
    pub help: &'static str,
}

/// The meaning of a duration without a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bare {
    Seconds,
    Invalid,
}

/// The meaning of 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zero {
    /// The default, as in ext4's `commit=0`.
    Default,
    Invalid,
}

/// A value of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Position of a word.
    Choice(usize),
    Flag(bool),
    Duration(Duration),
    Size(u64),
    /// Also a percentage.
    Count(u64),
    Policy(&'static str),
}

/// The default of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    Value(Value),
    /// A default that depends on something else, in words.
    Rule(&'static str),
}

/// How a setting is given to `xact mount`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `-o`.
    Option,
    /// A long option, here without its dashes.
    Long(&'static str),
    /// Either.
    Both(&'static str),
}

/// The place that keeps a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// With the mount.
    Mount,
    /// With the mount, or on the volume by `xact mode set`, at this position of the record.
    Volume { position: usize },
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
pub static SETTINGS: [Setting; 31] = [
    Setting {
        notes: "After 'chattr +j', a file's data also goes through the journal. Volumes with generations accept \
                adaptive (their log for fsyncs takes the place of the journal), ordered and writeback.",
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
                    "As ordered, but an fsync that has to commit journals its data if it is small",
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
                "At the write, as in ext4; a crash may leave a file with a size but not its data",
            ),
            word("delayed", "With the data"),
        ],
        1,
        "When the file size that a write changes joins the journal",
    ),
    mode(
        Id::Timestamps,
        "timestamps",
        3,
        &[
            word(
                "immediate",
                "At the write, as in ext4; an fsync commits the inodes of all files written since",
            ),
            word("delayed", "With the data"),
        ],
        1,
        "When the times that a write changes join the journal",
    ),
    Setting {
        notes: "While a volume with sub-block is mounted, and after a crash, only xact can replay its journal: Linux \
                and e2fsck reject the volume until 'xact recover' or a clean unmount.",
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
        notes: "Both give the same guarantee.",
        ..mode(
            Id::Fsync,
            "fsync",
            5,
            &[
                word("generation", "Makes a generation"),
                word("log", "Writes the changes to a log, which the next generation makes obsolete"),
            ],
            1,
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
            "Maximum delay before changes are committed",
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
                    "If the access time is older than the last change of the file, or than a day",
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
        "Keep access times in memory until the inode changes, a sync, the unmount, or for a day",
    ),
    Setting {
        notes: "A freed block is discarded once a crash cannot bring its file back. fstrim(8) discards all free blocks.",
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
    flag(Id::ReadOnly, "ro", Some("rw"), "Mount read-only"),
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
    flag(Id::NoSuid, "nosuid", Some("suid"), "Ignore set-user-ID and set-group-ID bits, as in mount(8)"),
    flag(Id::NoDev, "nodev", Some("dev"), "Ignore device files, as in mount(8)"),
    flag(Id::NoExec, "noexec", Some("exec"), "Forbid the execution of programs, as in mount(8)"),
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
        notes: "The limits of savepoints and control channels are ten and four times this number. Users are exempt as \
                with --user-memory.",
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
            "Retention policy of these snapshots; see 'xact snapshot prune --help'",
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

/// Parses one option of `-o`: `WORD` or `NAME=VALUE`. No value: the default, by `NAME=default` or
/// by 0.
///
/// Errors: the option does not exist, or has no such value.
pub fn parse_option(text: &str) -> Result<(Id, Option<Value>), String> {
    let unknown = || format!("unknown mount option '{text}'");
    let mut options = SETTINGS.iter().filter(|setting| !matches!(setting.form, Form::Long(_)));
    match text.split_once('=') {
        Some((name, value)) => {
            let setting = options.find(|setting| setting.name == name && setting.kind.has_name());
            let setting = setting.ok_or_else(unknown)?;
            Ok((setting.id, setting.parse(value)?))
        }
        None => options
            .find_map(|setting| Some((setting.id, Some(setting.value_of_word(text)?))))
            .ok_or_else(unknown),
    }
}

impl Kind {
    /// Whether the setting is given as `NAME=VALUE`.
    pub fn has_name(&self) -> bool {
        !matches!(self, Kind::Words(_) | Kind::Flag { .. })
    }
}

impl Setting {
    /// Parses a value; `None` is the default.
    pub fn parse(&self, text: &str) -> Result<Option<Value>, String> {
        if text == "default" {
            return Ok(None);
        }
        let value = match self.kind {
            Kind::Choice(words) | Kind::Words(words) => {
                let found = words.iter().position(|word| word.word == text);
                let known = || words.iter().map(|word| word.word).collect::<Vec<_>>().join(", ");
                Value::Choice(found.ok_or_else(|| format!("invalid value '{text}': expected {}", known()))?)
            }
            Kind::Flag { .. } => self
                .value_of_word(text)
                .ok_or_else(|| format!("invalid value '{text}': expected {}", self.name))?,
            Kind::Duration { min, max, bare, zero } => {
                let time = match bare {
                    Bare::Seconds => parse_duration_or_seconds(text)?,
                    Bare::Invalid => parse_duration(text)?,
                };
                if time.is_zero() && zero == Zero::Default {
                    return Ok(None);
                }
                if !(min..=max).contains(&time) {
                    let least = duration_text(min);
                    return Err(match max {
                        Duration::MAX => format!("invalid duration '{text}': expected at least {least}"),
                        max => {
                            format!("invalid duration '{text}': expected {least} to {}", duration_text(max))
                        }
                    });
                }
                Value::Duration(time)
            }
            Kind::Size => Value::Size(parse_size(text)?),
            Kind::Count { min, max, zero, .. } => {
                let wrong = || format!("invalid number '{text}': expected {min} to {max}");
                match text.parse().map_err(|_| wrong())? {
                    0 if zero == Zero::Default => return Ok(None),
                    count if (min..=max).contains(&count) => Value::Count(count),
                    _ => return Err(wrong()),
                }
            }
            Kind::Percent => {
                let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
                let number = number.filter(|percent| (1..=100).contains(percent));
                Value::Count(number.ok_or_else(|| format!("invalid percentage '{text}': expected 1 to 100"))?)
            }
            Kind::Policy => return Err(format!("'{}' is parsed as a retention policy", self.name)),
        };
        Ok(Some(value))
    }

    /// The value for which a word stands that is an option of its own.
    fn value_of_word(&self, text: &str) -> Option<Value> {
        let alias = self.aliases.iter().find(|(alias, _)| *alias == text).map(|(_, value)| *value);
        alias.or_else(|| match self.kind {
            Kind::Words(words) => words.iter().position(|word| word.word == text).map(Value::Choice),
            Kind::Flag { on, .. } if on == text => Some(Value::Flag(true)),
            Kind::Flag { off, .. } if off == Some(text) => Some(Value::Flag(false)),
            _ => None,
        })
    }

    /// The words of a choice; none for other kinds.
    pub const fn words(&self) -> &'static [Word] {
        match self.kind {
            Kind::Choice(words) | Kind::Words(words) => words,
            _ => &[],
        }
    }

    /// All options that stand for a value of their own, such as `ro` and `rw`.
    pub fn option_words(&self) -> Vec<&'static str> {
        let own = match self.kind {
            Kind::Words(words) => words.iter().map(|word| word.word).collect(),
            Kind::Flag { on, off } => [Some(on), off].into_iter().flatten().collect(),
            _ => Vec::new(),
        };
        own.into_iter().chain(self.aliases.iter().map(|(alias, _)| *alias)).collect()
    }

    /// The placeholder of the value: `TIME`, `SIZE`, `PERCENT`, or the words of a choice.
    pub fn placeholder(&self) -> String {
        match self.kind {
            Kind::Choice(words) | Kind::Words(words) => {
                words.iter().map(|word| word.word).collect::<Vec<_>>().join("|")
            }
            Kind::Flag { .. } => String::new(),
            Kind::Duration { .. } => "TIME".into(),
            Kind::Size => "SIZE".into(),
            Kind::Count { .. } => "N".into(),
            Kind::Percent => "PERCENT".into(),
            Kind::Policy => "RULES".into(),
        }
    }

    /// A value as it is written on the command line.
    pub fn text_of(&self, value: Value) -> String {
        match (self.kind, value) {
            (Kind::Percent, Value::Count(percent)) => format!("{percent}%"),
            (_, Value::Choice(at)) => self.words()[at].word.into(),
            (Kind::Flag { on, off }, Value::Flag(is_on)) => match off {
                _ if is_on => on.into(),
                Some(off) => off.into(),
                None => "off".into(),
            },
            (_, Value::Flag(is_on)) => is_on.to_string(),
            (_, Value::Duration(time)) => duration_text(time),
            (_, Value::Size(bytes)) => size_text(bytes),
            (_, Value::Count(count)) => count.to_string(),
            (_, Value::Policy(rules)) => rules.into(),
        }
    }

    /// The default, as it is written on the command line or in words.
    pub fn default_text(&self) -> String {
        match self.default {
            Preset::Value(value) => self.text_of(value),
            Preset::Rule(rule) => rule.into(),
        }
    }

    /// The default of a choice, as the position of a word.
    pub const fn default_choice(&self) -> usize {
        match self.default {
            Preset::Value(Value::Choice(at)) => at,
            _ => panic!("the setting has no default of this kind"),
        }
    }

    /// The default of a duration.
    pub const fn default_duration(&self) -> Duration {
        match self.default {
            Preset::Value(Value::Duration(time)) => time,
            _ => panic!("the setting has no default of this kind"),
        }
    }

    /// The default of a size, a count or a percentage.
    pub const fn default_number(&self) -> u64 {
        match self.default {
            Preset::Value(Value::Size(number) | Value::Count(number)) => number,
            _ => panic!("the setting has no default of this kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Id, Option<Value>) {
        parse_option(text).unwrap()
    }

    #[test]
    fn defaults_and_words_read_back() {
        for setting in &SETTINGS {
            if let Preset::Value(value) = setting.default
                && !matches!(setting.kind, Kind::Policy | Kind::Flag { off: None, .. })
            {
                assert_eq!(setting.parse(&setting.text_of(value)), Ok(Some(value)), "{}", setting.name);
            }
            for word in setting.option_words() {
                assert_eq!(parsed(word).0, setting.id, "{word}");
            }
            assert!(!setting.help.ends_with('.') && setting.notes.is_empty() != setting.notes.ends_with('.'));
        }
    }

    #[test]
    fn positions_in_the_record_are_unique() {
        let positions: Vec<usize> = SETTINGS
            .iter()
            .filter_map(|setting| match setting.scope {
                Scope::Volume { position } => Some(position),
                Scope::Mount => None,
            })
            .collect();
        assert_eq!(positions, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn options_have_the_names_of_ext4() {
        assert_eq!(parsed("commit=7"), (Id::Commit, Some(Value::Duration(Duration::from_secs(7)))));
        assert_eq!(parsed("commit=500ms"), (Id::Commit, Some(Value::Duration(Duration::from_millis(500)))));
        assert_eq!(parsed("commit=0"), (Id::Commit, None));
        assert_eq!(parsed("dirty_blocks=0"), (Id::DirtyBlocks, None));
        assert_eq!(parsed("tx_space=25%"), (Id::TxSpace, Some(Value::Count(25))));
        assert_eq!(parsed("journal_async_commit"), (Id::CommitWrites, Some(Value::Choice(1))));
        assert_eq!(parsed("atime"), (Id::AccessTimes, Some(Value::Choice(2))));
        assert_eq!(parsed("quota"), (Id::UserQuota, Some(Value::Flag(true))));
        assert_eq!(parsed("rw"), (Id::ReadOnly, Some(Value::Flag(false))));
        assert_eq!(parsed("data=default"), (Id::Data, None));
        for wrong in [
            "commit",
            "commit=soon",
            "commit=2d",
            "dirty_blocks=many",
            "dirty_blocks=9999999999",
            "tx_space=0",
            "tx_space=half",
            "errors=none",
            "frobnicate",
            "noatime=noatime",
            "cache_size=1M",
            "ro=1",
            "=",
            "",
        ] {
            assert!(parse_option(wrong).is_err(), "{wrong}");
        }
        let why = parse_option("data=fast").unwrap_err();
        assert!(why.contains("expected writeback, ordered, journal, selective, adaptive"), "{why}");
    }
}
