//! The `xact` command: parses arguments, calls the layers below, and prints results. It has no
//! file-system logic.

mod args;
mod commands;
mod complete;
mod control;
mod daemon;
mod exit;
mod full_pool;
mod helpers;
mod image;
mod log;
mod manual;
mod mounts;
mod notify;
mod outcome;
mod output;
mod progress;
mod remount;
mod run;
mod settings_args;
mod tx;
mod usage;
mod values;
mod volume_paths;
mod volumes;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Command};
use exit::Exit;

fn main() -> ExitCode {
    if let Some(code) = run::in_view::run() {
        return code;
    }
    complete::answer_shell();
    if let Some(code) = helpers::run() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                    // If this cannot be printed, nothing can.
                    let _ = error.print();
                    ExitCode::SUCCESS
                }
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                    let _ = error.print();
                    ExitCode::from(Exit::Usage as u8)
                }
                _ => {
                    usage::print(&error);
                    ExitCode::from(Exit::Usage as u8)
                }
            };
        }
    };
    output::set_quiet(cli.verbosity.quiet);
    progress::configure(cli.command.progress(), cli.verbosity.quiet);
    if let Err(failure) = log::install(&cli.verbosity, matches!(cli.command, Command::Mount(_))) {
        output::error("xact", &failure);
        return ExitCode::from(failure.code());
    }
    let outcome = match cli.command {
        Command::Mkfs(args) => commands::mkfs(&args),
        Command::Mount(args) => commands::mount(&args),
        Command::Umount(args) => commands::umount(&args),
        Command::Sync(args) => commands::sync(&args),
        // `run` reports its own errors: they also go to its status file.
        Command::Run(args) => return ExitCode::from(run::run(&args)),
        Command::Tx(args) => tx::tx(&args),
        Command::Journal(args) => commands::journal(&args),
        Command::Mode(args) => commands::mode(&args),
        Command::List(args) => commands::list(&args),
        Command::Stat(args) => commands::stat(&args),
        Command::Recover(args) => commands::recover(&args),
        Command::Check(args) => commands::check(&args),
        Command::Convert(args) => commands::convert(&args),
        Command::Snapshot(args) => commands::snapshot(&args),
        Command::Info(args) => commands::info(&args),
        Command::Completions(args) => commands::completions(&args),
        Command::Man(args) => commands::man(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::error(&usage::command_of(std::env::args_os()), &failure);
            ExitCode::from(failure.code())
        }
    }
}
