//! The program `xact-run-helper`, with which an ordinary user's command runs in a mount namespace
//! without a user namespace: owners, groups and setuid programs are what they are outside.
//!
//! The helper does one thing: it makes the namespace, with the view over the volume. Then it starts
//! this program again, which is in the view and has no right of its own, and prepares what the
//! command inherits (`in_view.rs`). That process becomes the command, so it has the same process
//! group, terminal and number from its start on.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, MemfdFlags, Mode, OFlags, access, memfd_create, open};
use rustix::process::getuid;

use crate::exit::{Failure, Result, plain};
use crate::mounts::Mount;
use crate::run::child::{self, Ended};
use crate::run::in_view::{self, Report, Spec};

const NAME: &str = "xact-run-helper";
/// The folder of the helper, from that of xact.
const FOLDERS: [&str; 2] = [".", "../libexec/xact"];

/// The program, owned by root and setuid.
pub struct Helper(PathBuf);

/// How the helper's process ended.
pub enum Attempt {
    /// The command ran, or a signal ended the process before that.
    Ended(Ended),
    /// The helper did nothing, for this reason.
    Refused(String),
}

impl Helper {
    /// Finds it beside this program, or in PREFIX/libexec/xact.
    pub fn find() -> Option<Helper> {
        if getuid().is_root() {
            return None;
        }
        let folder = std::env::current_exe().ok()?.parent()?.to_path_buf();
        FOLDERS.iter().map(|way| folder.join(way).join(NAME)).find(|path| is_usable(path)).map(Helper)
    }

    /// Runs the command in transaction `id` of the volume at `mount`.
    pub fn run(&self, command: &[OsString], mount: &Mount, id: u64) -> Result<Attempt> {
        let wrong = |e: io::Error| Failure::system(format_args!("prepare {NAME}"), e);
        let (mut status, writer) = io::pipe().map_err(wrong)?;
        let spec = Spec { transaction: id, device: mount.device, command: command.to_vec() };
        let spec = file_with(&spec.to_bytes()).map_err(wrong)?;
        let program = open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| wrong(e.into()))?;
        let numbers = [writer.as_raw_fd(), spec.as_raw_fd(), program.as_raw_fd()];
        let mut process = Command::new(&self.0);
        process.args([OsStr::new(&numbers[0].to_string()), mount.point.as_os_str()]);
        process.args([id.to_string(), format!("/proc/self/fd/{}", numbers[2]), in_view::WORD.to_string()]);
        process.args(numbers.map(|number| number.to_string()));
        // SAFETY: the closure makes async-signal-safe calls, on numbers.
        unsafe { process.pre_exec(move || numbers.into_iter().try_for_each(inherit)) };
        let ended = child::run_process(process, move || drop((writer, spec, program)))?;
        let ended = match ended {
            Ok(ended) => ended,
            Err(e) => return Ok(Attempt::Refused(plain(&e))),
        };
        let mut said = Vec::new();
        status.read_to_end(&mut said).map_err(wrong)?;
        match Report::parse(&said) {
            Report::Started => Ok(Attempt::Ended(ended)),
            Report::Failed(failure) => Err(failure),
            Report::NotExecuted(error) => {
                Err(child::cannot_run(&command[0], &io::Error::from_raw_os_error(error)))
            }
            Report::Refused(reason) => Ok(Attempt::Refused(reason)),
            Report::Nothing if ended.signal.is_some() => Ok(Attempt::Ended(ended)),
            Report::Nothing => Ok(Attempt::Refused(format!("it ended with exit status {}", ended.code()))),
        }
    }
}

/// Whether it is a setuid program of root that only root can change and this user may execute.
fn is_usable(path: &Path) -> bool {
    let is_roots = |found: std::fs::Metadata| {
        found.is_file()
            && found.uid() == 0
            && found.mode() & libc::S_ISUID != 0
            && found.mode() & (libc::S_IWGRP | libc::S_IWOTH) == 0
    };
    std::fs::metadata(path).is_ok_and(is_roots) && access(path, Access::EXEC_OK).is_ok()
}

/// A file without a name, to be read from its start.
fn file_with(contents: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(NAME, MemfdFlags::CLOEXEC)?);
    file.write_all(contents)?;
    file.rewind()?;
    Ok(file)
}

/// Lets the process that is about to be executed inherit a descriptor.
fn inherit(number: RawFd) -> io::Result<()> {
    // SAFETY: it takes numbers.
    match unsafe { libc::fcntl(number, libc::F_SETFD, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

impl Spec {
    /// The fields, each ended by a zero byte, which none of them has. The dynamic linker takes some
    /// variables from the environment of a setuid program, so all of it is part.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |field: &[u8]| {
            bytes.extend_from_slice(field);
            bytes.push(0);
        };
        let (major, minor) = self.device;
        for number in [self.transaction, major.into(), minor.into(), self.command.len() as u64] {
            add(number.to_string().as_bytes());
        }
        self.command.iter().for_each(|word| add(word.as_encoded_bytes()));
        for (name, value) in std::env::vars_os() {
            add(&[name.as_encoded_bytes(), b"=", value.as_encoded_bytes()].concat());
        }
        bytes
    }

    /// The fields and the environment.
    pub fn parse(bytes: &[u8]) -> Option<(Spec, Vec<(OsString, OsString)>)> {
        let mut fields = bytes.strip_suffix(&[0])?.split(|&byte| byte == 0);
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<u64>().ok();
        let transaction = number()?;
        let device = (u32::try_from(number()?).ok()?, u32::try_from(number()?).ok()?);
        let count = usize::try_from(number()?).ok()?;
        let owned = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let command: Vec<OsString> = fields.by_ref().take(count).map(owned).collect();
        let variables = fields.filter_map(|field| {
            // The name may begin with the character.
            let at = field.iter().skip(1).position(|&byte| byte == b'=')? + 1;
            Some((owned(&field[..at]), owned(&field[at + 1..])))
        });
        let variables = variables.collect();
        (command.len() == count && count > 0).then_some((Spec { transaction, device, command }, variables))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_read_as_it_was_written() {
        let odd = OsString::from_vec(vec![0xff, b'=', b' ']);
        let spec = Spec { transaction: u64::MAX, device: (0, 87), command: vec![odd, OsString::new()] };
        let (read, variables) = Spec::parse(&spec.to_bytes()).unwrap();
        assert_eq!(read, spec);
        assert_eq!(variables, std::env::vars_os().collect::<Vec<_>>());
        for broken in
            [&b""[..], b"1\0", b"1\0x\x002\x001\0ls\0", b"1\x000\x002\x003\0ls\0", b"1\x000\x002\x000\0"]
        {
            assert!(Spec::parse(broken).is_none(), "{broken:?}");
        }
    }

    #[test]
    fn only_a_setuid_program_of_root_is_usable() {
        assert!(!is_usable("/bin/sh".as_ref()) && !is_usable("/".as_ref()) && !is_usable("/none".as_ref()));
    }
}
