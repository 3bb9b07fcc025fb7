//! Completion on the command line: mounts, transactions, snapshots and values of settings.
//!
//! The script of a shell (`xact completions SHELL`) calls xact with the words of the command line
//! and the environment variable [`VARIABLE`]. A value is completed from the state of the mount that
//! these words name. An error means no candidates: a shell has no place for messages.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::CompleteEnv;
use xact::text::{printable, printable_bytes};
use xact_control::abi::TxStatus;

use crate::args::Cli;
use crate::{control, mounts, settings_args};

/// The environment variable with the name of the shell.
pub const VARIABLE: &str = "XACT_COMPLETE";

/// Answers a shell and exits, if one asks; else returns.
pub fn answer_shell() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// The words of the command line that is completed.
fn words() -> Vec<OsString> {
    let mut words = std::env::args_os();
    // Words of the script itself end with "--".
    words.find(|word| word == "--");
    words.collect()
}

fn candidate(value: impl Into<OsString>, help: &str) -> CompletionCandidate {
    CompletionCandidate::new(value).help((!help.is_empty()).then(|| printable(help).into_owned().into()))
}

fn starting_with(current: &OsStr, all: Vec<CompletionCandidate>) -> Vec<CompletionCandidate> {
    let current = current.as_encoded_bytes();
    all.into_iter().filter(|one| one.get_value().as_encoded_bytes().starts_with(current)).collect()
}

/// Mounted volumes, and paths.
pub fn mount_or_path() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| with_mounts(current, PathCompleter::any()))
}

/// Mounted volumes, and folders.
pub fn mount() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| with_mounts(current, PathCompleter::dir()))
}

fn with_mounts(current: &OsStr, paths: PathCompleter) -> Vec<CompletionCandidate> {
    let all = mounts::all().unwrap_or_default();
    // By the names of their types alone: a server that does not answer must not stop the shell.
    let mounted = all.iter().filter(|mount| mount.fs_type.ends_with(".xact") && !mount.is_view());
    let mounted = mounted.map(|mount| candidate(&mount.point, &mounts::image(mount).display().to_string()));
    let mut found = starting_with(current, mounted.collect());
    found.extend(paths.complete(current));
    found
}

/// Numbers of open transactions on the mount of `--at` or of the current folder.
pub fn transaction() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let point = mounts::containing(&option_at(&words())).map(|mount| mount.point);
        let list = point.and_then(|point| control::channel(&point)).ok().and_then(|c| c.list().ok());
        let open = list.unwrap_or_default().into_iter().filter(|info| info.status == TxStatus::LeftOpen);
        let found = open.map(|info| candidate(info.id.to_string(), &printable_bytes(&info.label)));
        starting_with(current, found.collect())
    })
}

/// The value of `--at`, by default the current folder.
fn option_at(words: &[OsString]) -> PathBuf {
    let after = words.iter().position(|word| word == "--at").and_then(|at| words.get(at + 1));
    let joined = || words.iter().find_map(|word| word.to_str()?.strip_prefix("--at="));
    after.map(PathBuf::from).or_else(|| joined().map(PathBuf::from)).unwrap_or_else(|| ".".into())
}

/// Names of snapshots on the mount that the command names.
pub fn snapshot() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let Some(volume) = snapshot_volume(&words()) else { return Vec::new() };
        let snapshots = mounts::containing(&volume).and_then(|mount| control::snapshots(&mount.point));
        let found = snapshots.unwrap_or_default().into_iter();
        let found =
            found.map(|snapshot| candidate(&snapshot.name, &xact::Date::of(snapshot.time).to_string()));
        starting_with(current, found.collect())
    })
}

/// The first word behind `snapshot COMMAND` that is not an option.
fn snapshot_volume(words: &[OsString]) -> Option<PathBuf> {
    let command = words.iter().position(|word| word == "snapshot")?;
    let mut rest = words[command + 1..].iter().filter(|word| !word.as_encoded_bytes().starts_with(b"-"));
    rest.nth(1).map(|word| Path::new(word).to_path_buf())
}

/// One mount option; clap splits the list at its commas.
pub fn mount_option() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let mut all = Vec::new();
        for setting in settings_args::options() {
            if setting.kind.has_name() {
                let name = setting.name;
                let values = setting.words().iter();
                all.extend(values.map(|word| candidate(format!("{name}={}", word.word), word.help)));
                if setting.words().is_empty() {
                    all.push(candidate(format!("{name}="), setting.help));
                }
            }
            all.extend(setting.option_words().into_iter().map(|word| candidate(word, setting.help)));
        }
        starting_with(current, all)
    })
}

/// `NAME=VALUE` of `xact mode set`.
pub fn mode() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let of = |setting: &'static xact::settings::Setting| {
            let values = setting.words().iter().map(|word| (word.word, word.help));
            let default = [("default", "Remove the mode from the volume")];
            values
                .chain(default)
                .map(|(value, help)| candidate(format!("{}={value}", setting.name), help))
                .collect::<Vec<_>>()
        };
        starting_with(current, settings_args::modes().flat_map(of).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_mount_is_found_on_the_command_line() {
        assert_eq!(option_at(&line("xact tx diff --at mnt 3")), Path::new("mnt"));
        assert_eq!(option_at(&line("xact tx diff --at=/mnt ")), Path::new("/mnt"));
        assert_eq!(option_at(&line("xact tx diff ")), Path::new("."));
        assert_eq!(snapshot_volume(&line("xact snapshot diff --stat mnt ")).as_deref(), Some("mnt".as_ref()));
        assert_eq!(snapshot_volume(&line("xact snapshot diff")), None);
    }

    #[test]
    fn values_come_from_the_table_of_settings() {
        let values = |completer: ArgValueCompleter, current: &str| {
            let found = completer.complete(OsStr::new(current));
            found.iter().map(|one| one.get_value().to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(values(mount_option(), "errors=r"), ["errors=remount-ro"]);
        assert_eq!(
            values(mount_option(), "comm"),
            ["commit_writes=two-step", "commit_writes=single", "commit="]
        );
        assert_eq!(values(mount_option(), "noexe"), ["noexec"]);
        assert_eq!(
            values(mode(), "fsync="),
            ["fsync=generation", "fsync=log", "fsync=file", "fsync=default"]
        );
    }
}
