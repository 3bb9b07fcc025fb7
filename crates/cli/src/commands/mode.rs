//! `xact mode`: how a volume is journaled where a mount does not say otherwise.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use xact::{ModeChoice, Modes, Volume, VolumeOptions};
use xact_consistency::EngineOptions;
use xact_device::OpenMode;
use xact_fs::modes;
use xact_layout::superblock::Superblock;

use crate::args::{Mode, ModeCommand, ModeGet, ModeSet};
use crate::exit::{Failure, Result};
use crate::output::{print, print_json};
use crate::{control, image, mounts};

pub fn mode(args: &Mode) -> Result<()> {
    match &args.command {
        ModeCommand::Get(args) => get(args),
        ModeCommand::Set(args) => set(args),
    }
}

/// By the name of the setting.
type Values = BTreeMap<&'static str, Option<&'static str>>;

/// Where the value that counts comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Source {
    /// A mount option.
    Option,
    /// The volume.
    Volume,
    /// Nobody says anything else.
    Default,
    /// The volume said so, or said nothing, when it was mounted, and does not any more.
    BeforeMount,
}

#[derive(Debug, Serialize)]
struct Told {
    /// What the volume asks for; null: nothing.
    volume: Values,
    /// What counts: of a mount what it was mounted with, else what a mount without options would have.
    effective: Values,
    /// Why.
    source: BTreeMap<&'static str, Source>,
    mounted: bool,
}

fn get(args: &ModeGet) -> Result<()> {
    let (stored, effective, options, mounted) = if args.at.is_dir() {
        let point = mounts::containing(&args.at)?.point;
        let (stored, effective) = control::modes(&point)?;
        (stored, effective, control::mode_options(&point)?, true)
    } else {
        let stored = modes::stored(&superblock(&args.at)?);
        (stored, stored.or_default().into(), ModeChoice::default(), false)
    };
    let settings = settings(stored, effective, options);
    if args.json {
        let values = |choice: ModeChoice| choice.names().into_iter().collect();
        return print_json(&Told {
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
    /// What the volume says.
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
            (Source::Option, None) => "by a mount option; the volume says nothing".to_owned(),
            (Source::Volume, _) => "as the volume says".to_owned(),
            (Source::Default, _) => "by default".to_owned(),
            (Source::BeforeMount, Some(stored)) => format!("{said} {stored}"),
            (Source::BeforeMount, None) => format!("{said} {}, by default", self.default),
        };
        format!("{:<14}{:<11}{why}\n", self.name, self.effective)
    }
}

/// The superblock of a volume that is not mounted, as the replay of its log would leave it.
fn superblock(image: &Path) -> Result<Superblock> {
    let wrong = |e| Failure::volume(image, e);
    let device = image::open(image, OpenMode::ReadOnly)?;
    let device = Arc::new(xact_device::Overlay::new(device));
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let engine = xact_consistency::open(device.clone(), options).map_err(wrong)?;
    let home = xact_consistency::recovered_superblock(&(device as _), &EngineOptions::default());
    xact_fs::superblock::read(&engine, &home.map_err(wrong)?).map_err(wrong)
}

fn set(args: &ModeSet) -> Result<()> {
    let apply = |mut choice: ModeChoice| -> Result<ModeChoice> {
        for (name, value) in &args.settings {
            let known =
                choice.set(name, value).map_err(|e| Failure::usage(format!("{name}={value}: {e}")))?;
            if !known {
                let names: Vec<&str> = choice.names().into_iter().map(|(name, _)| name).collect();
                return Err(Failure::usage(format!(
                    "there is no setting '{name}'; there are {}",
                    names.join(", ")
                )));
            }
        }
        Ok(choice)
    };
    // What is wrong with the call is told before anything is opened.
    apply(ModeChoice::default())?;
    if args.at.is_dir() {
        let point = mounts::containing(&args.at)?.point;
        let (stored, _) = control::modes(&point)?;
        return control::set_modes(&point, apply(stored)?);
    }
    let wrong = |e| Failure::volume(&args.at, e);
    let device = image::open(&args.at, OpenMode::ReadWrite)?;
    let volume = Volume::open(device, &VolumeOptions::default()).map_err(wrong)?;
    let stored = volume
        .stored_modes()
        .map_err(wrong)
        .and_then(apply)
        .and_then(|modes| volume.store_modes(modes).map_err(wrong));
    volume.close().map_err(wrong)?;
    stored
}
