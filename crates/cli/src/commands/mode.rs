//! `xact mode`: the modes of a volume, which a mount uses unless its options differ.

use std::collections::BTreeMap;

use serde::Serialize;
use xact::device::OpenMode;
use xact::{ModeChoice, Modes};

use super::file_mode;
use crate::args::{Mode, ModeCommand, ModeGet, ModeSet, setting};
use crate::exit::{Failure, Result};
use crate::output::{print, print_json};
use crate::{control, image, mounts};

pub fn mode(args: &Mode) -> Result<()> {
    match &args.command {
        ModeCommand::Get(args) if args.file => file_mode::get(args),
        ModeCommand::Get(args) => get(args),
        ModeCommand::Set(args) if args.file => file_mode::set(args),
        ModeCommand::Set(args) => set(args),
        ModeCommand::Clear(args) => control::choose_file_mode(&args.at, None),
    }
}

/// Values by the name of the setting.
type Values = BTreeMap<&'static str, Option<&'static str>>;

/// The origin of the effective value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Source {
    /// A mount option.
    Option,
    /// The volume.
    Volume,
    /// The built-in default.
    Default,
    /// The volume's setting at the mount, which was changed since then.
    BeforeMount,
}

#[derive(Debug, Serialize)]
struct Report {
    /// The settings stored on the volume; null: not set.
    volume: Values,
    /// The settings of the mount, or those that a mount without options would have.
    effective: Values,
    source: BTreeMap<&'static str, Source>,
    mounted: bool,
}

fn get(args: &ModeGet) -> Result<()> {
    let (stored, effective, options, mounted) = if args.at.is_dir() {
        let point = mounts::containing(&args.at)?.point;
        let (stored, effective) = control::modes(&point)?;
        (stored, effective, control::mode_options(&point)?, true)
    } else {
        let device = image::open(&args.at, OpenMode::ReadOnly)?;
        let stored = xact::stored_modes(device).map_err(|e| Failure::volume(&args.at, e))?;
        (stored, stored.or_default().into(), ModeChoice::default(), false)
    };
    let settings = settings(stored, effective, options);
    if args.json {
        let values = |choice: ModeChoice| choice.names().into_iter().collect();
        return print_json(&Report {
            volume: values(stored),
            effective: values(effective),
            source: settings.iter().map(|setting| (setting.name, setting.source)).collect(),
            mounted,
        });
    }
    print(&settings.iter().map(Setting::line).collect::<String>())
}

/// One setting, and where its value comes from.
struct Setting {
    name: &'static str,
    effective: &'static str,
    /// The value stored on the volume.
    stored: Option<&'static str>,
    default: &'static str,
    source: Source,
}

fn settings(stored: ModeChoice, effective: ModeChoice, options: ModeChoice) -> Vec<Setting> {
    let default = ModeChoice::from(Modes::default());
    let all = effective.names().into_iter().zip(stored.names()).zip(options.names()).zip(default.names());
    all.map(|((((name, effective), (_, stored)), (_, option)), (_, default))| {
        let default = default.expect("each setting has a default");
        let effective = effective.unwrap_or(default);
        let source = match stored {
            _ if option.is_some() => Source::Option,
            Some(stored) if stored == effective => Source::Volume,
            None if effective == default => Source::Default,
            _ => Source::BeforeMount,
        };
        Setting { name, effective, stored, default, source }
    })
    .collect()
}

impl Setting {
    fn line(&self) -> String {
        let said = "since it was mounted; from the next mount on";
        let why = match (self.source, self.stored) {
            (Source::Option, Some(stored)) => format!("by a mount option; the volume says {stored}"),
            (Source::Option, None) => "by a mount option; the volume stores no value".to_owned(),
            (Source::Volume, _) => "as the volume says".to_owned(),
            (Source::Default, _) => "by default".to_owned(),
            (Source::BeforeMount, Some(stored)) => format!("{said} {stored}"),
            (Source::BeforeMount, None) => format!("{said} {}, by default", self.default),
        };
        format!("{:<14}{:<11}{why}\n", self.name, self.effective)
    }
}

fn set(args: &ModeSet) -> Result<()> {
    let settings = args.settings.iter().map(|text| setting(text)).collect::<Result<Vec<_>, String>>();
    let settings = settings.map_err(Failure::usage)?;
    // A wrong call fails before the volume is opened.
    apply(ModeChoice::default(), &settings)?;
    if args.at.is_dir() {
        let point = mounts::containing(&args.at)?.point;
        let (stored, _) = control::modes(&point)?;
        return control::set_modes(&point, apply(stored, &settings)?);
    }
    let device = image::open(&args.at, OpenMode::ReadWrite)?;
    // The settings were accepted above, and whether they are does not depend on the stored ones.
    xact::change_modes(device, |stored| apply(stored, &settings).unwrap_or(stored))
        .map_err(|e| Failure::volume(&args.at, e))
}

/// Sets these settings, by name and value.
fn apply(mut choice: ModeChoice, settings: &[(String, String)]) -> Result<ModeChoice> {
    for (name, value) in settings {
        let known = choice.set(name, value).map_err(|e| Failure::usage(format!("{name}={value}: {e}")))?;
        if !known {
            let names: Vec<&str> = choice.names().into_iter().map(|(name, _)| name).collect();
            let names = names.join(", ");
            return Err(Failure::usage(format!("unknown mode '{name}': expected {names}")));
        }
    }
    Ok(choice)
}
