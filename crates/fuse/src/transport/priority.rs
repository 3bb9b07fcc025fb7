//! The priority of threads: those that work for users who ask for much yield to others, and none
//! waits long for a CPU that many want.

use std::cell::Cell;
use std::sync::OnceLock;

/// Nice value of a thread that yields: a third of the weight of others. Less would leave locks that
/// others wait for with threads that hardly run.
const LOW: i32 = 0;
/// That of a thread that does not.
const ORDINARY: i32 = -5;

thread_local! {
    static IS_LOW: Cell<bool> = const { Cell::new(false) };
}

/// Gives the calling thread a low priority, or the ordinary one again. Nothing happens where this
/// process may not take the first back.
pub fn set(low: bool) {
    if IS_LOW.get() == low || !may_be_raised() {
        return;
    }
    IS_LOW.set(low);
    nice(if low { LOW } else { ORDINARY });
    xact::when_leading(low.then_some(lead));
}

/// A thread of low priority leads a commit, or has ended that. All threads that want their changes
/// durable wait for it, so it has the ordinary priority while it leads.
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

/// What a thread runs at a time when others want its CPU, in nanoseconds: the least that the kernel
/// takes.
const SLICE: u64 = 100_000;

/// `struct sched_attr` (sched_setattr(2)), as it was first.
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

/// Has the calling thread run earlier when it is woken on a CPU that many want, and shorter: its
/// share stays what it is. A worker is woken for whoever calls, wherever it ran last: where
/// somebody keeps that CPU busy with many processes, the caller on another one would wait for all
/// of them. Kernels before 6.12 do not know of it.
fn shorten_slice() {
    const PROCESS: libc::c_int = 0;
    let mut attr = SchedAttr { size: size_of::<SchedAttr>() as u32, runtime: SLICE, ..SchedAttr::default() };
    // SAFETY: it tells a number of the calling thread; the kernel reads a struct of the size that
    // it says.
    unsafe {
        attr.nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::syscall(libc::SYS_sched_setattr, PROCESS, &raw const attr, 0);
    }
}

fn nice(value: i32) -> bool {
    // SAFETY: it takes numbers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) == 0 }
}

/// Whether a thread may go back to the priority that it had: tried once, on a thread that ends
/// then.
fn may_be_raised() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        // SAFETY: it tells a number of the calling thread.
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
            // SAFETY: it tells a number of the calling thread.
            let now = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
            reset();
            let before = now();
            assert_eq!(before == ORDINARY, may_be_raised());
            set(true);
            let low = if may_be_raised() { LOW } else { before };
            assert_eq!(now(), low);
            lead(true);
            assert_eq!(now(), before);
            lead(false);
            assert_eq!(now(), low);
            set(false);
            assert_eq!(now(), before);
        })
        .join()
        .unwrap();
    }
}
