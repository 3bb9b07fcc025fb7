//! The place in which the command runs: a namespace in which the transaction's view covers the
//! volume.

use std::ffi::OsString;

use xact_namespace::descriptors::Survey;
use xact_namespace::namespace::Namespace;

use crate::exit::Result;
use crate::mounts::Mount;
use crate::output;
use crate::run::child::{self, Ended};
use crate::run::helper::{Attempt, Helper};

/// The process that makes the namespace.
pub enum Place<'a> {
    /// This process, which is in it.
    Here(Namespace),
    /// The helper, for each command. This process stays outside.
    ByHelper(Helper, &'a Mount),
}

impl<'a> Place<'a> {
    pub fn enter(mount: &'a Mount) -> Result<Place<'a>> {
        if let Some(namespace) = Namespace::enter(mount)? {
            return Ok(Place::Here(namespace));
        }
        match Helper::find() {
            Some(helper) => Ok(Place::ByHelper(helper, mount)),
            None => enter_user_namespace(mount, "see 'xact run --help'").map(Place::Here),
        }
    }

    /// Runs the command in transaction `id`.
    pub fn run(&mut self, command: &[OsString], id: u64, inherited: &Survey) -> Result<Ended> {
        if let Place::ByHelper(helper, mount) = self {
            match helper.run(command, mount, id)? {
                Attempt::Ended(ended) => return Ok(ended),
                Attempt::Refused(reason) => {
                    let reason = format!("xact-run-helper refused: {reason}");
                    *self = Place::Here(enter_user_namespace(mount, &reason)?);
                }
            }
        }
        let Place::Here(namespace) = self else { unreachable!("the helper has refused") };
        let bound = namespace.show(id)?;
        let reopened = inherited.reopen(&bound)?;
        // Once the command has them, xact closes the view's descriptors: its own messages go to the
        // original ones.
        child::run(command, move || drop(reopened))
    }
}

/// Says beforehand what does not work then.
fn enter_user_namespace(mount: &Mount, reason: &str) -> Result<Namespace> {
    // Inside of another user namespace, nothing of that works outside of the command either.
    if sees_root() {
        output::note(
            super::NAME,
            &format!(
                "files of other users appear with a wrong owner, and sudo and setuid programs do not work in this run ({reason})"
            ),
        );
    }
    Ok(Namespace::enter_as_user(mount)?)
}

/// Whether root exists in the user namespace of this process, apart from this user.
fn sees_root() -> bool {
    let own = rustix::process::getuid().as_raw();
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    own != 0 && map.lines().any(|line| line.split_ascii_whitespace().next() == Some("0"))
}
