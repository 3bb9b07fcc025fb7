//! The programs that mount(8), umount(8), mkfs(8) and fsck(8) call for a volume: `mount.xact`,
//! `umount.xact`, `mkfs.xact`, `fsck.xact`, and the first two also for the types that the table of
//! mounts has, `fuse.xact` and `fuseblk.xact`. They are links to `xact`, which recognises them by
//! the name that it was called by.
//!
//! With them, fstab(5) may name the type `xact`, `umount MNT` returns when the daemon has closed
//! the image, and `mount -o remount,…` works.

mod fsck;
mod mkfs;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use xact::settings::{Form, SETTINGS};

use crate::args::{Cli, Command, Umount, Verbosity};
use crate::commands;
use crate::commands::Unmount;
use crate::exit::{Exit, Failure, Result};
use crate::{log, output, remount};

pub use fsck::Fsck;
pub use mkfs::MkfsOfSize;

/// Exit codes of mount(8) and umount(8).
const USAGE: u8 = 1;
const FAILED: u8 = 32;

/// The program that `xact` was called as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Helper {
    Mount,
    Umount,
    Mkfs,
    Fsck,
}

impl Helper {
    fn of_name(name: &OsStr) -> Option<Helper> {
        match Path::new(name).file_name()?.to_str()?.split_once('.')? {
            ("mount", "xact" | "fuse.xact" | "fuseblk.xact") => Some(Helper::Mount),
            ("umount", "xact" | "fuse.xact" | "fuseblk.xact") => Some(Helper::Umount),
            ("mkfs", "xact") => Some(Helper::Mkfs),
            ("fsck", "xact" | "fuse.xact" | "fuseblk.xact") => Some(Helper::Fsck),
            _ => None,
        }
    }
}

/// Does what the helper of this name does; `None` if the name is not one of a helper.
pub fn run() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let name = args.next()?;
    let helper = Helper::of_name(&name)?;
    let done = match helper {
        Helper::Mkfs => return Some(mkfs::run(args)),
        Helper::Fsck => return Some(fsck::run(args)),
        Helper::Mount | Helper::Umount => {
            let request = log::install(&Verbosity::default(), helper == Helper::Mount)
                .and_then(|()| Request::parse(helper, args.collect()));
            request.and_then(|request| match helper {
                Helper::Umount => umount(&request),
                _ => mount(&request),
            })
        }
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::error(&Path::new(&name).file_name().unwrap_or(&name).to_string_lossy(), &failure);
            ExitCode::from(if failure.exit == Exit::Usage { USAGE } else { FAILED })
        }
    })
}

/// The arguments of a helper (mount(8) and umount(8), "External helpers").
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    /// `mount`: source and mount point; `umount`: the mount point.
    paths: Vec<PathBuf>,
    options: Vec<String>,
    /// `-f`: of `mount`, do nothing; of `umount`, end the connection first.
    force: bool,
    lazy: bool,
    /// `-r`: of `umount`, make it read-only if it is busy; of `mount`, as `-o ro`.
    read_only: bool,
}

impl Request {
    fn parse(helper: Helper, args: Vec<OsString>) -> Result<Request> {
        let mut request = Request::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let Some(letters) = arg.to_str().and_then(|arg| arg.strip_prefix('-')).map(str::to_owned) else {
                request.paths.push(arg.into());
                continue;
            };
            for letter in letters.chars() {
                match letter {
                    'f' => request.force = true,
                    'l' => request.lazy = true,
                    'r' => request.read_only = true,
                    // Messages, the table of mounts, and unknown options (of mount): nothing to do.
                    'n' | 's' | 'v' | 'w' => {}
                    // The type: known already.
                    't' => _ = args.next(),
                    'o' => {
                        let value = args.next().unwrap_or_default();
                        let value = value.to_str().ok_or_else(|| Failure::usage("-o is not text"))?;
                        request.options.extend(split_options(value));
                    }
                    _ => return Err(Failure::usage(format!("unknown option -{letter}"))),
                }
            }
        }
        let wanted = if helper == Helper::Mount { 2 } else { 1 };
        if request.paths.len() != wanted {
            return Err(Failure::usage(
                "called with a wrong number of paths: mount(8) and umount(8) call it",
            ));
        }
        Ok(request)
    }
}

/// The options of a list with commas. A value between double quotes may have commas.
fn split_options(list: &str) -> Vec<String> {
    let mut quoted = false;
    let options = list.split(|c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    });
    options.filter(|option| !option.is_empty()).map(|option| option.replace('"', "")).collect()
}

/// The long option of `xact mount` that an option of fstab(5) stands for: `--cache-size=1G` for
/// `cache_size=1G`, and the same for `log=FILE`, `snapshot_of=PATH`.
fn long_option(option: &str) -> Option<String> {
    let (name, value) = option.split_once('=')?;
    let long = SETTINGS.iter().find_map(|setting| match setting.form {
        Form::Long(long) if setting.name == name => Some(long),
        _ => None,
    });
    let long = long.or(match name {
        "log" => Some("log"),
        "snapshot_of" => Some("snapshot-of"),
        _ => None,
    })?;
    Some(format!("--{long}={value}"))
}

fn mount(request: &Request) -> Result<()> {
    let (long, mut options): (Vec<&String>, Vec<&String>) =
        request.options.iter().partition(|option| long_option(option).is_some());
    let read_only = "ro".to_owned();
    if request.read_only {
        options.push(&read_only);
    }
    if options.iter().any(|option| *option == "remount") {
        // mount(8) repeats the options of fstab(5). What a long option sets is not compared.
        let options: Vec<String> = options.into_iter().cloned().collect();
        return remount::remount(&request.paths[1], &options, request.force);
    }
    // mount(8) does the same where it calls no helper.
    let may_fail = options.iter().any(|option| *option == "nofail");
    if request.force || may_fail && !request.paths[0].exists() {
        return Ok(());
    }
    let mut line: Vec<OsString> = vec!["xact".into(), "mount".into()];
    line.extend(options.into_iter().flat_map(|option| ["-o".into(), option.into()]));
    line.extend(long.into_iter().filter_map(|option| long_option(option)).map(OsString::from));
    line.push("--".into());
    line.extend(request.paths.iter().map(|path| path.clone().into_os_string()));
    match Cli::try_parse_from(line) {
        Ok(Cli { command: Command::Mount(args), .. }) => commands::mount(&args),
        Ok(_) => unreachable!("the command is mount"),
        Err(error) => Err(Failure::usage(error.to_string().trim().to_owned())),
    }
}

fn umount(request: &Request) -> Result<()> {
    let args = Umount { mount_point: request.paths[0].clone() };
    let how = match request {
        Request { lazy: true, .. } => Unmount::Lazy,
        Request { force: true, .. } => Unmount::Force,
        _ => Unmount::Wait,
    };
    let done = commands::umount_as(&args, how);
    match &done {
        Err(failure) if request.read_only && failure.exit == Exit::Unavailable => {
            remount::make_read_only(&args.mount_point)
        }
        _ => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(helper: Helper, line: &str) -> Result<Request> {
        Request::parse(helper, line.split(' ').map(OsString::from).collect())
    }

    #[test]
    fn helpers_are_known_by_their_names() {
        for (name, helper) in [
            ("/sbin/mount.fuse.xact", Some(Helper::Mount)),
            ("/sbin/mount.xact", Some(Helper::Mount)),
            ("mkfs.xact", Some(Helper::Mkfs)),
            ("fsck.xact", Some(Helper::Fsck)),
            ("mkfs.ext4", None),
            ("xact.mount", None),
            ("umount.fuseblk.xact", Some(Helper::Umount)),
            ("/usr/bin/xact", None),
            ("mount.fuse", None),
        ] {
            assert_eq!(Helper::of_name(OsStr::new(name)), helper, "{name}");
        }
    }

    #[test]
    fn arguments_are_those_of_mount_and_umount() {
        let mount =
            request(Helper::Mount, "/disk.img /mnt -sn -o rw,noauto,x-gvfs-hide,commit=7 -t fuse.xact");
        let mount = mount.unwrap();
        assert_eq!(mount.paths, [Path::new("/disk.img"), Path::new("/mnt")]);
        assert_eq!(mount.options, ["rw", "noauto", "x-gvfs-hide", "commit=7"]);
        let umount = request(Helper::Umount, "/mnt -lv -t fuse.xact").unwrap();
        assert!(umount.lazy && !umount.force);
        assert!(request(Helper::Umount, "/mnt -N 7").is_err());
        assert!(request(Helper::Mount, "/mnt").is_err());
    }

    #[test]
    fn options_may_stand_for_long_ones() {
        let options =
            split_options("ro,,snapshot_every=1h,snapshot_retain=\"hourly=24,daily=7\",data=journal");
        let long: Vec<Option<String>> = options.iter().map(|option| long_option(option)).collect();
        assert_eq!(
            long,
            [
                None,
                Some("--snapshot-every=1h".into()),
                Some("--snapshot-retain=hourly=24,daily=7".into()),
                None
            ]
        );
        assert_eq!(long_option("log=/var/log/xact"), Some("--log=/var/log/xact".into()));
        // Both forms exist: the option is a mount option.
        assert_eq!(long_option("commit=7"), None);
    }
}
