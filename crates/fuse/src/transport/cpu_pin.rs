//! Pins threads of the server to the CPU of a single caller, or keeps them away from it (see
//! `single_caller`).

use std::sync::atomic::Ordering::Relaxed;

use crate::transport::cpu_set::Cpus;
use crate::transport::single_caller::{SingleCaller, this_thread};

/// The CPUs that a thread of the server has asked for.
pub struct CpuPin<'a> {
    caller: &'a SingleCaller,
    caller_cpu: Option<i32>,
}

impl<'a> CpuPin<'a> {
    pub fn new(caller: &'a SingleCaller) -> CpuPin<'a> {
        CpuPin { caller, caller_cpu: None }
    }

    /// Moves the calling worker to the caller's CPU, or allows it all CPUs again.
    pub fn follow(&mut self) {
        self.change(Cpus::only);
    }

    /// Keeps the calling thread away from the caller's CPU.
    pub fn avoid(&mut self) {
        self.change(Cpus::without);
    }

    fn change(&mut self, choose: impl Fn(&Cpus, i32) -> Option<Cpus>) {
        let caller = self.caller;
        let Some(everywhere) = caller.everywhere else { return };
        let caller_cpu = caller.caller_cpu.load(Relaxed);
        let caller_cpu = (caller_cpu >= 0 && caller.is_on()).then_some(caller_cpu);
        if caller_cpu == self.caller_cpu {
            return;
        }
        let moved = match caller_cpu {
            Some(cpu) => choose(everywhere, cpu).is_some_and(|cpus| {
                // The lock is held: if the single caller ends in between, the change is undone
                // after that.
                let mut pinned = caller.pinned.lock();
                let (me, moved) = (this_thread(), caller.is_on() && cpus.apply());
                if moved && !pinned.contains(&me) {
                    pinned.push(me);
                }
                moved
            }),
            None => everywhere.apply(),
        };
        if moved {
            self.caller_cpu = caller_cpu;
        }
    }
}

impl Drop for CpuPin<'_> {
    /// The thread serves no more, and may end. Its number may then belong to another thread.
    fn drop(&mut self) {
        if self.caller_cpu.is_some() {
            self.caller.pinned.lock().retain(|thread| *thread != this_thread());
            self.caller.everywhere.inspect(|everywhere| _ = everywhere.apply());
        }
    }
}
