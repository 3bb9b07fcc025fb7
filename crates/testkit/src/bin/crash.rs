//! The crash explorer from the command line: `make crash-long`, and lines that replay a finding.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

use xact_testkit::ace::{self, AceWorkload, Bounds};
use xact_testkit::blocks::BlockWorkload;
use xact_testkit::canaries::{self, Canary};
use xact_testkit::explorer::{Finding, Plan, Replay, Replayed, Subject, Summary, replay, report};
use xact_testkit::resume::Resume;
use xact_testkit::{tools, workloads};

const USAGE: &str = "\
usage: crash [--long] [--seeds N] [--seed N] [--resume FILE] [WORKLOAD...]
                                                               explore (all workloads if none is named)
       crash --ace N [--sample N] [--seed N] [SETTING...]      every sequence of N operations
       crash --ace N --resume FILE [--seed N] [SETTING...]     the same, in several runs
       crash --faults [NAME...]                                leave out each rule, or these, or in these
                                                               workloads, and show what notices it
       crash --replay 'LINE'                                   try the state of a finding again
       crash --list

  --long      explore as many states as the time allows, instead of a sample
  --seeds N   run each workload with seeds 1 to N (1; with --long 4)
  --seed N    use only this seed
  --sample N  explore N random sequences instead of all
  --resume FILE
              skip the cases that FILE names, and add the finished ones; rows cover all of them
";

const THREADS: usize = 2;

enum Job {
    Explore { plan: Plan, seeds: RangeInclusive<u64>, names: Vec<String>, resume: Option<PathBuf> },
    Ace { bounds: Vec<Bounds>, resume: Option<PathBuf> },
    Faults { names: Vec<String> },
    Replay(Replay),
    List,
    Help,
}

fn job() -> Result<Job, String> {
    let mut args = std::env::args().skip(1);
    let mut plan = Plan::quick();
    let (mut seeds, mut length, mut sample) = (None, None, None);
    let mut resume = None;
    let mut names = Vec::new();
    while let Some(arg) = args.next() {
        let number = |args: &mut dyn Iterator<Item = String>| -> Result<u64, String> {
            args.next().and_then(|v| v.parse().ok()).ok_or_else(|| format!("{arg} needs a number\n\n{USAGE}"))
        };
        match arg.as_str() {
            "--long" => plan = Plan::thorough(),
            "--seeds" => seeds = Some(1..=number(&mut args)?),
            "--seed" => {
                let seed = number(&mut args)?;
                seeds = Some(seed..=seed);
            }
            "--ace" => length = Some(number(&mut args)? as usize),
            "--resume" => {
                let file = args.next().ok_or_else(|| format!("--resume needs a file\n\n{USAGE}"))?;
                resume = Some(PathBuf::from(file));
            }
            "--sample" => sample = Some(number(&mut args)?),
            "--replay" => {
                let line = args.next().ok_or_else(|| format!("--replay needs a line\n\n{USAGE}"))?;
                return Ok(Job::Replay(line.parse()?));
            }
            "--faults" => return Ok(Job::Faults { names: args.collect() }),
            "--list" => return Ok(Job::List),
            "-h" | "--help" => return Ok(Job::Help),
            _ if arg.starts_with('-') => return Err(format!("unknown argument {arg}\n\n{USAGE}")),
            _ => names.push(arg),
        }
    }
    if resume.is_some() && sample.is_some() {
        return Err(format!("--resume is for all sequences, not for a sample\n\n{USAGE}"));
    }
    if let Some(length) = length {
        let seed = seeds.map_or(1, |seeds| *seeds.start());
        if let Some(name) = names.iter().find(|name| !ace::SETTINGS.contains(&name.as_str())) {
            return Err(format!("no setting is called {name}; there are: {}", ace::SETTINGS.join(" ")));
        }
        let chosen = |setting: &&str| names.is_empty() || names.iter().any(|name| name == setting);
        let bounds = ace::SETTINGS.into_iter().filter(chosen);
        let bounds = bounds
            .map(|setting| Bounds { sample, progress: true, ..Bounds::new(setting, length, seed) })
            .collect();
        return Ok(Job::Ace { bounds, resume });
    }
    let standard = if plan.is_long() { 1..=4 } else { 1..=1 };
    Ok(Job::Explore { plan, seeds: seeds.unwrap_or(standard), names, resume })
}

/// Reports a run, or the result of an earlier session for it.
fn one_run<S: Subject>(subject: &S, plan: &Plan, resume: Option<&Resume>) -> Result<Summary, String> {
    if let Some(done) = resume.and_then(|resume| resume.run(subject.name(), plan)) {
        println!("{}", done.row());
        done.findings.iter().for_each(Finding::print);
        return Ok(done.clone());
    }
    let summary = report(subject, plan)?;
    if let Some(resume) = resume {
        resume.add_run(plan, &summary)?;
    }
    Ok(summary)
}

fn explore(
    plan: Plan,
    seeds: RangeInclusive<u64>,
    names: &[String],
    resume: Option<PathBuf>,
) -> Result<bool, String> {
    let resume = resume.map(|file| Resume::open(&file)).transpose()?;
    let known: Vec<String> = all_names();
    if let Some(name) = names.iter().find(|n| !known.contains(n)) {
        return Err(format!("no workload is called {name}; there are: {}", known.join(" ")));
    }
    let chosen = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let mut rows: Vec<Summary> = Vec::new();
    println!("{}", Summary::HEADER);
    for seed in seeds {
        let plan = Plan { seed, ..plan };
        for workload in BlockWorkload::all().iter().filter(|w| chosen(w.name)) {
            rows.push(one_run(workload, &plan, resume.as_ref())?);
        }
        for workload in workloads::all().iter().chain(&workloads::on_generations()).filter(|w| chosen(w.name))
        {
            rows.push(one_run(workload, &plan, resume.as_ref())?);
        }
    }
    let sum = |what: fn(&Summary) -> u64| rows.iter().map(what).sum::<u64>();
    let findings = sum(|s| s.findings.len() as u64);
    println!(
        "{} runs: {} states, {} crashes of recoveries, {} checked by e2fsck, {} by the kernel, {findings} findings",
        rows.len(),
        sum(|s| s.states),
        sum(|s| s.nested),
        sum(|s| s.inspected),
        sum(|s| s.second_opinions),
    );
    Ok(findings == 0)
}

fn enumerate(bounds: &[Bounds], resume: Option<PathBuf>) -> Result<bool, String> {
    let resume = resume.map(|file| Resume::open(&file)).transpose()?;
    let mut findings = 0;
    for bounds in bounds {
        findings += ace::report_all(bounds, THREADS, resume.as_ref())?.summary.findings.len();
    }
    Ok(findings == 0)
}

fn faults(names: &[String]) -> Result<bool, String> {
    let wanted = |canary: &&Canary| {
        names.is_empty()
            || names.iter().any(|name| *name == format!("{:?}", canary.fault) || name == canary.workload)
    };
    if !names.is_empty() && !canaries::ALL.iter().any(|canary| wanted(&canary)) {
        return Err(format!("no fault or workload of one is called {}", names.join(" ")));
    }
    println!("{}", Canary::HEADER);
    let mut all_found = true;
    for canary in canaries::ALL.iter().filter(wanted) {
        match canary.hunt() {
            Ok(found) => println!("{}", canary.row(&found)),
            Err(why) => {
                all_found = false;
                println!("MISSED {why}");
            }
        }
    }
    Ok(all_found)
}

fn all_names() -> Vec<String> {
    let engine = BlockWorkload::all().into_iter().map(|w| w.name.to_owned());
    let files = workloads::all().into_iter().chain(workloads::on_generations());
    engine.chain(files.map(|w| w.name.to_owned())).collect()
}

fn try_again(line: &Replay) -> Result<bool, String> {
    fn again<S: Subject>(subject: &S, line: &Replay) -> Result<Replayed, String> {
        replay(subject, line, &Plan { seed: line.seed, ..Plan::quick() })
    }
    let name = &line.workload;
    let replayed = if name.starts_with("ace/") {
        again(&AceWorkload::find(name)?, line)?
    } else if let Some(workload) = workloads::find(name) {
        again(&workload, line)?
    } else if let Some(workload) = BlockWorkload::all().into_iter().find(|w| w.name == name) {
        again(&workload, line)?
    } else {
        return Err(format!("no workload is called {name}"));
    };
    println!("{}", replayed.story);
    match &replayed.finding {
        Some(finding) => println!("FINDING {}", finding.what),
        None => println!("nothing wrong with this state"),
    }
    Ok(replayed.finding.is_none())
}

fn main() -> ExitCode {
    // Without this right there are no kernel mounts that could stay.
    let _ = tools::mount_for_ourselves();
    let result = job().and_then(|job| match job {
        Job::Explore { plan, seeds, names, resume } => explore(plan, seeds, &names, resume),
        Job::Ace { bounds, resume } => enumerate(&bounds, resume),
        Job::Faults { names } => faults(&names),
        Job::Replay(line) => try_again(&line),
        Job::List => {
            println!("{}", all_names().join("\n"));
            Ok(true)
        }
        Job::Help => {
            print!("{USAGE}");
            Ok(true)
        }
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("crash: {why}");
            ExitCode::FAILURE
        }
    }
}
