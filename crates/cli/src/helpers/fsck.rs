//! `fsck.xact`, which fsck(8) and systemd call: replays the log, checks with `xact check`, and
//! leaves the repair of a damaged volume to e2fsck.
//!
//! xact itself repairs what a crash leaves: it replays the log and frees orphans. Damage that a
//! crash does not explain is found by `xact check` and repaired by e2fsck, where the volume has a
//! journal or none. After that, `xact check` looks again. e2fsck cannot repair a volume with
//! generations; its damage stays, with the advice that `xact check` gives.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use xact::check::Report;
use xact::device::OpenMode;
use xact::{Access, VolumeInfo};

use crate::args::Verbosity;
use crate::exit::{Exit, Failure, Result};
use crate::progress::{self, Format};
use crate::{commands, image, log, output, usage};

const NAME: &str = "fsck.xact";

/// Exit bits of fsck(8).
const CORRECTED: u8 = 1;
const UNCORRECTED: u8 = 4;
const FAILED: u8 = 8;
const USAGE: u8 = 16;
/// Passes of e2fsck: readers of `-C` expect numbers up to this one.
const PASSES: u32 = 5;
/// The total of a line of `-C`.
const WHOLE: u64 = 1000;

const HELP: &str = "\
Exit codes, of which several can be added:
  0    the volume is sound
  1    errors were corrected
  4    errors are left
  8    the volume could not be checked
  16   wrong usage";

/// Check a volume, and repair it, for fsck(8)
///
/// Replays the log that a crash left. Reads no further if the volume is clean then and has no
/// errors noted. Otherwise, and with -f or -n, checks the volume as 'xact check' does. If that
/// finds damage, e2fsck repairs it, and the volume is checked again. e2fsck cannot repair a volume
/// with generations: then the damage is left, and the message says what can be saved. The volume
/// must not be mounted.
#[derive(Debug, Parser)]
#[command(name = NAME, version, disable_version_flag = true, max_term_width = 100, after_long_help = HELP)]
pub struct Fsck {
    /// The image file or block device.
    #[arg(value_name = "IMG", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Repair without questions what is safe to repair, for the start of the system; also -p.
    #[arg(short = 'a', visible_short_alias = 'p', conflicts_with_all = ["yes", "no"])]
    preen: bool,
    /// Repair everything; answer yes to all questions of e2fsck.
    #[arg(short = 'y', conflicts_with = "no")]
    yes: bool,
    /// Change nothing: check the volume in the state that a replay of its log would give.
    #[arg(short = 'n')]
    no: bool,
    /// Repair interactively: e2fsck asks. This is the default.
    #[arg(short = 'r', conflicts_with_all = ["preen", "yes", "no"])]
    interactive: bool,
    /// Check the volume even if it is clean.
    #[arg(short = 'f')]
    force: bool,
    /// Write the progress to this descriptor, in lines as e2fsck writes them; 0: show a bar.
    #[arg(short = 'C', value_name = "FD")]
    progress: Option<i32>,
    /// Print the version.
    #[arg(short = 'V')]
    version: bool,
    /// No effect, as of -l, -M and -t: no title is printed, and the volume is always locked.
    #[arg(short = 'T', visible_short_aliases = ['l', 'M', 't'], action = clap::ArgAction::Count)]
    for_fsck: u8,
    #[command(flatten)]
    verbosity: Verbosity,
}

pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    // Alone, without a device.
    if args == ["-V"] {
        eprintln!("{NAME} {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let request = match Fsck::try_parse_from(std::iter::once(NAME.into()).chain(args)) {
        Ok(request) => request,
        Err(error) => {
            let code = usage::print_for(NAME, &error);
            return ExitCode::from(if code == 0 { 0 } else { USAGE });
        }
    };
    let bits = request.check_and_repair().unwrap_or_else(|failure| {
        output::error(NAME, &failure);
        FAILED
    });
    ExitCode::from(bits)
}

/// The line that e2fsck prints about a clean volume.
fn clean(image: &Path, info: &VolumeInfo) -> String {
    let block = u64::from(info.block_size_bytes).max(1);
    format!(
        "{}: clean, {}/{} files, {}/{} blocks\n",
        image.display(),
        info.inodes.saturating_sub(info.free_inodes),
        info.inodes,
        info.size_bytes.saturating_sub(info.free_bytes) / block,
        info.size_bytes / block
    )
}

impl Fsck {
    /// The exit bits.
    fn check_and_repair(&self) -> Result<u8> {
        output::set_quiet(self.verbosity.quiet);
        let is_quiet = self.verbosity.quiet || self.progress.is_some_and(|fd| fd > 0);
        progress::configure(Format::Auto, is_quiet);
        log::install(&self.verbosity, false)?;
        let name = self.image.display();
        if self.version {
            eprintln!("{NAME} {}", env!("CARGO_PKG_VERSION"));
        }
        // Fails if the volume is in use.
        drop(image::open(&self.image, if self.no { OpenMode::ReadOnly } else { OpenMode::ReadWrite })?);
        // Damaged past reading: the check says more.
        let mut info = VolumeInfo::read(&self.image).ok();
        if let Some(Access::Unsupported(why)) = info.as_ref().map(|info| &info.access) {
            return Err(Failure::new(Exit::Unsupported, format!("{name}: {why}")));
        }
        // Without a log nothing can be replayed, and only a check shows that the volume is sound.
        let has_log = |info: &VolumeInfo| info.journal || info.generations;
        if !self.no && info.as_ref().is_some_and(|info| !info.clean && has_log(info)) {
            self.recover()?;
            info = VolumeInfo::read(&self.image).ok();
        }
        if let Some(info) = info.as_ref().filter(|info| info.clean && !self.force)
            && !self.no
        {
            output::print(&clean(&self.image, info))?;
            return Ok(0);
        }
        let report = self.check()?;
        let notes_errors = info.as_ref().is_some_and(|info| info.errors_noted);
        if report.is_sound() && (self.no || !notes_errors) {
            return Ok(0);
        }
        let has_generations = info.as_ref().is_some_and(|info| info.generations);
        if self.no || has_generations {
            output::error(NAME, &commands::damaged(&self.image, report.problem_count, has_generations));
            return Ok(UNCORRECTED);
        }
        let code = self.run_e2fsck()?;
        if code & !(CORRECTED | 2) != 0 {
            return Ok(code);
        }
        let left = self.check()?;
        if left.is_sound() {
            return Ok(code);
        }
        output::error(NAME, &commands::damaged(&self.image, left.problem_count, false));
        Ok(code | UNCORRECTED)
    }

    /// Replays the log. What keeps it from being replayed is damage, which the check names.
    fn recover(&self) -> Result<()> {
        let name = self.image.display();
        match xact::recover(image::open(&self.image, OpenMode::ReadWrite)?) {
            Ok(report) if report.replayed => {
                output::print(&format!("{name}: replayed {} commits\n", report.transactions))
            }
            Ok(report) if report.intent_log_blocks > 0 => output::print(&format!(
                "{name}: wrote a generation with {} blocks of the intent log\n",
                report.intent_log_blocks
            )),
            Ok(_) => output::print(&format!("{name}: was not unmounted cleanly\n")),
            Err(error @ xact::Error::Corrupt(_)) => output::print(&format!("{name}: {error}\n")),
            Err(error) => Err(Failure::volume(&self.image, error)),
        }
    }

    /// Checks the volume and prints the problems.
    fn check(&self) -> Result<Report> {
        let mut lines = self.progress.filter(|fd| *fd > 0).map(|fd| {
            // A descriptor that this process inherited. Without a reader there is no progress.
            OpenOptions::new().append(true).open(format!("/proc/self/fd/{fd}")).ok()
        });
        let (mut pass, mut last) = (0, String::new());
        let name = self.image.display().to_string();
        let report = commands::report_of(&self.image, &mut |step, share| {
            let Some(Some(out)) = &mut lines else { return };
            if last != step {
                pass = (pass + 1).min(PASSES);
                last = step.to_owned();
            }
            let done = (share.clamp(0.0, 1.0) * WHOLE as f64) as u64;
            // The check does not depend on the reader.
            let _ = writeln!(out, "{pass} {done} {WHOLE} {name}");
        })?;
        output::print(&commands::problems(&report))?;
        Ok(report)
    }

    /// Runs e2fsck; returns its exit bits.
    fn run_e2fsck(&self) -> Result<u8> {
        let how = match self {
            Fsck { preen: true, .. } => Some("-p"),
            Fsck { yes: true, .. } => Some("-y"),
            _ => None,
        };
        output::print(&format!("{}: repaired by e2fsck:\n", self.image.display()))?;
        let path = std::env::var("PATH").unwrap_or_default();
        let status = Command::new("e2fsck")
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .arg("-f")
            .args(how)
            .arg(&self.image)
            .status()
            .map_err(|e| Failure::system("run e2fsck", e).hint("Install the package e2fsprogs."))?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED))
    }
}
