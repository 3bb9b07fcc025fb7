//! The table of settings: each mount option and each mode of a volume, in one place.
//!
//! The following are derived from the table: the parser of `xact mount -o` and of the long options,
//! the defaults of the library, `--help`, the manual, the list of `xact mode`, the record on the
//! volume, and docs/SETTINGS.md. A new setting is a row of [`SETTINGS`] and a member of [`Id`]
//! (both in `table`), and an arm in the crate that applies it: `VolumeOptions::set` or
//! `MountOptions::set`. A long option of `xact mount` alone is applied by the command.
//!
//! Options of ext4(5) and mount(8) that xact does not have are rows of [`FOREIGN_OPTIONS`], which
//! says whether they are ignored or refused, and why.

mod foreign;
mod parse;
mod table;
mod text;

use std::time::Duration;

pub use foreign::{FOREIGN_OPTIONS, ForeignOption, Verdict};
pub use parse::parse_option;
pub use table::{Id, SETTINGS};

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

impl Kind {
    /// Whether the setting is given as `NAME=VALUE`.
    pub fn has_name(&self) -> bool {
        !matches!(self, Kind::Words(_) | Kind::Flag { .. })
    }
}

impl Setting {
    /// The words of a choice; none for other kinds.
    pub const fn words(&self) -> &'static [Word] {
        match self.kind {
            Kind::Choice(words) | Kind::Words(words) => words,
            _ => &[],
        }
    }

    /// The default, unless it depends on something else.
    pub const fn default_value(&self) -> Option<Value> {
        match self.default {
            Preset::Value(value) => Some(value),
            Preset::Rule(_) => None,
        }
    }

    /// The default of a choice, as the position of a word.
    pub const fn default_choice(&self) -> usize {
        match self.default {
            Preset::Value(Value::Choice(at)) => at,
            _ => panic!("the setting has no default of this kind"),
        }
    }

    /// The default of a flag.
    pub const fn default_flag(&self) -> bool {
        match self.default {
            Preset::Value(Value::Flag(is_on)) => is_on,
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
