//! The volume's modes: each choice of journaling is a separate setting, with a name for each value.
//! The names are those of the table of settings ([`xact_types::settings`]).
//!
//! A setting comes from the opener ([`VolumeOptions::modes`](crate::VolumeOptions)), else from the
//! volume, else from the built-in default. The volume stores settings in its superblock: ext4's own
//! journal modes in `s_default_mount_opts`, where the kernel and tune2fs have them too, and the
//! others in xact's own record ([`xact_layout::mode_record`]).
//!
//! A new mode is a row of the table of settings, its values here, and its effect in
//! `live::data::data_mode` or in the engine.

use xact_consistency::{CommitWrites, DataInLog, Engine, Fsync, LogRecords};
use xact_layout::mode_record::{MODE_SETTINGS, ModeRecord};
use xact_layout::superblock::{
    DEFAULT_JMODE, DEFAULT_JMODE_DATA, DEFAULT_JMODE_ORDERED, DEFAULT_JMODE_WRITEBACK, Superblock,
};
use xact_types::settings::{Id, Scope, Value};
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
    /// As `Ordered`, but what a small sync overwrites goes through the journal, and so does all
    /// data of a small sync that must commit anyway. That limit depends on the file's write
    /// pattern (`live::data::writeback::write_pattern`).
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

/// The values of the settings, in the order of the words in the table.
const DATA: &[DataMode] =
    &[DataMode::Writeback, DataMode::Ordered, DataMode::Journal, DataMode::Selective, DataMode::Adaptive];
const COMMIT_WRITES: &[CommitWrites] = &[CommitWrites::TwoStep, CommitWrites::Single];
const WHEN: &[InodeUpdate] = &[InodeUpdate::Immediate, InodeUpdate::Delayed];
const LOG_RECORDS: &[LogRecords] = &[LogRecords::Block, LogRecords::SubBlock];
const FSYNC: &[Fsync] = &[Fsync::Generation, Fsync::Log, Fsync::File];

impl DataMode {
    pub(crate) fn position(self) -> usize {
        position_of(DATA, self)
    }

    pub(crate) fn at_position(position: usize) -> Option<DataMode> {
        DATA.get(position).copied()
    }
}

/// Defines [`Modes`] and [`ModeChoice`] with a field for each setting: its type, its row in the
/// table of settings, and its values. Names, defaults and positions in the record on disk come from
/// the table.
macro_rules! modes {
    ($($(#[$doc:meta])* $field:ident: $type:ty, $id:expr, $values:expr;)*) => {
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

        // Each word of the table has a value.
        $(const _: () = assert!($id.setting().words().len() == $values.len());)*

        impl Default for Modes {
            fn default() -> Modes {
                Modes { $($field: $values[$id.setting().default_choice()],)* }
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
                for id in [$($id),*] {
                    if id.setting().name == setting {
                        return Ok(self.apply(id, id.setting().parse(value)?));
                    }
                }
                Ok(false)
            }

            /// Sets one by its row in the table, or unsets it. False if it is not a mode.
            pub fn apply(&mut self, id: Id, value: Option<Value>) -> bool {
                let position = match value {
                    Some(Value::Choice(position)) => Some(position),
                    _ => None,
                };
                $(if id == $id {
                    self.$field = position.map(|at| $values[at]);
                    return true;
                })*
                false
            }

            /// The settings in order: name and value's name.
            pub fn names(&self) -> Vec<(&'static str, Option<&'static str>)> {
                vec![$({
                    let setting = $id.setting();
                    let name = |value| setting.words()[position_of($values, value)].word;
                    (setting.name, self.$field.map(name))
                }),*]
            }

            /// As numbers, by position in the record: 0 for a setting that is not set.
            pub fn numbers(&self) -> [u8; MODE_SETTINGS] {
                let mut numbers = [0; MODE_SETTINGS];
                $(if let Some(value) = self.$field {
                    numbers[record_position($id)] = 1 + position_of($values, value) as u8;
                })*
                numbers
            }

            /// Settings from numbers; unknown numbers are not set.
            pub fn from_numbers(numbers: [u8; MODE_SETTINGS]) -> ModeChoice {
                let value = |id| usize::from(numbers[record_position(id)]).checked_sub(1);
                ModeChoice { $($field: value($id).and_then(|at| $values.get(at).copied()),)* }
            }
        }
    };
}

modes! {
    /// The way in which file data reaches the device.
    data: DataMode, Id::Data, DATA;
    /// The writes of a commit to the journal.
    commit_writes: CommitWrites, Id::CommitWrites, COMMIT_WRITES;
    /// The time at which a write's size joins the journal.
    inode_update: InodeUpdate, Id::InodeUpdate, WHEN;
    /// The time at which a write's times join the journal.
    timestamps: InodeUpdate, Id::Timestamps, WHEN;
    /// The form in which a commit logs a changed block.
    log_records: LogRecords, Id::LogRecords, LOG_RECORDS;
    /// The effect of an fsync on a volume with generations.
    fsync: Fsync, Id::Fsync, FSYNC;
}

fn position_of<T: PartialEq>(values: &[T], value: T) -> usize {
    values.iter().position(|known| *known == value).expect("each value is in the list")
}

fn record_position(id: Id) -> usize {
    match id.setting().scope {
        Scope::Volume { position } => position,
        Scope::Mount => unreachable!("a mode is kept on the volume"),
    }
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
        let data = modes.names().into_iter().find_map(|(name, value)| value.filter(|_| name == "data"));
        let data = data.unwrap_or_default();
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
