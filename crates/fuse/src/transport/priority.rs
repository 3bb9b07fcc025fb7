//! The priority of threads. Threads that work for busy users yield to others, and no thread waits
//! long for a contended CPU.

use std::cell::Cell;
use std::sync::OnceLock;

/// Nice value of a thread that yields: a third of the weight of others. With less weight, locks
/// that others wait for would stay with threads that hardly run.
const LOW: i32 = 0;
/// Nice value of a thread that does not yield.
const ORDINARY: i32 = -5;

thread_local! {
    static IS_LOW: Cell<bool> = const { Cell::new(false) };
}

/// Gives the calling thread a low priority, or the ordinary one again. Has no effect if this
/// process may not raise a priority that it has lowered.
pub fn set(low: bool) {
    if IS_LOW.get() == low || !may_be_raised() {
        return;
    }
    IS_LOW.set(low);
    nice(if low { LOW } else { ORDINARY });
    xact::when_leading(low.then_some(lead));
}

/// Called when a thread of low priority begins to lead a commit, or has ended that. All threads
/// that want their changes durable wait for it, so it has the ordinary priority while it leads.
fn lead(leads: bool) {
    nice(if leads { ORDINARY } else { LOW });
}

/// Gives the calling thread, which has just been started, the ordinary priority.
pub fn reset() {
    if may_be_raised() {
        nice(ORDINARY);
    }
    shorten_slice();
}

/// The time slice of a thread on a contended CPU, in nanoseconds: the least that the kernel
/// accepts.
const SLICE: u64 = 100_000;

/// `struct sched_attr` (sched_setattr(2)) in its first version.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Makes the scheduler run the calling thread earlier after it is woken on a contended CPU, and for
/// a shorter time: its share stays the same. A worker is woken for a caller on the CPU where it ran
/// last. If another user keeps that CPU busy with many processes, the caller on another CPU would
/// wait for all of them. Kernels before 6.12 ignore it.
fn shorten_slice() {
    const PROCESS: libc::c_int = 0;
    let mut attr = SchedAttr { size: size_of::<SchedAttr>() as u32, runtime: SLICE, ..SchedAttr::default() };
    // SAFETY: it returns a number of the calling thread; the kernel reads a struct of the size in
    // its first field.
    unsafe {
        attr.nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::syscall(libc::SYS_sched_setattr, PROCESS, &raw const attr, 0);
    }
}

fn nice(value: i32) -> bool {
    // SAFETY: it takes numbers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) == 0 }
}

/// Whether a thread may raise its priority again after it has lowered it. This is tried once, on a
/// thread that ends then.
fn may_be_raised() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        // SAFETY: it returns a number of the calling thread.
        let ordinary = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) } == 0;
        let tried = std::thread::Builder::new().spawn(|| nice(LOW) && nice(ORDINARY));
        ordinary && tried.is_ok_and(|tried| tried.join().unwrap_or(false))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_down_and_up_again() {
        std::thread::spawn(|| {
            // SAFETY: it returns a number of the calling thread.
            let now = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
            reset();
            let before = now();
            assert_eq!(before == ORDINARY, may_be_raised());
            set(true);
            let low = if may_be_raised() { LOW } else { before };
            assert_eq!(now(), low);
            // A thread that was not lowered has no action for leading.
            if may_be_raised() {
                lead(true);
                assert_eq!(now(), before);
                lead(false);
                assert_eq!(now(), low);
            }
            set(false);
            assert_eq!(now(), before);
        })
        .join()
        .unwrap();
    }
}
