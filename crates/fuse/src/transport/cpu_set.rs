//! Sets of CPUs: those that this process may run on, and those that a caller is confined to.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// A set of CPUs.
#[derive(Clone)]
pub struct Cpus(libc::cpu_set_t);

impl PartialEq for Cpus {
    fn eq(&self, other: &Cpus) -> bool {
        // SAFETY: it reads both sets.
        unsafe { libc::CPU_EQUAL(&self.0, &other.0) }
    }
}

impl Cpus {
    pub fn of_this_thread() -> Option<Cpus> {
        Cpus::of_thread(0)
    }

    pub fn of_thread(thread: i32) -> Option<Cpus> {
        let mut set = MaybeUninit::zeroed();
        // SAFETY: the kernel fills the set, whose size is passed, if it returns 0.
        unsafe {
            let done = libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) == 0;
            done.then(|| Cpus(set.assume_init()))
        }
    }

    pub fn and(&self, other: &Cpus) -> Cpus {
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

    pub fn count(&self) -> i32 {
        // SAFETY: it reads the set.
        unsafe { libc::CPU_COUNT(&self.0) }
    }

    /// The one CPU, if it is in the set.
    pub fn only(&self, cpu: i32) -> Option<Cpus> {
        // SAFETY: cpu_set_t is a bit field, for which zero is a value.
        let empty = unsafe { MaybeUninit::zeroed().assume_init() };
        self.having(cpu).then(|| Cpus::set(empty, cpu, libc::CPU_SET))
    }

    /// All but the one CPU, if it is in the set.
    pub fn without(&self, cpu: i32) -> Option<Cpus> {
        self.having(cpu).then(|| Cpus::set(self.0, cpu, libc::CPU_CLR))
    }

    pub fn having(&self, cpu: i32) -> bool {
        // SAFETY: the number is within the bit field.
        (0..libc::CPU_SETSIZE).contains(&cpu) && unsafe { libc::CPU_ISSET(cpu as usize, &self.0) }
    }

    pub fn set(
        mut cpus: libc::cpu_set_t,
        cpu: i32,
        how: unsafe extern "C" fn(usize, &mut libc::cpu_set_t),
    ) -> Cpus {
        // SAFETY: callers have checked `having`, so the number is within the bit field.
        unsafe { how(cpu as usize, &mut cpus) };
        Cpus(cpus)
    }

    /// From now on the calling thread runs on these CPUs only.
    pub fn apply(&self) -> bool {
        self.apply_to(0)
    }

    /// The same for a thread of this process.
    pub fn apply_to(&self, thread: i32) -> bool {
        // SAFETY: the kernel reads the set, whose size is passed.
        unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &self.0) == 0 }
    }
}

/// The CPUs that the process may run on. They are read before any thread is moved.
pub fn everywhere() -> Option<&'static Cpus> {
    static EVERYWHERE: OnceLock<Option<Cpus>> = OnceLock::new();
    EVERYWHERE.get_or_init(Cpus::of_this_thread).as_ref()
}

thread_local! {
    /// The confinement of the caller that the calling thread works for.
    static CONFINED: RefCell<Option<Cpus>> = const { RefCell::new(None) };
}

/// The CPUs that a caller is confined to (taskset(1), cpusets), if these are not all CPUs of this
/// process.
#[derive(Clone, Default)]
pub struct Confinement(Option<Cpus>);

impl Confinement {
    /// The confinement of a thread; none if it is not known.
    pub fn of(thread: u32) -> Confinement {
        let Some(everywhere) = everywhere().filter(|cpus| thread != 0 && cpus.count() > 1) else {
            return Confinement::default();
        };
        let own = Cpus::of_thread(thread as i32).map(|cpus| cpus.and(everywhere));
        Confinement(own.filter(|cpus| cpus.count() > 0 && cpus.count() < everywhere.count()))
    }

    /// Whether all CPUs may be used.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The confinement of the caller that the calling thread works for.
    pub fn current() -> Confinement {
        Confinement(CONFINED.with_borrow(Clone::clone))
    }

    /// From now on the calling thread works for a caller with this confinement. The work takes time
    /// on CPUs that the caller may use, and not on those of others.
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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn thread_number() -> i32 {
        // SAFETY: gettid takes nothing.
        unsafe { libc::gettid() }
    }

    /// A thread that works for a confined caller runs on the caller's CPUs.
    #[test]
    fn work_is_done_where_the_caller_may_run() {
        let Some(all) = everywhere().filter(|cpus| cpus.count() > 1) else { return };
        let first = (0..libc::CPU_SETSIZE).find(|&cpu| all.having(cpu)).unwrap();
        let cpus = || Cpus::of_this_thread().unwrap();
        thread::spawn(move || {
            assert!(Confinement::of(thread_number() as u32).0.is_none());
            all.only(first).unwrap().apply();
            let confined = Confinement::of(thread_number() as u32);
            thread::spawn(move || {
                everywhere().unwrap().apply();
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
}
