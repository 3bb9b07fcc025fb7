//! `xact mode … --file`: the data mode of one file.

use serde::Serialize;
use xact::DataMode;

use crate::args::{ModeGet, ModeSet};
use crate::control;
use crate::exit::{Failure, Result};
use crate::output::{print, print_json};

#[derive(Debug, Serialize)]
struct Report {
    /// The mode that the file has of its own; null: none.
    own: Option<&'static str>,
    /// The mode in which its data is written, or that of new files in the folder.
    effective: &'static str,
    /// It is a folder, and the mode is that of new files in it.
    inherit: bool,
}

pub fn get(args: &ModeGet) -> Result<()> {
    let (own, effective) = control::file_mode(&args.at)?;
    let report = Report {
        own: own.map(DataMode::file_word),
        effective: effective.file_word(),
        inherit: args.at.is_dir(),
    };
    if args.json {
        return print_json(&report);
    }
    let why = match (report.own, report.inherit) {
        (Some(_), false) => "of the file itself",
        (Some(_), true) => "of new files and folders in it",
        (None, false) => "as the volume",
        (None, true) => "new files in it are written as the volume says",
    };
    print(&format!("data          {:<11}{why}\n", report.effective))
}

pub fn set(args: &ModeSet) -> Result<()> {
    let words = || DataMode::file_words().map(|(_, word)| word).collect::<Vec<_>>().join(", ");
    let [word] = &args.settings[..] else {
        return Err(Failure::usage(format!("a file has one data mode: expected one of {}", words())));
    };
    let mode = DataMode::from_file_word(word.as_bytes())
        .ok_or_else(|| Failure::usage(format!("invalid data mode '{word}': expected {}", words())))?;
    match (args.at.is_dir(), args.inherit) {
        (true, false) => Err(Failure::usage(format!(
            "{} is a folder, which has no data: '--inherit' sets the mode of new files in it",
            args.at.display()
        ))),
        (false, true) => {
            Err(Failure::usage(format!("{} is not a folder: '--inherit' is for folders", args.at.display())))
        }
        _ => control::choose_file_mode(&args.at, Some(mode)),
    }
}
