//! Wrong arguments: the message of the parser, with the subcommand in front as in all others, and a
//! hint at the command that does what an unknown one means elsewhere.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::Cli;

/// Commands of other programs, and what does the same here.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (&["mnt"], "to mount a volume: xact mount IMAGE FOLDER"),
    (&["unmount", "eject"], "to unmount a volume: xact umount FOLDER"),
    (
        &["ls", "ps"],
        "to list mounted volumes: xact list; open transactions: xact tx list; snapshots: xact snapshot list",
    ),
    (&["begin", "start"], "to begin a transaction: xact tx begin, or xact run COMMAND"),
    (&["commit"], "to commit an open transaction: xact tx commit"),
    (&["abort", "rollback", "revert", "undo"], "to abort an open transaction: xact tx abort"),
    (&["diff", "show"], "to see what an open transaction changes: xact tx diff"),
    (&["restore"], "to restore a snapshot: xact snapshot restore"),
    (&["create", "format", "init", "new"], "to make a volume: xact mkfs"),
    (&["fsck", "verify", "scrub"], "to check a volume: xact check"),
    (&["df", "status", "usage"], "to see the use of a mounted volume: xact stat; of all: xact list"),
    (&["mounts", "volumes"], "to list mounted volumes: xact list"),
    (&["metrics", "prometheus"], "to print metrics: xact stat --prometheus"),
    (&["exec", "sh", "shell"], "to run a command in a transaction: xact run COMMAND"),
];

/// Prints what the parser of another program than `xact` reports: help on standard output, or an
/// error. Returns the exit code: 0, or 1 for an error.
pub fn print_for(name: &str, error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        // If this cannot be printed, nothing can.
        let _ = error.print();
        return 0;
    }
    anstream::eprint!("{name}: {}", error.render().ansi());
    1
}

/// Prints the message on standard error.
pub fn print(error: &clap::Error) {
    // The rendered text begins with `error:`, in colour.
    anstream::eprint!("{}: {}", command_of(std::env::args_os()), error.render().ansi());
    if let Some(hint) = unknown_command(error).and_then(hint_for) {
        anstream::eprintln!("\n  {hint}");
    }
}

/// `xact tx diff`: the subcommands that the arguments begin with.
pub fn command_of(arguments: impl IntoIterator<Item = OsString>) -> String {
    let (mut command, mut name) = (Cli::command(), String::from("xact"));
    for argument in arguments.into_iter().skip(1) {
        if argument.as_encoded_bytes().starts_with(b"-") {
            continue;
        }
        let Some(next) = command.find_subcommand(&argument).cloned() else { break };
        name = format!("{name} {}", next.get_name());
        command = next;
    }
    name
}

fn unknown_command(error: &clap::Error) -> Option<&str> {
    match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(name))) => Some(name),
        _ => None,
    }
}

fn hint_for(name: &str) -> Option<&'static str> {
    ELSEWHERE.iter().find(|(names, _)| names.contains(&name)).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(arguments: &[&str]) -> clap::Error {
        Cli::command().try_get_matches_from(arguments).unwrap_err()
    }

    #[test]
    fn the_subcommand_is_named() {
        for (arguments, command) in [
            (&["xact", "tx", "diff"][..], "xact tx diff"),
            (&["xact", "snapshot", "--bogus"], "xact snapshot"),
            (&["xact", "tx", "list", "x"], "xact tx list"),
            (&["xact", "mkfs", "x", "--size", "many"], "xact mkfs"),
            (&["xact", "mount", "x", "y", "-o"], "xact mount"),
            (&["xact", "--bogus"], "xact"),
        ] {
            assert!(error_of(arguments).use_stderr());
            assert_eq!(command_of(arguments.iter().map(OsString::from)), command, "{arguments:?}");
        }
    }

    /// Each hint names a command that exists, and no name is a command already.
    #[test]
    fn hints_lead_somewhere() {
        let command = Cli::command();
        for (names, hint) in ELSEWHERE {
            for name in *names {
                assert!(command.find_subcommand(name).is_none(), "{name} is a command");
                let error = error_of(&["xact", name]);
                assert_eq!(unknown_command(&error).and_then(hint_for), Some(*hint), "{name}");
            }
            for named in hint.split("xact ").skip(1) {
                let mut found = &command;
                let words = named.split_whitespace().map(|word| word.trim_end_matches([';', ',']));
                for word in words.take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase())) {
                    match found.find_subcommand(word) {
                        Some(next) => found = next,
                        None => break,
                    }
                }
                assert_ne!(found.get_name(), "xact", "{hint}");
            }
        }
    }
}
