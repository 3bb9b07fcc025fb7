//! The limits of users of a mount. They include file descriptors of this process, which keeps some
//! for itself.

use xact::{Accounts, Limits, Resource};

/// Descriptors that the server keeps: for workers, the image, and files that it opens for a moment.
const RESERVED: u64 = 256;
/// All users together may have half of the remaining descriptors, and one user a quarter of that.
const SHARES: u64 = 8;

/// Sets limits for all users except root and the mount's owner, the user of this process.
pub fn limit_users(accounts: &Accounts, limits: Limits) {
    let descriptors = descriptors_max().saturating_sub(RESERVED) / SHARES;
    // SAFETY: geteuid has no arguments and cannot fail.
    let owner = unsafe { libc::geteuid() };
    accounts.limit(limits.at_most(Resource::Descriptors, descriptors.max(1)), owner, |refusal| {
        let limit = refusal.resource.describe(refusal.limit);
        let holder = if refusal.all_users { "all users together have" } else { "the user has" };
        crate::log(format_args!(
            "user {} is refused more: {holder} as much as the limits allow, {limit} for a user \
             (xact mount --user-memory, --user-transactions)",
            refusal.uid
        ));
    });
}

/// Raises this process's limit of descriptors to the hard limit; returns the limit.
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
