//! The table of settings as long options, as help and as docs/SETTINGS.md.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use xact::RetentionPolicy;
use xact::settings::{Form, Id, Kind, Preset, SETTINGS, Scope, Setting, Value};

/// The long options of `xact mount` that are settings.
#[derive(Debug, Clone)]
pub struct LongOptions {
    /// The values that are set or have a default; no value is the default.
    pub values: Vec<(Id, Option<Value>)>,
    pub snapshot_retain: RetentionPolicy,
    /// Whether the command line has one of them.
    pub any_given: bool,
}

/// A parsed value.
#[derive(Debug, Clone, Copy)]
struct Parsed(Option<Value>);

fn long_options() -> impl Iterator<Item = (&'static Setting, &'static str)> {
    SETTINGS.iter().filter_map(|setting| match setting.form {
        Form::Long(long) | Form::Both(long) => Some((setting, long)),
        Form::Option => None,
    })
}

fn argument(setting: &'static Setting, long: &'static str) -> Arg {
    let (help, notes) = (setting.help, setting.notes);
    let (help, preset) = match setting.default {
        Preset::Value(_) => (help.to_owned(), Some(setting.default_text())),
        Preset::Rule(rule) => (format!("{help} [default: {rule}]"), None),
    };
    let argument = Arg::new(setting.name).long(long).value_name(setting.placeholder());
    let argument = match setting.kind {
        Kind::Policy => argument.value_parser(str::parse::<RetentionPolicy>),
        _ => argument.value_parser(move |text: &str| setting.parse(text).map(Parsed)),
    };
    let argument = match setting.id {
        Id::SnapshotRetain => argument.alias("snapshot-keep").requires(Id::SnapshotEvery.setting().name),
        _ => argument,
    };
    let argument = match notes {
        "" => argument,
        notes => argument.long_help(format!("{help}.\n\n{notes}")),
    };
    argument.help(help).default_values(preset)
}

impl Args for LongOptions {
    fn augment_args(command: Command) -> Command {
        command.args(long_options().map(|(setting, long)| argument(setting, long)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        LongOptions::augment_args(command)
    }
}

impl FromArgMatches for LongOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<LongOptions, clap::Error> {
        let values = long_options().filter(|(setting, _)| !matches!(setting.kind, Kind::Policy));
        let values = values.filter_map(|(setting, _)| {
            let Parsed(value) = matches.get_one::<Parsed>(setting.name)?;
            Some((setting.id, *value))
        });
        let retain = matches.get_one::<RetentionPolicy>(Id::SnapshotRetain.setting().name);
        let given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        Ok(LongOptions {
            values: values.collect(),
            snapshot_retain: retain.copied().unwrap_or_default(),
            any_given: long_options().any(|(setting, _)| given(setting.name)),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = LongOptions::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The mount options, in the order of the table.
pub fn options() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| !matches!(setting.form, Form::Long(_)))
}

/// The modes, in the order of the table.
pub fn modes() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| is_mode(setting))
}

pub fn is_mode(setting: &Setting) -> bool {
    matches!(setting.scope, Scope::Volume { .. })
}

/// How an option is written: `commit=TIME`, `discard, nodiscard`.
pub fn synopsis(setting: &Setting) -> String {
    let named = setting.kind.has_name().then(|| format!("{}={}", setting.name, setting.placeholder()));
    let words = setting.option_words().into_iter().map(str::to_owned);
    named.into_iter().chain(words).collect::<Vec<_>>().join(", ")
}

/// The text of a setting: its meaning and its default.
pub fn meaning(setting: &Setting) -> String {
    match setting.kind {
        Kind::Flag { off: None, .. } => format!("{}.", setting.help),
        _ => format!("{} [default: {}].", setting.help, setting.default_text()),
    }
}

/// Help of `xact mount -o`.
pub fn options_help() -> String {
    let mut text = "Mount options, separated by commas.".to_owned();
    for setting in options() {
        text += &format!("\n\n{}: {}", synopsis(setting), meaning(setting));
        if is_mode(setting) {
            text += " See 'xact mode --help'.";
            continue;
        }
        for word in setting.words() {
            text += &format!(" {}: {}.", word.word, lower(word.help));
        }
        if !setting.notes.is_empty() {
            text += &format!(" {}", setting.notes);
        }
    }
    text + "\n\nOther options of ext4(5) and mount(8) have no effect or are refused with the reason."
}

/// Help of `xact mode`, without the list of modes.
pub fn modes_introduction() -> &'static str {
    "Show or set how a volume is journaled\n\n\
         A volume keeps its modes, and a mount uses them unless its options (-o NAME=VALUE) override them. A mode that \
         is set by neither has its default. ext4's own journal modes are stored where Linux and tune2fs have them, so \
         Linux uses them too; the others are stored where Linux and e2fsck ignore them."
}

/// Help of `xact mode`.
pub fn modes_help() -> String {
    let mut text = modes_introduction().to_owned();
    for setting in modes() {
        text += &format!("\n\n{}: {}", setting.name, meaning(setting));
        for word in setting.words() {
            text += &format!("\n  {}: {}.", word.word, lower(word.help));
        }
        if !setting.notes.is_empty() {
            text += &format!("\n{}", setting.notes);
        }
    }
    text
}

/// A sentence that continues another one.
pub fn lower(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map_or(String::new(), |first| first.to_lowercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use xact::settings::{Bare, FOREIGN_OPTIONS, Verdict, Zero};
    use xact::units::duration_text;

    use super::*;

    /// The values of a setting in words, with their limits.
    fn values(setting: &Setting) -> String {
        let zero = |zero| if zero == Zero::Default { "; 0: the default" } else { "" };
        match setting.kind {
            Kind::Choice(words) | Kind::Words(words) => {
                words.iter().map(|word| format!("`{}`", word.word)).collect::<Vec<_>>().join(", ")
            }
            Kind::Flag { on, off } => [Some(on), off]
                .into_iter()
                .flatten()
                .map(|word| format!("`{word}`"))
                .collect::<Vec<_>>()
                .join(", "),
            Kind::Duration { min, max, bare, zero: at_zero } => {
                let range = match max {
                    Duration::MAX => format!("at least {}", duration_text(min)),
                    max => format!("{} to {}", duration_text(min), duration_text(max)),
                };
                let bare = if bare == Bare::Seconds { "; without a unit, seconds" } else { "" };
                format!("duration, {range}{bare}{}", zero(at_zero))
            }
            Kind::Size => "size".into(),
            Kind::Count { min, max, zero: at_zero, .. } => format!("number, {min} to {max}{}", zero(at_zero)),
            Kind::Percent => "percentage, 1 to 100".into(),
            Kind::Policy => "retention policy".into(),
        }
    }

    /// The contents of docs/SETTINGS.md.
    fn markdown() -> String {
        let mut text = "# Settings\n\n\
            This page is generated from the table in `crates/types/src/settings/table.rs`, as are the help of `xact mount` and\n\
            `xact mode` and their manual pages. After a change of the table, `UPDATE_DOCS=1 cargo test -p xact-cli settings`\n\
            writes this page again.\n\n\
            A *mode* is a mount option (`xact mount -o NAME=VALUE`) and can also be kept on the volume (`xact mode set VOLUME\n\
            NAME=VALUE`), in an entry of a record in the superblock ([FORMAT](FORMAT.md#a-volumes-own-modes)). The mount option\n\
            counts, else the value on the volume, else the default. The mount option `NAME=default` leaves the choice to the\n\
            volume; `xact mode set VOLUME NAME=default` removes the value from the volume. All other settings last as long as\n\
            the mount.\n\n\
            A *size* is a number of bytes, or a number with K, M, G or T (powers of 1024), such as `512M` or `1.5G`. A\n\
            *duration* is a number with ms, s, m, h, d or w, such as `500ms`, `5s`, `12h` or `4w`. A *retention policy* is a list\n\
            of rules such as `last=3,daily=7,within=2d`; see `xact snapshot prune --help`.\n\n\
            | setting | values | default | given as | kept | meaning |\n|---|---|---|---|---|---|\n"
            .to_owned();
        for setting in &SETTINGS {
            let option = match setting.kind.has_name() {
                true => format!("`-o {}=`", setting.name),
                false => "`-o`".to_owned(),
            };
            let given = match setting.form {
                Form::Option => option,
                Form::Long(long) => format!("`--{long}`"),
                Form::Both(long) => format!("{option}, `--{long}`"),
            };
            let kept = match setting.scope {
                Scope::Mount => "mount".to_owned(),
                Scope::Volume { position } => format!("mount; volume, entry {position} of the record"),
            };
            let default = match setting.default {
                Preset::Value(_) => format!("`{}`", setting.default_text()),
                Preset::Rule(rule) => rule.to_owned(),
            };
            text += &format!(
                "| `{}` | {} | {default} | {given} | {kept} | {} |\n",
                setting.name,
                values(setting),
                setting.help
            );
        }
        text += "\n## Values and notes\n";
        for setting in SETTINGS.iter().filter(|setting| {
            !setting.words().is_empty() || !setting.notes.is_empty() || !setting.aliases.is_empty()
        }) {
            text += &format!("\n**{}**: {}. {}\n", setting.name, setting.help, setting.notes);
            text = text.replace(" \n", "\n");
            if !setting.words().is_empty() {
                text.push('\n');
            }
            for word in setting.words() {
                text += &format!("- `{}`: {}.\n", word.word, lower(word.help));
            }
            for (alias, value) in setting.aliases {
                let value = setting.text_of(*value);
                let of = if setting.kind.has_name() { format!("{}={value}", setting.name) } else { value };
                text += &format!("\n`{alias}` is another name of `{of}`.\n");
            }
        }
        text
    }

    #[test]
    fn the_page_of_settings_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/SETTINGS.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap();
        assert!(page == markdown(), "docs/SETTINGS.md is stale: see its head for the command that writes it");
    }

    /// The table in docs/guide/settings.md.
    fn table_of_options() -> String {
        let row = |option: &str, verdict, why: &str| format!("| {option} | {verdict} | {why} |\n");
        let code = |words: &[String]| {
            words.iter().map(|word| format!("`{}`", word.replace('|', "\\|"))).collect::<Vec<_>>().join(", ")
        };
        let mut text = "| option | | meaning or reason |\n|---|---|---|\n".to_owned();
        for setting in options() {
            let words: Vec<String> = synopsis(setting).split(", ").map(str::to_owned).collect();
            text += &row(&code(&words), "works", setting.help);
        }
        for verdict in [Verdict::NoEffect, Verdict::Refused] {
            for option in FOREIGN_OPTIONS.iter().filter(|option| option.verdict == verdict) {
                let words: Vec<String> = option.spellings.iter().map(|word| (*word).to_owned()).collect();
                let what = if verdict == Verdict::NoEffect { "no effect" } else { "**refused**" };
                text += &row(&code(&words), what, option.reason);
            }
        }
        text
    }

    #[test]
    fn the_guides_table_of_options_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/settings.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (head, rest) = page.split_once("<!-- options: ").unwrap();
        let (mark, rest) = rest.split_once("-->\n").unwrap();
        let (_, tail) = rest.split_once("<!-- end of options -->").unwrap();
        let wanted =
            format!("{head}<!-- options: {mark}-->\n\n{}\n<!-- end of options -->{tail}", table_of_options());
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &wanted).unwrap();
        } else {
            assert!(
                page == wanted,
                "docs/guide/settings.md is stale: UPDATE_DOCS=1 cargo test -p xact-cli settings"
            );
        }
    }

    #[test]
    fn help_has_every_option_and_value() {
        let help = options_help();
        for setting in options() {
            assert!(help.contains(&format!("\n\n{}: ", synopsis(setting))), "{}", setting.name);
        }
        let help = modes_help();
        for setting in modes() {
            for word in setting.words() {
                assert!(help.contains(&format!("\n  {}: ", word.word)), "{}", word.word);
            }
        }
    }
}
