//! The ids and capabilities of the process.

use crate::refusal::{Refusal, Result};
use crate::sys::{self, CAP_SYS_ADMIN, Capabilities};

const NOT_SETUID: Refusal = Refusal::new("it is not installed setuid root, or may not use that here");
const KEPT: Refusal = Refusal::new("the kernel did not take its privileges away");

/// Gives all ids of the process the values of the caller, permanently. `CAP_SYS_ADMIN` stays
/// permitted, and nothing is effective.
pub fn become_caller() -> Result<()> {
    let (user, group) = sys::real_ids();
    if user == 0 {
        return Err(Refusal::new("root needs no helper"));
    }
    let drop = |error| Refusal::system("become its caller", error);
    sys::keep_capabilities(true).map_err(drop)?;
    sys::set_group_ids(group).map_err(drop)?;
    sys::set_user_ids(user).map_err(drop)?;
    sys::keep_capabilities(false).map_err(drop)?;
    let mut capabilities = sys::capabilities().map_err(drop)?;
    let may_mount = capabilities.permitted & CAP_SYS_ADMIN != 0;
    // The inheritable ones are the caller's own, and give rights together with a file's only.
    capabilities.permitted &= CAP_SYS_ADMIN;
    capabilities.effective = 0;
    sys::set_capabilities(&capabilities).map_err(drop)?;
    if !is_caller() {
        return Err(KEPT);
    }
    if may_mount { Ok(()) } else { Err(NOT_SETUID) }
}

/// Whether the process has all ids of the caller, and nothing in effect beyond them.
pub fn is_caller() -> bool {
    let (user, group) = sys::real_ids();
    let effective = sys::capabilities().map_or(u64::MAX, |capabilities| capabilities.effective);
    let is_usual = effective == 0 || user == 0;
    sys::user_ids() == [user; 3] && sys::group_ids() == [group; 3] && is_usual
}

/// Runs `action` with the capability in effect.
pub fn as_administrator<T>(action: impl FnOnce() -> Result<T>) -> Result<T> {
    set_effective(CAP_SYS_ADMIN)?;
    let result = action();
    set_effective(0)?;
    result
}

fn set_effective(effective: u64) -> Result<()> {
    let wrong = |error| Refusal::system("change its capabilities", error);
    let before = sys::capabilities().map_err(wrong)?;
    sys::set_capabilities(&Capabilities { effective, ..before }).map_err(wrong)
}

/// Gives up the capability, and verifies that neither it nor root can come back.
pub fn give_up() -> Result<()> {
    let wrong = |error| Refusal::system("give up its capabilities", error);
    let before = sys::capabilities().map_err(wrong)?;
    sys::set_capabilities(&Capabilities { effective: 0, permitted: 0, ..before }).map_err(wrong)?;
    sys::clear_ambient_capabilities().map_err(wrong)?;
    let now = sys::capabilities().map_err(wrong)?;
    let is_user = sys::real_ids().0 != 0 && is_caller();
    let returns = sys::set_user_ids(0).is_ok() || sys::set_effective_user_id(0).is_ok();
    if now.permitted != 0 || now.effective != 0 || !is_user || returns {
        return Err(KEPT);
    }
    Ok(())
}
