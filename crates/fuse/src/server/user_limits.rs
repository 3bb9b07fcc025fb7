//! The limits of users of a mount: file descriptors of this process among them, of which it keeps
//! some for itself.

use xact::{Accounts, Limits, Resource};

/// Descriptors that are the server's own: workers, the image, what a moment's work opens.
const RESERVED: u64 = 256;
/// All users together may have half of the rest, and one user a quarter of that.
const SHARES: u64 = 8;

/// Sets limits for all users but root and the one who runs this process, as whose the volume is
/// mounted.
pub fn limit_users(accounts: &Accounts, limits: Limits) {
    let descriptors = descriptors_max().saturating_sub(RESERVED) / SHARES;
    // SAFETY: geteuid has no arguments and cannot fail.
    let owner = unsafe { libc::geteuid() };
    accounts.limit(limits.at_most(Resource::Descriptors, descriptors.max(1)), owner, |refusal| {
        let limit = refusal.resource.describe(refusal.limit);
        let who = if refusal.all_users { "all users together have" } else { "the user has" };
        crate::log(format_args!(
            "user {} is refused more: {who} what limits allow, {limit} for a user (xact mount --user-memory, \
             --user-transactions)",
            refusal.uid
        ));
    });
}

/// Lets this process have as many descriptors as the system allows it; returns how many that are.
fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes to, and reads from, a struct of our own.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) < 0 {
            return 0;
        }
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 { limit.rlim_max } else { limit.rlim_cur }
    }
}
