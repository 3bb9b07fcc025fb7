//! `make bench` and `make bench-papers`: xact, kernel ext4 and others on the same loop device, in
//! turns, each time on a new volume. Reports rates, ratios, and the device's own counts of each
//! system's requests.

mod counts;
mod loads;
mod memory;
mod papers;
mod report;
mod rounds;
mod samples;
mod system;
mod volume;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use loads::Load;
use papers::Figure;
use report::{Report, html};
use rounds::Rounds;
use samples::Samples;
use system::Server;
use volume::{Device, Result};

/// Measures xact beside kernel ext4 and fuse2fs, in turns on one loop device
#[derive(Parser)]
#[command(name = "xact-bench", max_term_width = 100)]
struct Options {
    /// Measure the figures of the five papers instead of the everyday loads
    #[arg(long)]
    papers: bool,
    /// Run one round at a tenth of the size
    #[arg(long)]
    quick: bool,
    /// Number of rounds in which the systems take turns [default: 3, or 5 for the papers' figures]
    #[arg(long)]
    rounds: Option<usize>,
    /// Size of the loads (numbers of files and operations, seconds of a run) as a fraction of the
    /// full size
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Continue an interrupted run that had the same options
    #[arg(long)]
    resume: bool,
    /// Run only these loads; --list names them
    #[arg(long, value_name = "NAME")]
    load: Vec<String>,
    /// Run only these systems; --list names them
    #[arg(long, value_name = "NAME")]
    system: Vec<String>,
    /// List the loads and the systems that take turns in each
    #[arg(long)]
    list: bool,
    /// Folder for the image and the reports
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
    /// The program to measure
    #[arg(long, value_name = "PATH", default_value = "target/release/xact")]
    xact: PathBuf,
    /// Another version of it, which takes turns with it in the loads of `make bench`, as the system
    /// 'before'
    #[arg(long, value_name = "PATH", conflicts_with = "papers")]
    before: Option<PathBuf>,
}

const VOLUME_BYTES: u64 = 4 << 30;
/// A thousand files of 4 MiB, and spare space.
const PAPERS_VOLUME_BYTES: u64 = 8 << 30;

fn main() -> ExitCode {
    match bench(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("xact-bench: {why}");
            ExitCode::FAILURE
        }
    }
}

/// False if a load failed on a system; the others are reported all the same.
fn bench(options: &Options) -> Result<bool> {
    let known: Vec<&'static Load> = match options.papers {
        true => papers::all().map(|figure| &figure.load).collect(),
        false => loads::ALL.iter().collect(),
    };
    if options.list {
        for load in known {
            let systems: Vec<&str> = load.systems.iter().map(|s| s.name).collect();
            println!("{:<16}{}", load.name, systems.join("; "));
        }
        return Ok(true);
    }
    let chosen = choose(options, &known)?;
    std::fs::create_dir_all(&options.out).map_err(|e| format!("{}: {e}", options.out.display()))?;
    let out = options.out.canonicalize().map_err(|e| format!("{}: {e}", options.out.display()))?;
    let xact = options.xact.canonicalize().unwrap_or_else(|_| options.xact.clone());
    let measures_xact = chosen.iter().flat_map(|l| l.systems).any(|s| s.server == Server::Xact);
    if measures_xact && !xact.exists() {
        return Err(format!("{} does not exist: build it with 'make build'", xact.display()));
    }
    let before = options
        .before
        .as_ref()
        .map(|path| path.canonicalize().map_err(|e| format!("{}: {e}", path.display())));
    let before = before.transpose()?;
    let size = if options.papers { PAPERS_VOLUME_BYTES } else { VOLUME_BYTES };
    let device = Device::new(&out.join("volume.bin"), size, system::Source::Loop)?;
    println!("{} on {}", device.image().display(), device.path().display());
    let usual = options.rounds.unwrap_or(if options.papers { 5 } else { 3 });
    let (rounds, scale) = if options.quick { (1, 0.1) } else { (usual, options.scale) };
    let samples = Samples::open(&out, scale, options.resume)?;
    let mut run = Rounds {
        rounds,
        scale,
        systems: &options.system,
        device,
        out: &out,
        xact: &xact,
        before: before.as_deref(),
        samples,
    };
    let how = format!("{rounds} rounds at {scale} of the full size; medians over the rounds.");
    let save = |report: &Report, failures: &[String]| -> Result<()> {
        write(&out.join("report.txt"), &text(options.papers, report, failures))?;
        write(&out.join("report.json"), &report.json())?;
        if options.papers {
            let figures: Vec<&Figure> = papers::all().collect();
            write(&out.join("report.html"), &html::page(report, &figures, &how, failures))?;
        }
        Ok(())
    };
    let (report, failures) = run.run(&chosen, save)?;
    print!("{}", text(options.papers, &report, &failures));
    println!("report.txt and others are in {}", out.display());
    Ok(failures.is_empty())
}

fn choose(options: &Options, known: &[&'static Load]) -> Result<Vec<&'static Load>> {
    if let Some(name) = options.load.iter().find(|n| !known.iter().any(|l| l.name == **n)) {
        return Err(format!("no load is called {name}: --list names them"));
    }
    let has = |name: &String| known.iter().flat_map(|l| l.systems).any(|s| s.name == name);
    if let Some(name) = options.system.iter().find(|n| !has(n)) {
        return Err(format!("no system is called '{name}': --list names them"));
    }
    let wanted = |l: &&&Load| options.load.is_empty() || options.load.iter().any(|n| n == l.name);
    Ok(known.iter().filter(wanted).copied().collect())
}

fn text(of_papers: bool, report: &Report, failures: &[String]) -> String {
    let failed: String = failures.iter().map(|f| format!("FAILED {f}\n")).collect();
    let claims = if of_papers { papers::verdicts(report) } else { String::new() };
    report.table() + &failed + &claims
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}
