//! Serving one caller from its own CPU.
//!
//! A request wakes a worker and its reply wakes the caller. Across CPUs each of the two costs an
//! interrupt, and in a virtual machine the end of a halt: some 25 us for a round trip of which the
//! server works for two (`docs/adr/fuse-one-caller-one-cpu.md`). The scheduler sends who is woken to
//! an idle CPU, wherever it came from, so left alone the two never meet.
//!
//! While all requests come from one thread, therefore (*calm*):
//! 1. one worker waits for requests, not several in turns. What has just gone to sleep still counts as
//!    load on a CPU, and would drive the caller away from it;
//! 2. that worker runs on the caller's CPU, and follows it: the caller waits while it works anyway;
//! 3. it sends its replies under `SCHED_IDLE`. The scheduler takes a CPU that runs nothing better for an idle
//!    one, so the caller wakes up where it fell asleep and goes on at once. The worker stays so from one reply
//!    to the next, since to change that and back takes 4 us; before what lasts it stands up. It reads and writes
//!    as a thread does that has its rights.
//!
//! Nobody depends on that worker alone: a guard (`worker_pool`) looks every [`TICK`] whether somebody still
//! waits for requests, and calls another worker if not. Under `SCHED_IDLE` a worker starves while its
//! CPU has something better to do, which is mostly the caller, and whoever waits for a lock of that worker with it; the
//! guard gives it its rights back.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::Relaxed};
use std::sync::{Once, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::transport::priority;

/// How often the guard looks.
pub const TICK: Duration = Duration::from_millis(5);
/// So many requests of one thread in a row make it calm, at first and at the most.
const RUN: u32 = 64;
const RUN_MAX: u32 = 1 << 20;
/// It takes so many times fewer of the thread that it was calm with before somebody else came by.
const AGAIN: u32 = 8;
/// A worker that waits longer than this for a request has a caller that runs beside it: on its own CPU the
/// caller goes on before the worker is back from its reply, and asks again before that can wait.
pub const BESIDE: Duration = Duration::from_micros(5);

/// Whether it is calm, and who calls. Shared by the workers; each value stands alone, and one that is
/// out of date costs time, nothing else.
pub struct Calm {
    /// What workers may run on when it is not calm. `None`: it never is.
    everywhere: Option<&'static Cpus>,
    on: AtomicBool,
    /// The thread that the last requests came from, and how many they were.
    caller: AtomicU32,
    run: AtomicU32,
    /// The thread that it was calm with, the last time.
    before: AtomicU32,
    /// The run that makes it calm.
    needed: AtomicU32,
    /// The caller's CPU; -1 where it is not known.
    home: AtomicI32,
    /// `/proc/TID/stat` of the caller.
    stat: Mutex<Option<File>>,
    /// The worker that is under `SCHED_IDLE`, by its thread id; or 0.
    modest: AtomicI32,
    /// The last request has been answered, or is just being.
    answered: AtomicBool,
    /// Threads that were moved to, or kept from, the caller's CPU. When it is not calm any more they may run anywhere at
    /// once, also those that wait for a request: else the next one to call, who is another, had to wait for that CPU.
    seated: Mutex<Vec<i32>>,
}

impl Calm {
    pub fn new() -> Calm {
        Calm {
            everywhere: everywhere().filter(|cpus| cpus.count() > 1 && may_be_modest()),
            on: AtomicBool::new(false),
            caller: AtomicU32::new(0),
            run: AtomicU32::new(0),
            before: AtomicU32::new(0),
            needed: AtomicU32::new(RUN),
            home: AtomicI32::new(-1),
            stat: Mutex::default(),
            modest: AtomicI32::new(0),
            answered: AtomicBool::new(true),
            seated: Mutex::default(),
        }
    }

    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Takes note of a request of thread `caller`; 0 where it is nobody's. `waited`: for longer than [`BESIDE`]. True
    /// if it has become calm.
    pub fn note(&self, caller: u32, waited: bool) -> bool {
        self.answered.store(false, Relaxed);
        // Even where it is nobody's: who has just made the kernel send that goes on elsewhere meanwhile.
        if waited && self.is_on() {
            self.look();
        }
        if caller == 0 || self.everywhere.is_none() {
            return false;
        }
        if self.caller.swap(caller, Relaxed) != caller {
            self.run.store(0, Relaxed);
            self.end();
            return false;
        }
        let run = self.run.fetch_add(1, Relaxed).wrapping_add(1);
        if self.is_on() {
            return false;
        }
        let again = self.before.load(Relaxed) == caller;
        if run < self.needed.load(Relaxed) / if again { AGAIN } else { 1 } {
            return false;
        }
        self.before.store(caller, Relaxed);
        *self.stat.lock() = File::open(format!("/proc/{caller}/stat")).ok();
        self.look();
        !self.on.swap(true, Relaxed)
    }

    fn end(&self) {
        if self.on.swap(false, Relaxed) {
            self.relieve();
            self.home.store(-1, Relaxed);
            *self.stat.lock() = None;
            if let Some(everywhere) = &self.everywhere {
                self.seated.lock().drain(..).for_each(|thread| _ = everywhere.apply_to(thread));
            }
        }
    }

    fn look(&self) {
        let mut text = [0; 1024];
        let len = self.stat.lock().as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let cpu = len.and_then(|len| cpu_of(&text[..len]));
        self.home.store(cpu.unwrap_or(-1), Relaxed);
    }

    /// Whether the last request that was received has been answered.
    pub fn has_answered(&self) -> bool {
        self.answered.load(Relaxed)
    }

    /// Gives the worker that is under `SCHED_IDLE` its rights back; true where it starved, and did not wait for
    /// something.
    pub fn relieve(&self) -> bool {
        let modest = self.modest.swap(0, Relaxed);
        if modest == 0 {
            return false;
        }
        let stat = std::fs::read(format!("/proc/self/task/{modest}/stat")).unwrap_or_default();
        set_policy(modest, libc::SCHED_OTHER);
        is_runnable(&stat)
    }

    /// Somebody waited for a worker that starved: it ends, and takes longer to come the next time.
    pub fn give_up(&self) {
        self.needed.store(self.needed.load(Relaxed).saturating_mul(4).min(RUN_MAX), Relaxed);
        self.before.store(0, Relaxed);
        self.run.store(0, Relaxed);
        self.end();
    }

    /// Before a worker replies: it is under `SCHED_IDLE` from here on if it is calm, until it stands up.
    pub fn sit_down(&self) {
        self.answered.store(true, Relaxed);
        let me = this_thread();
        if !self.is_on() || self.modest.load(Relaxed) == me {
            return;
        }
        // The guard knows of one.
        if self.modest.compare_exchange(0, me, Relaxed, Relaxed).is_ok() {
            IO_PRIORITY.with(|set| set.call_once(keep_io_priority));
            IS_MODEST.set(true);
            set_policy(0, libc::SCHED_IDLE);
        }
    }

    /// Before the calling worker does what lasts, or serves no longer: it has its rights back.
    pub fn stand_up(&self) {
        if IS_MODEST.replace(false) {
            let _ = self.modest.compare_exchange(this_thread(), 0, Relaxed, Relaxed);
            // Also where somebody has relieved it, who may be about to do this.
            set_policy(0, libc::SCHED_OTHER);
        }
    }
}

/// Where a thread of the server may run, as far as it has said.
pub struct Seat<'a> {
    calm: &'a Calm,
    home: Option<i32>,
}

impl<'a> Seat<'a> {
    pub fn new(calm: &'a Calm) -> Seat<'a> {
        Seat { calm, home: None }
    }

    /// Moves the calling worker to the caller's CPU, or lets it go anywhere again.
    pub fn take(&mut self) {
        self.change(Cpus::only);
    }

    /// Keeps the calling thread away from the caller's CPU.
    pub fn leave(&mut self) {
        self.change(Cpus::without);
    }

    fn change(&mut self, choose: impl Fn(&Cpus, i32) -> Option<Cpus>) {
        let calm = self.calm;
        let Some(everywhere) = calm.everywhere else { return };
        let home = calm.home.load(Relaxed);
        let home = (home >= 0 && calm.is_on()).then_some(home);
        if home == self.home {
            return;
        }
        let moved = match home {
            Some(cpu) => choose(everywhere, cpu).is_some_and(|cpus| {
                // With the lock held: where it ends meanwhile, it is undone after that.
                let mut seated = calm.seated.lock();
                let (me, moved) = (this_thread(), calm.is_on() && cpus.apply());
                if moved && !seated.contains(&me) {
                    seated.push(me);
                }
                moved
            }),
            None => everywhere.apply(),
        };
        if moved {
            self.home = home;
        }
    }
}

impl Drop for Seat<'_> {
    /// The thread serves no more, and may end: its number may be another's then.
    fn drop(&mut self) {
        if self.home.is_some() {
            self.calm.seated.lock().retain(|thread| *thread != this_thread());
            self.calm.everywhere.inspect(|everywhere| _ = everywhere.apply());
        }
    }
}

/// A set of CPUs.
#[derive(Clone)]
struct Cpus(libc::cpu_set_t);

impl PartialEq for Cpus {
    fn eq(&self, other: &Cpus) -> bool {
        // SAFETY: it reads both sets.
        unsafe { libc::CPU_EQUAL(&self.0, &other.0) }
    }
}

impl Cpus {
    fn of_this_thread() -> Option<Cpus> {
        Cpus::of_thread(0)
    }

    fn of_thread(thread: i32) -> Option<Cpus> {
        let mut set = MaybeUninit::zeroed();
        // SAFETY: the kernel fills the set, whose size is told, if it returns 0.
        unsafe {
            let done = libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) == 0;
            done.then(|| Cpus(set.assume_init()))
        }
    }

    fn and(&self, other: &Cpus) -> Cpus {
        let mut both = self.clone();
        for cpu in 0..libc::CPU_SETSIZE as usize {
            // SAFETY: the number is within the bit field.
            unsafe {
                if !libc::CPU_ISSET(cpu, &other.0) {
                    libc::CPU_CLR(cpu, &mut both.0);
                }
            }
        }
        both
    }

    fn count(&self) -> i32 {
        // SAFETY: it reads the set.
        unsafe { libc::CPU_COUNT(&self.0) }
    }

    /// The one CPU, if it is in the set.
    fn only(&self, cpu: i32) -> Option<Cpus> {
        // SAFETY: cpu_set_t is a bit field, for which zero is a value.
        let empty = unsafe { MaybeUninit::zeroed().assume_init() };
        self.having(cpu).then(|| Cpus::set(empty, cpu, libc::CPU_SET))
    }

    /// All but the one CPU, if it is in the set.
    fn without(&self, cpu: i32) -> Option<Cpus> {
        self.having(cpu).then(|| Cpus::set(self.0, cpu, libc::CPU_CLR))
    }

    fn having(&self, cpu: i32) -> bool {
        // SAFETY: the number is within the bit field.
        (0..libc::CPU_SETSIZE).contains(&cpu) && unsafe { libc::CPU_ISSET(cpu as usize, &self.0) }
    }

    fn set(
        mut cpus: libc::cpu_set_t,
        cpu: i32,
        how: unsafe extern "C" fn(usize, &mut libc::cpu_set_t),
    ) -> Cpus {
        // SAFETY: callers have asked `having`, so the number is within the bit field.
        unsafe { how(cpu as usize, &mut cpus) };
        Cpus(cpus)
    }

    /// The calling thread runs on these alone from now on.
    fn apply(&self) -> bool {
        self.apply_to(0)
    }

    /// The same of a thread of this process.
    fn apply_to(&self, thread: i32) -> bool {
        // SAFETY: the kernel reads the set, whose size is told.
        unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &self.0) == 0 }
    }
}

/// What the process may run on: asked for before any thread is moved.
fn everywhere() -> Option<&'static Cpus> {
    static EVERYWHERE: OnceLock<Option<Cpus>> = OnceLock::new();
    EVERYWHERE.get_or_init(Cpus::of_this_thread).as_ref()
}

thread_local! {
    /// What the calling thread is confined to, for whom it works.
    static CONFINED: RefCell<Option<Cpus>> = const { RefCell::new(None) };
}

/// The CPUs that a caller is confined to (taskset(1), cpusets), where these are not all that this process has.
#[derive(Clone, Default)]
pub struct Confinement(Option<Cpus>);

impl Confinement {
    /// That of a thread; none where it is not known.
    pub fn of(thread: u32) -> Confinement {
        let Some(everywhere) = everywhere().filter(|cpus| thread != 0 && cpus.count() > 1) else {
            return Confinement::default();
        };
        let own = Cpus::of_thread(thread as i32).map(|cpus| cpus.and(everywhere));
        Confinement(own.filter(|cpus| cpus.count() > 0 && cpus.count() < everywhere.count()))
    }

    /// That of whom the calling thread works for.
    pub fn current() -> Confinement {
        Confinement(CONFINED.with_borrow(Clone::clone))
    }

    /// The calling thread works for one who is confined like this, from now on: what that costs takes CPUs that he may
    /// use, and not those of others.
    pub fn apply(&self) {
        CONFINED.with_borrow_mut(|confined| {
            if *confined == self.0 {
                return;
            }
            if let Some(cpus) = self.0.as_ref().or(everywhere()) {
                cpus.apply();
            }
            *confined = self.0.clone();
        });
    }
}

/// At the start of a thread, which has its CPUs, its policy and its priority from the one that has started it: a worker,
/// that may be bound to a caller's CPU, and yield to everybody there.
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
    /// The calling thread's number, asked for once: libc asks the kernel each time.
    // SAFETY: gettid takes nothing.
    static THREAD: i32 = unsafe { libc::gettid() };
    /// Whether it has sat down and not stood up since; somebody may have relieved it meanwhile.
    static IS_MODEST: Cell<bool> = const { Cell::new(false) };
    /// Its I/O priority does not follow its policy.
    static IO_PRIORITY: Once = const { Once::new() };
}

fn this_thread() -> i32 {
    THREAD.with(|thread| *thread)
}

/// Gives the calling thread the I/O priority that it has, if none was ever set, by its nice value: else its policy would
/// decide, and under `SCHED_IDLE` what it writes would wait until nobody else wants the disk (ionice(1)).
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

/// Of a thread, 0 for the calling one. Its nice value stays.
fn set_policy(thread: i32, policy: i32) -> bool {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameters.
    unsafe { libc::sched_setscheduler(thread, policy, &param) == 0 }
}

/// Whether a thread may go to `SCHED_IDLE` and come back, which takes CAP_SYS_NICE or a limit; and has
/// no policy of its own that would be lost.
fn may_be_modest() -> bool {
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

/// The fields of `stat` from the third on. The name in field 2 may hold anything, and ends with the last parenthesis.
fn behind_name(stat: &[u8]) -> Option<std::str::SplitAsciiWhitespace<'_>> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let text = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    Some(text.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// One thread makes it calm, another ends it; nobody's requests (FORGET) do neither.
    #[test]
    fn calm_is_when_one_thread_calls() {
        let calm = Calm::new();
        if calm.everywhere.is_none() {
            println!("one CPU, or no right to change policies: it is never calm here");
            return;
        }
        let me = std::process::id();
        assert!(!calm.note(me, false));
        let became = (0..2 * RUN).filter(|_| calm.note(me, false) | calm.note(0, false)).count();
        assert_eq!(became, 1);
        assert!(calm.is_on());
        assert!(calm.home.load(Relaxed) >= 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut seat = Seat::new(&calm);
                let cpus = || Cpus::of_this_thread().unwrap().count();
                seat.take();
                assert_eq!(cpus(), 1);
                thread::spawn(move || {
                    assert_eq!(cpus(), 1, "a thread has its CPUs from the one that starts it");
                    begin_thread();
                    assert!(cpus() > 1);
                })
                .join()
                .unwrap();
                assert!(!calm.note(1, false));
                assert!(!calm.is_on());
                assert!(cpus() > 1, "also while it waits for a request");
                seat.take();
                assert!(cpus() > 1);
            });
        });
        let again = (1..2 * RUN).find(|_| calm.note(me, false));
        assert_eq!(again, Some(RUN / AGAIN + 1), "who has been there before comes back sooner");
    }

    /// Who works for one who is confined to some CPUs is there too.
    #[test]
    fn work_is_done_where_the_caller_may_run() {
        let Some(all) = everywhere().filter(|cpus| cpus.count() > 1) else { return };
        let first = (0..libc::CPU_SETSIZE).find(|&cpu| all.having(cpu)).unwrap();
        let cpus = || Cpus::of_this_thread().unwrap();
        thread::spawn(move || {
            assert!(Confinement::of(this_thread() as u32).0.is_none());
            all.only(first).unwrap().apply();
            let confined = Confinement::of(this_thread() as u32);
            thread::spawn(move || {
                begin_thread();
                confined.apply();
                assert!(cpus().count() == 1 && cpus().having(first));
                assert!(Confinement::current().0.is_some());
                Confinement::default().apply();
                assert_eq!(cpus().count(), all.count());
            })
            .join()
            .unwrap();
        })
        .join()
        .unwrap();
        assert!(Confinement::of(0).0.is_none());
    }

    /// A worker that starves is let go; if somebody waited for it, the next calm takes longer to come.
    #[test]
    fn who_starves_is_relieved() {
        let calm = Calm::new();
        if calm.everywhere.is_none() {
            return;
        }
        let me = std::process::id();
        let run_to_calm = || {
            let mut run = 0;
            while !calm.is_on() {
                calm.note(me, false);
                run += 1;
            }
            run
        };
        // SAFETY: it takes a number.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let first = run_to_calm();
        assert!(!calm.relieve(), "nobody starves");
        calm.sit_down();
        assert_eq!(policy(), libc::SCHED_IDLE);
        // SAFETY: it takes numbers.
        let io_class = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) } >> 13;
        assert_eq!(io_class, 2, "best effort");
        assert!(calm.relieve());
        assert_eq!(policy(), libc::SCHED_OTHER);
        let waits = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                calm.sit_down();
                thread::park();
                calm.stand_up();
            });
            while calm.modest.load(Relaxed) == 0 {
                thread::sleep(TICK);
            }
            thread::sleep(TICK);
            let starves = calm.relieve();
            worker.thread().unpark();
            !starves
        });
        assert!(waits, "who waits does not starve");
        calm.sit_down();
        assert_eq!(policy(), libc::SCHED_IDLE);
        thread::scope(|scope| {
            scope.spawn(|| {
                // It has that from who started it.
                set_policy(0, libc::SCHED_OTHER);
                calm.sit_down();
                assert_eq!(policy(), libc::SCHED_OTHER, "one sits at a time");
            });
        });
        calm.stand_up();
        assert_eq!(policy(), libc::SCHED_OTHER);
        assert!(!calm.relieve(), "nobody starves");
        calm.sit_down();
        assert!(calm.is_on());
        calm.give_up();
        assert!(!calm.is_on());
        assert_eq!(policy(), libc::SCHED_OTHER, "with the calm it ends");
        calm.stand_up();
        assert!(run_to_calm() > 2 * first);
    }
}
