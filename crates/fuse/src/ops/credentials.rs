//! A caller's credentials, for permissions that the daemon checks and not the kernel.
//!
//! A request carries user and group. The supplementary groups are read from `/proc`. The caller
//! waits in its call until the request is answered, so its thread number is still its own.

use std::fs;

use xact::Credentials;
use xact_fs::Caller;

use crate::protocol::abi::InHeader;

/// The credentials of the caller. They lack supplementary groups if the caller is in a PID
/// namespace that the daemon cannot see. Then it has fewer rights, never more.
pub fn of(header: &InHeader) -> Credentials {
    let (uid, gid) = (header.uid, header.gid);
    let status = match header.pid {
        0 => None,
        thread => fs::read_to_string(format!("/proc/{thread}/status")).ok(),
    };
    let groups = status.and_then(|status| groups_in(&status, uid)).unwrap_or_default();
    Credentials { uid, gid, groups }
}

/// The caller, as operations of a view expect it.
pub fn caller(header: &InHeader, umask: u32) -> Caller {
    Caller { uid: header.uid, gid: header.gid, umask: (umask & 0o777) as u16 }
}

/// The supplementary groups in the text of `/proc/TID/status`, if it is of a thread that calls as
/// `uid`.
fn groups_in(status: &str, uid: u32) -> Option<Vec<u32>> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // The line has the real, effective and saved id, and the id for file-system calls.
    let fsuid: u32 = field("Uid:")?.split_ascii_whitespace().nth(3)?.parse().ok()?;
    let groups = field("Groups:")?.split_ascii_whitespace().map(|gid| gid.parse().ok());
    (fsuid == uid).then(|| groups.collect()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_caller_alone() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t5\t5\t5\nGroups:\t7 8 \n";
        assert_eq!(groups_in(status, 4), Some(vec![7, 8]));
        assert_eq!(groups_in(status, 1), None);
        assert_eq!(groups_in("Uid:\t0\t0\t0\t0\nGroups:\t\n", 0), Some(Vec::new()));
        assert_eq!(groups_in("", 0), None);
    }
}
