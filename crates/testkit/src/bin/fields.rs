//! The sweep over all fields from the command line: `make check-fields`.

use std::path::PathBuf;
use std::process::ExitCode;

use xact_testkit::fields::{Resume, Sweep};

const USAGE: &str = "\
usage: fields [--resume FILE] [--sample N] [KIND...]   set every field on every kind of volume, or on these
       fields --case KIND/STRUCTURE/FIELD/VALUE        show what e2fsck and xact check say to one case

  --sample N  try one of N cases
  --classes   list the classes of problems, with the number of damaged volumes that both found
  --resume FILE
              skip the cases that FILE names, and add the finished ones; the table covers all of them
";

fn run() -> Result<bool, String> {
    let mut args = std::env::args().skip(1);
    let (mut resume, mut every, mut case, mut lists_classes) = (None, 1, None, false);
    let mut kinds = Vec::new();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n\n{USAGE}"));
        match arg.as_str() {
            "--resume" => resume = Some(Resume::open(&PathBuf::from(value()?))?),
            "--sample" => {
                every = value()?.parse().ok().filter(|n| *n > 0).ok_or("--sample needs a number")?;
            }
            "--classes" => lists_classes = true,
            "--case" => case = Some(value()?),
            "-h" | "--help" => {
                print!("{USAGE}");
                return Ok(true);
            }
            _ if arg.starts_with('-') => return Err(format!("unknown argument {arg}\n\n{USAGE}")),
            _ => kinds.push(arg),
        }
    }
    if let Some(name) = case {
        let kind = name.split('/').next().unwrap_or_default().to_owned();
        println!("{}", Sweep::new(&[kind])?.replay(&name)?);
        return Ok(true);
    }
    let is_whole = kinds.is_empty() && every == 1;
    let summary = Sweep::new(&kinds)?.run(every, resume.as_ref())?;
    if lists_classes {
        summary.classes().print();
    }
    let mut is_right = summary.print() == 0;
    for unused in summary.unused_reasons().into_iter().filter(|_| is_whole) {
        println!("no case differs as {:?}: {}", unused.cases, unused.reason);
        is_right = false;
    }
    Ok(is_right)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("fields: {why}");
            ExitCode::FAILURE
        }
    }
}
