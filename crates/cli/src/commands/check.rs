//! `xact check`: a full, read-only check of a volume.

use std::path::Path;

use serde::Serialize;
use xact::check::{Problem, Report};
use xact::device::OpenMode;
use xact::text::printable;
use xact::{Error, Site, volume_on};

use crate::args::Check;
use crate::exit::{Exit, Failure, Result};
use crate::image;
use crate::output::{print, print_json};
use crate::progress::Steps;
use crate::values::size_text as size;

#[derive(Debug, Serialize)]
struct Checked {
    image: String,
    sound: bool,
    /// All problems; `problems` may be truncated.
    problem_count: u64,
    problems: Vec<Found>,
    remarks: Vec<String>,
    files: u64,
    directories: u64,
    symlinks: u64,
    others: u64,
    used_blocks: u64,
    used_inodes: u64,
    /// For a volume with generations: the newest generation and the snapshots.
    generations: u64,
}

#[derive(Debug, Serialize)]
struct Found {
    /// `superblock`, `journal`, `root`, `group`, `inode` or `block`.
    kind: &'static str,
    /// Number of the group, inode or block.
    number: Option<u64>,
    what: String,
}

pub fn check(args: &Check) -> Result<()> {
    let device = image::open(&args.image, OpenMode::ReadOnly)?;
    let device_bytes = device.size_bytes();
    let has_generations = volume_on(&*device).is_ok_and(|found| found.has_generations);
    drop(device);
    let report = report_of(&args.image, &mut |_, _| {})?;
    if args.json {
        print_json(&Checked::of(args, &report))?;
    } else {
        print(&sentences(args, &report, device_bytes))?;
    }
    if report.is_sound() {
        return Ok(());
    }
    Err(damaged(&args.image, report.problem_count, has_generations))
}

/// Checks the volume. `progress` is called with each step and the share of it that is done.
pub fn report_of(image: &Path, progress: &mut dyn FnMut(&str, f64)) -> Result<Report> {
    let device = image::open(image, OpenMode::ReadOnly)?;
    let mut steps = Steps::new();
    let checked = xact::check::check(device, &mut |step, share| {
        steps.at(step, share);
        progress(step, share);
    });
    match checked {
        // The volume is too damaged to continue; this is a finding too.
        Err(Error::Corrupt(found)) => {
            let problem = Problem { site: found.site, what: found.what.into() };
            Ok(Report { problems: vec![problem], problem_count: 1, ..Report::default() })
        }
        result => result.map_err(|e| Failure::volume(image, e)),
    }
}

/// The failure for a damaged volume.
pub fn damaged(image: &Path, count: u64, has_generations: bool) -> Failure {
    let name = image.display();
    let message = format!("{name}: {count} problem{} found", if count == 1 { "" } else { "s" });
    let hint = match has_generations {
        false => "Repair it with 'e2fsck -f IMG'.",
        true => {
            "e2fsck cannot repair a volume with generations. Restore an intact snapshot, or save what is \
             left with 'xact snapshot export --best-effort IMG OUT'."
        }
    };
    Failure::new(Exit::Damaged, message).hint(hint)
}

/// A line for each problem and remark.
pub fn problems(report: &Report) -> String {
    let mut text = String::new();
    for problem in &report.problems {
        text += &format!("{}\n", printable(&problem.to_string()));
    }
    let left_out = report.problem_count - report.problems.len() as u64;
    if left_out > 0 {
        text += &format!("... and {left_out} more\n");
    }
    for remark in &report.remarks {
        text += &format!("note: {}\n", printable(&remark.to_string()));
    }
    text
}

fn sentences(args: &Check, report: &Report, device_bytes: u64) -> String {
    let mut text = problems(report);
    let totals = report.totals;
    text += &format!(
        "{}: {}, {} files, {} directories, {} symbolic links, {} others\n",
        args.image.display(),
        size(device_bytes),
        totals.files,
        totals.directories,
        totals.symlinks,
        totals.others
    );
    match report.generations {
        0 | 1 => {}
        2 => text += "1 snapshot, also checked\n",
        more => text += &format!("{} snapshots, also checked\n", more - 1),
    }
    text
}

impl Checked {
    fn of(args: &Check, report: &Report) -> Checked {
        let totals = report.totals;
        Checked {
            image: args.image.display().to_string(),
            sound: report.is_sound(),
            problem_count: report.problem_count,
            problems: report.problems.iter().map(Found::of).collect(),
            remarks: report.remarks.clone(),
            files: totals.files,
            directories: totals.directories,
            symlinks: totals.symlinks,
            others: totals.others,
            used_blocks: totals.used_blocks,
            used_inodes: totals.used_inodes,
            generations: report.generations,
        }
    }
}

impl Found {
    fn of(problem: &Problem) -> Found {
        let (kind, number) = match problem.site {
            Site::Superblock => ("superblock", None),
            Site::JournalSuperblock => ("journal", None),
            Site::Root => ("root", None),
            Site::Group(group) => ("group", Some(group.0.into())),
            Site::Inode(ino) => ("inode", Some(ino.0.into())),
            Site::Block(block) => ("block", Some(block.0)),
        };
        Found { kind, number, what: problem.what.clone() }
    }
}
