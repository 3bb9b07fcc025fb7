//! The parser of options and their values.

use std::time::Duration;

use super::{Bare, Form, Id, Kind, SETTINGS, Setting, Value, Zero, foreign};
use crate::units::{duration_text, parse_duration, parse_duration_or_seconds, parse_size};

/// Parses one option of `-o`: `WORD` or `NAME=VALUE`. No value: the default, by `NAME=default` or
/// by 0. An option of another program that has no effect here is returned as `defaults`.
///
/// Errors: the option does not exist, has no such value, or is refused with a reason.
pub fn parse_option(text: &str) -> Result<(Id, Option<Value>), String> {
    if let Some(verdict) = foreign::verdict(text) {
        return verdict.map(|()| (Id::Defaults, Some(Value::Flag(true))));
    }
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

    /// All options that stand for a value of their own, such as `ro` and `rw`.
    pub fn option_words(&self) -> Vec<&'static str> {
        let own = match self.kind {
            Kind::Words(words) => words.iter().map(|word| word.word).collect(),
            Kind::Flag { on, off } => [Some(on), off].into_iter().flatten().collect(),
            _ => Vec::new(),
        };
        own.into_iter().chain(self.aliases.iter().map(|(alias, _)| *alias)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Preset, Scope};

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
