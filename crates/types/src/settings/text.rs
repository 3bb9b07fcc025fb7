//! Settings and their values as text, for help, messages and pages.

use super::{Kind, Preset, Setting, Value};
use crate::units::{duration_text, size_text};

impl Setting {
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
}
