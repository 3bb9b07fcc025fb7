//! `xact mode`: how a volume is journaled where a mount does not say otherwise.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use xact::{ModeChoice, Volume, VolumeOptions};
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

#[derive(Debug, Serialize)]
struct Told {
    /// What the volume asks for; null: nothing.
    volume: Values,
    /// What counts: of a mount what it was mounted with, else what a mount without options would have.
    effective: Values,
    mounted: bool,
}

fn get(args: &ModeGet) -> Result<()> {
    let (stored, effective, mounted) = if args.at.is_dir() {
        let (stored, effective) = control::modes(&mounts::containing(&args.at)?.point)?;
        (stored, effective, true)
    } else {
        let stored = modes::stored(&superblock(&args.at)?);
        (stored, stored.or_default().into(), false)
    };
    if args.json {
        let values = |choice: ModeChoice| choice.names().into_iter().collect();
        return print_json(&Told { volume: values(stored), effective: values(effective), mounted });
    }
    let mut text = String::new();
    for ((name, effective), (_, stored)) in effective.names().into_iter().zip(stored.names()) {
        let effective = effective.unwrap_or("default");
        let why = match stored {
            Some(stored) if stored == effective => "as the volume says".to_owned(),
            Some(stored) => format!("by a mount option; the volume says {stored}"),
            None => "the volume says nothing".to_owned(),
        };
        text += &format!("{name:<14}{effective:<11}{why}\n");
    }
    print(&text)
}

/// The superblock of a volume that is not mounted, as the replay of its log would leave it.
fn superblock(image: &Path) -> Result<Superblock> {
    let wrong = |e| Failure::volume(image, e);
    let device = image::open(image, OpenMode::ReadOnly)?;
    let device = Arc::new(xact_device::Overlay::new(device));
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let engine = xact_consistency::open(device.clone(), options).map_err(wrong)?;
    let home = xact_consistency::recovered_superblock(&(device as _), &EngineOptions::default());
    xact_fs::superblock::read(&*engine, &home.map_err(wrong)?).map_err(wrong)
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
