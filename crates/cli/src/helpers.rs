//! The programs that mount(8) and umount(8) call for a volume: `mount.fuse.xact`,
//! `umount.fuse.xact`, and the same for `fuseblk`. They are links to `xact`, which recognises them
//! by the name that it was called by.
//!
//! With them, `umount MNT` returns when the daemon has closed the image, `mount -o remount,…`
//! works, and fstab(5) may name the type `fuse.xact`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command, Umount};
use crate::commands;
use crate::commands::Unmount;
use crate::exit::{Exit, Failure, Result};
use crate::{output, remount};

/// Exit codes of mount(8) and umount(8).
const USAGE: u8 = 1;
const FAILED: u8 = 32;

/// Options of fstab(5) that concern programs other than this one.
const FOR_OTHERS: &[&str] =
    &["auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group", "defaults"];

/// The program that `xact` was called as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Helper {
    Mount,
    Umount,
}

impl Helper {
    fn of_name(name: &OsStr) -> Option<Helper> {
        match Path::new(name).file_name()?.to_str()? {
            "mount.fuse.xact" | "mount.fuseblk.xact" => Some(Helper::Mount),
            "umount.fuse.xact" | "umount.fuseblk.xact" => Some(Helper::Umount),
            _ => None,
        }
    }
}

/// Does what the helper of this name does; `None` if the name is not one of a helper.
pub fn run() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let name = args.next()?;
    let helper = Helper::of_name(&name)?;
    let request = Request::parse(helper, args.collect());
    let done = request.and_then(|request| match helper {
        Helper::Mount => mount(&request),
        Helper::Umount => umount(&request),
    });
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
    /// `umount -r`: make it read-only if it is busy.
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
                    'n' | 's' | 'v' => {}
                    // The type: known already.
                    't' => _ = args.next(),
                    'o' => {
                        let value = args.next().unwrap_or_default();
                        let value = value.to_str().ok_or_else(|| Failure::usage("-o is not text"))?;
                        request.options.extend(value.split(',').filter(|o| !o.is_empty()).map(str::to_owned));
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

    /// The options that are for xact.
    fn own_options(&self) -> Vec<String> {
        let is_own = |option: &&String| {
            !FOR_OTHERS.contains(&option.as_str())
                && !["x-", "X-", "comment=", "uhelper="].iter().any(|start| option.starts_with(start))
        };
        self.options.iter().filter(is_own).cloned().collect()
    }
}

fn mount(request: &Request) -> Result<()> {
    let options = request.own_options();
    if options.iter().any(|option| option == "remount") {
        return remount::remount(&request.paths[1], &options, request.force);
    }
    if request.force {
        return Ok(());
    }
    let mut line: Vec<OsString> = vec!["xact".into(), "mount".into(), "-o".into(), options.join(",").into()];
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
        assert_eq!(mount.own_options(), ["rw", "commit=7"]);
        let umount = request(Helper::Umount, "/mnt -lv -t fuse.xact").unwrap();
        assert!(umount.lazy && !umount.force);
        assert!(request(Helper::Umount, "/mnt -N 7").is_err());
        assert!(request(Helper::Mount, "/mnt").is_err());
    }
}
