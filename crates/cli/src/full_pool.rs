//! Messages about a full pool of generations: when it is full, what is in it, and what to do.

use std::io;
use std::path::Path;

use xact_control::abi::Pool;

use crate::values::size_text;

/// Whether nothing can be added until a part of the pool becomes free.
pub fn is_full(pool: &Pool) -> bool {
    pool.size.saturating_sub(pool.used) < pool.needed
}

/// The line of `xact stat` for a full pool.
pub fn line(needed_bytes: u64) -> String {
    format!(
        "full: {} must be free before anything can be added; delete snapshots ('xact snapshot list', 'delete', 'prune')",
        size_text(needed_bytes)
    )
}

/// The hint for a full pool, if the pool is full.
pub fn hint(mount_point: &Path, pool: io::Result<Pool>) -> Option<String> {
    let pool = pool.ok().filter(is_full)?;
    let at = mount_point.display();
    let size = size_text(pool.size);
    if pool.snapshots == 0 {
        return Some(format!(
            "The pool of the volume on {at} ({size}) is full, and no snapshot holds a part of it. Try again: commits \
             write its blocks home. 'xact mkfs' and 'xact convert' make a larger one with --pool-size."
        ));
    }
    let held = size_text(pool.snapshots);
    Some(format!(
        "Snapshots hold {held} of the volume's pool ({size}) on {at}; 'xact snapshot list {at}' lists them. Delete some \
         with 'xact snapshot delete' or 'prune'."
    ))
}

/// The hint for a transaction that is too large for one commit.
pub fn too_large_hint(pool: io::Result<Pool>) -> String {
    match pool {
        Ok(pool) if pool.size > 0 => format!(
            "Split it into smaller parts. The limit of one commit depends on the volume's pool, which has {} here; \
             'xact mkfs' and 'xact convert' make a larger one with --pool-size.",
            size_text(pool.size)
        ),
        _ => "Split it into smaller parts. The journal of this volume cannot grow for a transaction; that of a volume made \
              by 'xact mkfs' can."
            .into(),
    }
}
