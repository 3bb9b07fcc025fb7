//! The volume's modes: each choice of journaling is a separate setting, with a name for each value.
//!
//! A setting comes from the opener ([`VolumeOptions::modes`](crate::VolumeOptions)), else from the
//! volume, else from the built-in default. The volume stores settings in its superblock: ext4's own
//! journal modes in `s_default_mount_opts`, where the kernel and tune2fs have them too, and the
//! others in xact's own record ([`xact_layout::mode_record`]).

use xact_consistency::{CommitWrites, DataInLog, Engine, Fsync, LogRecords};
use xact_layout::mode_record::{MODE_SETTINGS, ModeRecord};
use xact_layout::superblock::{
    DEFAULT_JMODE, DEFAULT_JMODE_DATA, DEFAULT_JMODE_ORDERED, DEFAULT_JMODE_WRITEBACK, Superblock,
};
use xact_types::{Error, Result};

/// The way in which file data reaches the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataMode {
    /// ext4's `data=writeback`: data is written in place, and commits do not wait for it.
    Writeback,
    /// ext4's `data=ordered`: data is written in place, before the commit that refers to it.
    Ordered,
    /// ext4's `data=journal`: all data goes through the journal.
    Journal,
    /// RFJ: overwritten blocks go through the journal, new ones are written in place before the
    /// commit.
    Selective,
    /// As `Ordered`, but an fsync that must commit anyway puts small amounts of data into the
    /// commit. The limit depends on the file's write pattern
    /// (`live::data::writeback::write_pattern`).
    Adaptive,
}

/// The time at which an inode's size (delayed file size update) or times (delayed timestamp
/// journaling) join the journal after a write (DIU).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InodeUpdate {
    /// With the data, in the commit that finds it on the device.
    Delayed,
    /// At the write, as in ext4. The size follows as far as the write stays within the file's
    /// existing blocks, so another caller's commit may carry a size without its data. With the
    /// times, a commit carries the inodes of all files written since.
    Immediate,
}

const DATA: &[(&str, DataMode)] = &[
    ("writeback", DataMode::Writeback),
    ("ordered", DataMode::Ordered),
    ("journal", DataMode::Journal),
    ("selective", DataMode::Selective),
    ("adaptive", DataMode::Adaptive),
];
const COMMIT_WRITES: &[(&str, CommitWrites)] =
    &[("two-step", CommitWrites::TwoStep), ("single", CommitWrites::Single)];
const LOG_RECORDS: &[(&str, LogRecords)] =
    &[("block", LogRecords::Block), ("sub-block", LogRecords::SubBlock)];
const WHEN: &[(&str, InodeUpdate)] =
    &[("immediate", InodeUpdate::Immediate), ("delayed", InodeUpdate::Delayed)];

const FSYNC: &[(&str, Fsync)] = &[("generation", Fsync::Generation), ("log", Fsync::Log)];

/// Defines [`Modes`] and [`ModeChoice`] with a field for each setting: its type, its name, its
/// values by name, and the built-in default. The order is that of the record on disk.
macro_rules! settings {
    ($($(#[$doc:meta])* $field:ident: $type:ty, $values:expr, $default:expr;)*) => {
        /// A value for each setting.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Modes {
            $($(#[$doc])* pub $field: $type,)*
        }

        /// A value for some of the settings.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct ModeChoice {
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

        impl Default for Modes {
            fn default() -> Modes {
                Modes { $($field: $default,)* }
            }
        }

        impl From<Modes> for ModeChoice {
            fn from(modes: Modes) -> ModeChoice {
                ModeChoice { $($field: Some(modes.$field),)* }
            }
        }

        impl ModeChoice {
            /// These settings, and `others` for those not set here.
            pub fn or(self, others: ModeChoice) -> ModeChoice {
                ModeChoice { $($field: self.$field.or(others.$field),)* }
            }

            /// These settings, and the built-in defaults.
            pub fn or_default(self) -> Modes {
                let built_in = Modes::default();
                Modes { $($field: self.$field.unwrap_or(built_in.$field),)* }
            }

            /// Sets one setting by name and value; the value `default` clears it. False for an
            /// unknown setting; the error for an unknown value lists the valid ones.
            pub fn set(&mut self, setting: &str, value: &str) -> Result<bool, String> {
                match setting {
                    $(stringify!($field) => self.$field = by_name($values, value)?,)*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// The settings in order: name and value's name.
            pub fn names(&self) -> Vec<(&'static str, Option<&'static str>)> {
                vec![$((stringify!($field), self.$field.map(|value| name_of($values, value))),)*]
            }

            /// The settings as numbers; 0 if not set.
            pub fn numbers(&self) -> [u8; MODE_SETTINGS] {
                let mut numbers = [0; MODE_SETTINGS];
                let mut next = numbers.iter_mut();
                $(if let (Some(number), Some(value)) = (next.next(), self.$field) {
                    *number = number_of($values, value);
                })*
                numbers
            }

            /// Settings from numbers; unknown numbers are not set.
            pub fn from_numbers(numbers: [u8; MODE_SETTINGS]) -> ModeChoice {
                let mut next = numbers.into_iter();
                ModeChoice { $($field: next.next().and_then(|number| by_number($values, number)),)* }
            }
        }
    };
}

settings! {
    /// The way in which file data reaches the device.
    data: DataMode, DATA, DataMode::Adaptive;
    /// The writes of a commit to the journal.
    commit_writes: CommitWrites, COMMIT_WRITES, CommitWrites::Single;
    /// The time at which a write's size joins the journal.
    inode_update: InodeUpdate, WHEN, InodeUpdate::Delayed;
    /// The time at which a write's times join the journal.
    timestamps: InodeUpdate, WHEN, InodeUpdate::Delayed;
    /// The form in which a commit logs a changed block.
    log_records: LogRecords, LOG_RECORDS, LogRecords::Block;
    /// The effect of an fsync on a volume with generations.
    fsync: Fsync, FSYNC, Fsync::Log;
}

fn by_name<T: Copy>(values: &[(&str, T)], name: &str) -> Result<Option<T>, String> {
    if name == "default" {
        return Ok(None);
    }
    let found = values.iter().find(|(known, _)| *known == name);
    let names = || values.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    found.map(|(_, value)| Some(*value)).ok_or_else(|| format!("there is no '{name}'; there are {}", names()))
}

fn name_of<T: Copy + PartialEq>(values: &[(&'static str, T)], value: T) -> &'static str {
    values.iter().find(|(_, known)| *known == value).expect("each value has a name").0
}

fn number_of<T: Copy + PartialEq>(values: &[(&str, T)], value: T) -> u8 {
    1 + values.iter().position(|(_, known)| *known == value).expect("each value has a number") as u8
}

fn by_number<T: Copy>(values: &[(&str, T)], number: u8) -> Option<T> {
    values.get(usize::from(number).checked_sub(1)?).map(|(_, value)| *value)
}

/// The settings in the superblock. One of ext4's journal modes that tune2fs has set since takes
/// precedence.
pub fn stored(sb: &Superblock) -> ModeChoice {
    let ours = match sb.mode_record() {
        ModeRecord::Values(numbers) => ModeChoice::from_numbers(numbers),
        ModeRecord::Empty | ModeRecord::Foreign => ModeChoice::default(),
    };
    let ext4 = match sb.default_mount_opts() & DEFAULT_JMODE {
        DEFAULT_JMODE_DATA => Some(DataMode::Journal),
        DEFAULT_JMODE_ORDERED => Some(DataMode::Ordered),
        DEFAULT_JMODE_WRITEBACK => Some(DataMode::Writeback),
        _ => None,
    };
    ModeChoice { data: ext4.or(ours.data), ..ours }
}

/// Writes the modes into the superblock without updating its checksum.
pub(crate) fn store(sb: &mut Superblock, modes: ModeChoice) {
    let ext4 = match modes.data {
        Some(DataMode::Journal) => DEFAULT_JMODE_DATA,
        Some(DataMode::Ordered) => DEFAULT_JMODE_ORDERED,
        Some(DataMode::Writeback) => DEFAULT_JMODE_WRITEBACK,
        Some(DataMode::Selective | DataMode::Adaptive) | None => 0,
    };
    sb.set_default_mount_opts(sb.default_mount_opts() & !DEFAULT_JMODE | ext4);
    let ours = ModeChoice { data: modes.data.filter(|_| ext4 == 0), ..modes };
    sb.set_mode_record(ours.numbers());
}

/// `Usage` if the volume's engine does not support these modes.
pub(crate) fn check(modes: ModeChoice, engine: &Engine) -> Result<()> {
    let all_data = matches!(modes.data, Some(DataMode::Journal | DataMode::Selective));
    if all_data && engine.data_in_log() != DataInLog::All {
        let data = name_of(DATA, modes.data.expect("checked above"));
        return Err(Error::Usage(format!("data={data} needs a journal, and the volume has none")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_name_and_a_number() {
        let mut choice = ModeChoice::default();
        assert_eq!(choice.or_default(), Modes::default());
        for (setting, value) in [
            ("data", "selective"),
            ("commit_writes", "two-step"),
            ("inode_update", "immediate"),
            ("timestamps", "delayed"),
            ("log_records", "sub-block"),
            ("fsync", "generation"),
        ] {
            assert_eq!(choice.set(setting, value), Ok(true));
            assert!(choice.names().contains(&(setting, Some(value))));
            assert_eq!(ModeChoice::from_numbers(choice.numbers()), choice);
        }
        assert_eq!(choice.set("data", "default"), Ok(true));
        assert_eq!(choice.data, None);
        assert_eq!(choice.set("speed", "high"), Ok(false));
        assert!(choice.set("data", "fast").unwrap_err().contains("writeback, ordered, journal"));
        assert_eq!(ModeChoice::from_numbers([99; MODE_SETTINGS]), ModeChoice::default());
    }

    #[test]
    fn modes_of_ext4_are_kept_where_ext4_has_them() {
        let mut sb = Superblock::zeroed();
        sb.set_default_mount_opts(0xC);
        for (data, bits) in [
            (DataMode::Journal, 0x20),
            (DataMode::Ordered, 0x40),
            (DataMode::Writeback, 0x60),
            (DataMode::Adaptive, 0),
            (DataMode::Selective, 0),
        ] {
            let modes = ModeChoice { data: Some(data), ..ModeChoice::default() };
            store(&mut sb, modes);
            assert_eq!(sb.default_mount_opts(), 0xC | bits);
            assert_eq!(sb.mode_record() == ModeRecord::Empty, bits != 0);
            assert_eq!(stored(&sb), modes);
        }
        // A later choice of tune2fs takes precedence.
        sb.set_default_mount_opts(0x40);
        assert_eq!(stored(&sb).data, Some(DataMode::Ordered));
    }
}
