//! Serves a single caller from the caller's own CPU.
//!
//! A request wakes a worker and its reply wakes the caller. Across CPUs each of the two costs an
//! interrupt, and in a virtual machine the end of a halt. A round trip takes some 25 us, of which
//! the server works for 2 us (`docs/adr/fuse-one-caller-one-cpu.md`). The scheduler sends a woken
//! thread to an idle CPU, wherever it ran before. Left alone, the two never run on the same CPU.
//!
//! Therefore, while most requests come from one thread:
//! 1. One worker waits for requests, not several in turns. A thread that has just gone to sleep
//!    still counts as load on its CPU, and would drive the caller away from it.
//! 2. That worker runs on the caller's CPU, and follows it. The caller waits anyway while the
//!    worker runs.
//! 3. The worker sends its replies under `SCHED_IDLE`. The scheduler treats a CPU that runs nothing
//!    better as idle. So the caller wakes up on the CPU where it fell asleep, and continues at
//!    once. The worker keeps this policy from one reply to the next, since changing it and back
//!    takes 4 us. Before longer work it raises its priority. Its I/O has the ordinary priority
//!    throughout.
//!
//! The requests of other threads are answered in the background (`background`), so that the worker
//! keeps its CPU.
//!
//! No caller depends on that worker alone. A guard (`worker_pool`) checks every [`TICK`] whether a
//! worker still waits for requests, and calls another one if not. Under `SCHED_IDLE` a worker
//! starves while its CPU has something better to run, mostly the caller, and threads that wait for
//! a lock of that worker starve with it. The guard restores its priority.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::transport::cpu_set::{Cpus, everywhere};
use crate::transport::priority;

/// The interval of the guard's checks.
pub const TICK: Duration = Duration::from_millis(5);
/// A thread is the single caller when its count exceeds this, at first and at most. Each of its
/// requests adds one to the count, and each of another thread subtracts one.
const NEEDED: u32 = 32;
const NEEDED_MAX: u32 = 1 << 20;
/// Divides this number for the thread that was the single caller before another one called.
const KNOWN_CALLER_DIVISOR: u32 = 8;
/// Another thread becomes the caller with this number of requests in a row.
const OTHERS_IN_ROW: u32 = 16;
/// A turn of the single caller, counted in its own requests. After a whole turn the count that is
/// needed next time is halved, if it was raised.
const TURN: u32 = 4096;
/// If other threads made this many requests during a turn, one of them gets the next turn.
const OTHERS_IN_TURN: u32 = TURN / 8;
/// A worker that waits longer than this for a request has a caller on another CPU. On the worker's
/// own CPU the caller continues before the worker returns from its reply. The caller's next request
/// has then arrived before the worker can wait for it.
pub const DISTANT_CALLER_WAIT: Duration = Duration::from_micros(5);

/// The effect of a request on the single caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    Nothing,
    /// Its thread is the single caller from now on.
    Begins,
    /// It is another thread's, and the single caller stays the same.
    IsOther,
}

/// Whether most requests come from one thread, and from which. Shared by the workers. Each value is
/// independent of the others, and an outdated one costs time, nothing else.
pub struct SingleCaller {
    /// The CPUs that workers may run on when several threads call. `None`: no single caller is ever
    /// recognised, because the mount option forbids it or the system does not permit it.
    pub(super) everywhere: Option<&'static Cpus>,
    on: AtomicBool,
    /// The single caller, or the thread that may become it, and its count.
    caller: AtomicU32,
    count: AtomicU32,
    /// The thread that the last request came from. If that is not the single caller, also the
    /// number of requests that it has made in a row.
    last: AtomicU32,
    in_row: AtomicU32,
    /// The last thread that called, other than the single caller.
    last_other: AtomicU32,
    /// The thread that was the single caller before.
    before: AtomicU32,
    /// The count that makes a thread the single caller.
    needed: AtomicU32,
    /// The rest of the single caller's turn, and the requests of others in it.
    turn: AtomicU32,
    others: AtomicU32,
    /// The caller's CPU; -1 where it is not known.
    pub(super) caller_cpu: AtomicI32,
    /// `/proc/TID/stat` of the caller.
    stat: Mutex<Option<File>>,
    /// The worker that is under `SCHED_IDLE`, by its thread id; 0 if there is none.
    idle_worker: AtomicI32,
    /// Whether the last request has been answered, or is just being answered.
    answered: AtomicBool,
    /// Threads that were moved to, or kept from, the caller's CPU. When the single caller ends, all
    /// of them may run anywhere at once, also those that wait for a request. Otherwise the next
    /// caller, which is another thread, would have to wait for that CPU.
    pub(super) pinned: Mutex<Vec<i32>>,
}

impl SingleCaller {
    /// `allowed`: by the mount option.
    pub fn new(allowed: bool) -> SingleCaller {
        SingleCaller {
            everywhere: everywhere().filter(|cpus| allowed && cpus.count() > 1 && may_lower_priority()),
            on: AtomicBool::new(false),
            caller: AtomicU32::new(0),
            count: AtomicU32::new(0),
            last: AtomicU32::new(0),
            in_row: AtomicU32::new(0),
            last_other: AtomicU32::new(0),
            before: AtomicU32::new(0),
            needed: AtomicU32::new(NEEDED),
            turn: AtomicU32::new(TURN),
            others: AtomicU32::new(0),
            caller_cpu: AtomicI32::new(-1),
            stat: Mutex::default(),
            idle_worker: AtomicI32::new(0),
            answered: AtomicBool::new(true),
            pinned: Mutex::default(),
        }
    }

    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Notes a request of `thread`; 0 if the request belongs to no thread. `waited`: the worker
    /// waited for it longer than [`DISTANT_CALLER_WAIT`].
    pub fn note(&self, thread: u32, waited: bool) -> Noted {
        self.answered.store(false, Relaxed);
        // Requests of no thread count too: the caller that made the kernel send them runs on
        // another CPU. Between requests of other threads the wait has no meaning.
        if waited && self.is_on() && self.last.load(Relaxed) == self.caller.load(Relaxed) {
            self.look();
        }
        if thread == 0 || self.everywhere.is_none() {
            return Noted::Nothing;
        }
        if self.caller.load(Relaxed) != thread {
            return self.note_other(thread);
        }
        self.last.store(thread, Relaxed);
        let count = self.count.load(Relaxed) + 1;
        if self.is_on() {
            self.count.store(count.min(NEEDED), Relaxed);
            let left = self.turn.load(Relaxed).saturating_sub(1);
            self.turn.store(left, Relaxed);
            if left == 0 {
                self.next_turn();
            }
            return Noted::Nothing;
        }
        self.count.store(count, Relaxed);
        let divisor = if self.before.load(Relaxed) == thread { KNOWN_CALLER_DIVISOR } else { 1 };
        if count <= self.needed.load(Relaxed) / divisor {
            return Noted::Nothing;
        }
        self.before.store(thread, Relaxed);
        self.begin(thread);
        if self.on.swap(true, Relaxed) { Noted::Nothing } else { Noted::Begins }
    }

    fn begin(&self, thread: u32) {
        self.caller.store(thread, Relaxed);
        self.last.store(thread, Relaxed);
        self.count.store(NEEDED, Relaxed);
        self.turn.store(TURN, Relaxed);
        self.others.store(0, Relaxed);
        *self.stat.lock() = File::open(format!("/proc/{thread}/stat")).ok();
        self.look();
    }

    fn note_other(&self, thread: u32) -> Noted {
        let in_row =
            if self.last.swap(thread, Relaxed) == thread { self.in_row.load(Relaxed) + 1 } else { 1 };
        self.in_row.store(in_row, Relaxed);
        let count = self.count.load(Relaxed);
        if count > 0 && in_row < OTHERS_IN_ROW {
            self.count.store(count - 1, Relaxed);
            if !self.is_on() {
                return Noted::Nothing;
            }
            self.others.fetch_add(1, Relaxed);
            self.last_other.store(thread, Relaxed);
            return Noted::IsOther;
        }
        self.caller.store(thread, Relaxed);
        self.count.store(in_row, Relaxed);
        self.end();
        Noted::Nothing
    }

    /// Ends a turn. The next turn is another thread's if others called often. Other threads are
    /// served more slowly, so their requests alone could not outnumber the single caller's.
    fn next_turn(&self) {
        self.needed.store((self.needed.load(Relaxed) / 2).max(NEEDED), Relaxed);
        let has_others = self.others.load(Relaxed) >= OTHERS_IN_TURN;
        // If the other thread makes few requests, the present caller soon takes over again.
        self.before.store(self.caller.load(Relaxed), Relaxed);
        self.begin(if has_others { &self.last_other } else { &self.caller }.load(Relaxed));
    }

    fn end(&self) {
        if self.on.swap(false, Relaxed) {
            self.restore_priority();
            self.caller_cpu.store(-1, Relaxed);
            *self.stat.lock() = None;
            if let Some(everywhere) = &self.everywhere {
                self.pinned.lock().drain(..).for_each(|thread| _ = everywhere.apply_to(thread));
            }
        }
    }

    fn look(&self) {
        let mut text = [0; 1024];
        let len = self.stat.lock().as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let cpu = len.and_then(|len| cpu_of(&text[..len]));
        self.caller_cpu.store(cpu.unwrap_or(-1), Relaxed);
    }

    /// Notes that a background thread answers the last received request.
    pub fn has_handed_over(&self) {
        self.answered.store(true, Relaxed);
    }

    /// Whether the last received request has been answered.
    pub fn has_answered(&self) -> bool {
        self.answered.load(Relaxed)
    }

    /// Restores the priority of the worker that is under `SCHED_IDLE`. True if it starved, and did
    /// not wait for something.
    pub fn restore_priority(&self) -> bool {
        let idle_worker = self.idle_worker.swap(0, Relaxed);
        if idle_worker == 0 {
            return false;
        }
        let stat = std::fs::read(format!("/proc/self/task/{idle_worker}/stat")).unwrap_or_default();
        set_policy(idle_worker, libc::SCHED_OTHER);
        is_runnable(&stat)
    }

    /// Ends the single caller, since a request waited for a worker that starved. It takes longer to
    /// be recognised the next time.
    pub fn give_up(&self) {
        self.needed.store(self.needed.load(Relaxed).saturating_mul(4).min(NEEDED_MAX), Relaxed);
        self.before.store(0, Relaxed);
        self.count.store(0, Relaxed);
        self.end();
    }

    /// Called before a worker replies. If a single thread calls, the worker is under `SCHED_IDLE`
    /// from here on, until it raises its priority.
    pub fn lower_priority(&self) {
        self.answered.store(true, Relaxed);
        let me = this_thread();
        if !self.is_on() || self.idle_worker.load(Relaxed) == me {
            return;
        }
        // The guard knows of one such worker only.
        if self.idle_worker.compare_exchange(0, me, Relaxed, Relaxed).is_ok() {
            IO_PRIORITY.with(|set| set.call_once(keep_io_priority));
            IS_LOWERED.set(true);
            set_policy(0, libc::SCHED_IDLE);
        }
    }

    /// Called before the worker does longer work, or ends. Restores its priority.
    pub fn raise_priority(&self) {
        if IS_LOWERED.replace(false) {
            let _ = self.idle_worker.compare_exchange(this_thread(), 0, Relaxed, Relaxed);
            // Also if the guard has restored it, or may be about to.
            set_policy(0, libc::SCHED_OTHER);
        }
    }
}

/// Called at the start of a thread. It inherits CPUs, policy and priority from the thread that has
/// started it: that may be a worker that is bound to a caller's CPU and yields to all others there.
pub fn begin_thread() {
    if let Some(everywhere) = everywhere() {
        everywhere.apply();
    }
    // SAFETY: it takes a number.
    if unsafe { libc::sched_getscheduler(0) } == libc::SCHED_IDLE {
        set_policy(0, libc::SCHED_OTHER);
    }
    priority::reset();
}

thread_local! {
    /// The calling thread's number, read once: libc asks the kernel each time.
    // SAFETY: gettid takes nothing.
    static THREAD: i32 = unsafe { libc::gettid() };
    /// Whether the thread has lowered its priority and not raised it since. The guard may have
    /// restored it in between.
    static IS_LOWERED: Cell<bool> = const { Cell::new(false) };
    /// Separates the thread's I/O priority from its policy.
    static IO_PRIORITY: Once = const { Once::new() };
}

pub fn this_thread() -> i32 {
    THREAD.with(|thread| *thread)
}

/// Sets the I/O priority of the calling thread to the one that its nice value implies, if none was
/// ever set. Otherwise its policy would decide: under `SCHED_IDLE` its writes would wait until no
/// other thread uses the disk (ionice(1)).
fn keep_io_priority() {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_SHIFT: libc::c_long = 13;
    const BEST_EFFORT: libc::c_long = 2;
    // SAFETY: both take numbers, and getpriority may return any.
    unsafe {
        let now = libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0);
        if now >> CLASS_SHIFT == 0 {
            let nice = libc::c_long::from(libc::getpriority(libc::PRIO_PROCESS, 0));
            let priority = (BEST_EFFORT << CLASS_SHIFT) | ((nice + 20) / 5);
            libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, priority);
        }
    }
}

/// Sets the policy of a thread, 0 for the calling one. Its nice value stays.
fn set_policy(thread: i32, policy: i32) -> bool {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameters.
    unsafe { libc::sched_setscheduler(thread, policy, &param) == 0 }
}

/// Whether a thread may change to `SCHED_IDLE` and back, which takes CAP_SYS_NICE or a limit, and
/// has no policy of its own that would be lost.
fn may_lower_priority() -> bool {
    // SAFETY: it takes a number.
    let plain = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
    let there_and_back = || set_policy(0, libc::SCHED_IDLE) && set_policy(0, libc::SCHED_OTHER);
    plain && thread::spawn(there_and_back).join().unwrap_or(false)
}

/// The CPU that a thread last ran on: field 39 of its `stat` (proc(5)).
fn cpu_of(stat: &[u8]) -> Option<i32> {
    behind_name(stat)?.nth(39 - 3)?.parse().ok()
}

/// Whether a thread wants the CPU, by field 3 of its `stat`.
fn is_runnable(stat: &[u8]) -> bool {
    behind_name(stat).and_then(|mut fields| fields.next()) == Some("R")
}

/// The fields of `stat` from the third on. The name in field 2 may hold anything, and ends with the
/// last parenthesis.
fn behind_name(stat: &[u8]) -> Option<std::str::SplitAsciiWhitespace<'_>> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let text = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    Some(text.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::cpu_pin::CpuPin;

    #[test]
    fn the_cpu_is_read_off_proc() {
        // SAFETY: they take nothing.
        let (thread, cpu) = unsafe { (libc::gettid(), libc::sched_getcpu()) };
        let pinned = Cpus::of_this_thread().unwrap().only(cpu).unwrap();
        assert!(pinned.apply());
        let stat = std::fs::read(format!("/proc/{thread}/stat")).unwrap();
        assert_eq!(cpu_of(&stat), Some(cpu));
        let odd = stat.iter().position(|&b| b == b'(').unwrap() + 1;
        let odd = [&stat[..odd], b") R 1 2 (", &stat[odd..]].concat();
        assert_eq!(cpu_of(&odd), Some(cpu));
        assert_eq!(cpu_of(b"12 (x) R 1"), None);
        assert!(is_runnable(&odd) && !is_runnable(b"12 (R) S 1") && !is_runnable(b""));
    }

    /// `None` on one CPU, or without the right to change policies.
    fn single_caller() -> Option<SingleCaller> {
        let caller = SingleCaller::new(true);
        if caller.everywhere.is_none() {
            println!("one CPU, or no right to change policies: no thread is a single caller here");
            return None;
        }
        Some(caller)
    }

    /// One thread becomes the single caller, another ends that. Requests of no thread (FORGET) do
    /// neither.
    #[test]
    fn one_thread_that_calls_is_the_single_caller() {
        let Some(caller) = single_caller() else { return };
        let me = std::process::id();
        let requests = || (0..2 * NEEDED).flat_map(|_| [caller.note(me, false), caller.note(0, false)]);
        assert_eq!(requests().filter(|noted| *noted == Noted::Begins).count(), 1);
        assert!(caller.is_on());
        assert!(caller.caller_cpu.load(Relaxed) >= 0);
        assert_eq!(caller.note(1, false), Noted::IsOther);
        assert_eq!(caller.note(me, false), Noted::Nothing);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut pin = CpuPin::new(&caller);
                let cpus = || Cpus::of_this_thread().unwrap().count();
                pin.follow();
                assert_eq!(cpus(), 1);
                thread::spawn(move || {
                    assert_eq!(cpus(), 1, "a thread inherits its CPUs from the thread that starts it");
                    begin_thread();
                    assert!(cpus() > 1);
                })
                .join()
                .unwrap();
                (1..OTHERS_IN_ROW).for_each(|_| assert_eq!(caller.note(1, false), Noted::IsOther));
                assert_eq!(caller.note(1, false), Noted::Nothing);
                assert!(!caller.is_on());
                assert!(cpus() > 1, "also while it waits for a request");
                pin.follow();
                assert!(cpus() > 1);
            });
        });
        assert!(caller.count.load(Relaxed) == OTHERS_IN_ROW && caller.caller.load(Relaxed) == 1);
        let again = (1..2 * NEEDED).find(|_| caller.note(me, false) == Noted::Begins).unwrap();
        assert_eq!(again, OTHERS_IN_ROW + 1, "a thread that was the single caller becomes it sooner");
    }

    /// Two threads call alternately: neither becomes the single caller. A thread that calls less
    /// often than the other gets the turn after the other's.
    #[test]
    fn callers_beside_the_single_one_get_their_turn() {
        let Some(caller) = single_caller() else { return };
        let me = std::process::id();
        for _ in 0..4 * NEEDED {
            assert_eq!([caller.note(me, false), caller.note(1, false)], [Noted::Nothing; 2]);
        }
        let began = (1..).find(|_| caller.note(me, false) == Noted::Begins).unwrap();
        assert!(began <= 2 * NEEDED, "{began}");
        let turn = (1..).find(|_| {
            (0..3).for_each(|_| _ = caller.note(me, false));
            let other = caller.note(1, false);
            assert!(caller.is_on());
            other != Noted::IsOther
        });
        assert_eq!(turn, Some(TURN.div_ceil(3)));
        assert_eq!(caller.caller.load(Relaxed), 1);
        let back = (1..2 * NEEDED).find(|_| caller.note(me, false) == Noted::Begins);
        assert!(back.is_some_and(|back| back <= OTHERS_IN_ROW + NEEDED / KNOWN_CALLER_DIVISOR), "{back:?}");
    }

    #[test]
    fn no_thread_is_the_single_caller_where_the_option_forbids_it() {
        let caller = SingleCaller::new(false);
        assert!((0..10 * NEEDED).all(|_| caller.note(std::process::id(), false) == Noted::Nothing));
        assert!(!caller.is_on());
        caller.lower_priority();
        // SAFETY: it takes a number.
        assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_OTHER);
    }

    /// A worker that starves gets its priority back. If a request waited for it, the single caller
    /// takes longer to be recognised the next time.
    #[test]
    fn a_starving_worker_gets_its_priority_back() {
        let Some(caller) = single_caller() else { return };
        let me = std::process::id();
        let requests_until_single = || {
            let mut run = 0;
            while !caller.is_on() {
                caller.note(me, false);
                run += 1;
            }
            run
        };
        // SAFETY: it takes a number.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let first = requests_until_single();
        assert!(!caller.restore_priority(), "no worker starves");
        caller.lower_priority();
        assert_eq!(policy(), libc::SCHED_IDLE);
        // SAFETY: it takes numbers.
        let io_class = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) } >> 13;
        assert_eq!(io_class, 2, "best effort");
        assert!(caller.restore_priority());
        assert_eq!(policy(), libc::SCHED_OTHER);
        let waits = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                caller.lower_priority();
                thread::park();
                caller.raise_priority();
            });
            while caller.idle_worker.load(Relaxed) == 0 {
                thread::sleep(TICK);
            }
            thread::sleep(TICK);
            let starves = caller.restore_priority();
            worker.thread().unpark();
            !starves
        });
        assert!(waits, "a worker that waits does not starve");
        caller.lower_priority();
        assert_eq!(policy(), libc::SCHED_IDLE);
        thread::scope(|scope| {
            scope.spawn(|| {
                // The thread has inherited the policy.
                set_policy(0, libc::SCHED_OTHER);
                caller.lower_priority();
                assert_eq!(policy(), libc::SCHED_OTHER, "one worker at a time is under SCHED_IDLE");
            });
        });
        caller.raise_priority();
        assert_eq!(policy(), libc::SCHED_OTHER);
        assert!(!caller.restore_priority(), "no worker starves");
        caller.lower_priority();
        assert!(caller.is_on());
        caller.give_up();
        assert!(!caller.is_on());
        assert_eq!(policy(), libc::SCHED_OTHER, "it ends with the single caller");
        caller.raise_priority();
        assert!(requests_until_single() > 2 * first);
    }
}
