//! Threads that answer parked requests (see `user_shares`), with a lower priority than workers, on
//! the CPUs that the caller may use.
//!
//! A worker has just been woken for one request, and the next one may be anybody's. To change its
//! priority and its CPUs for that request, and back, takes longer than most requests do, and takes
//! it on the CPU of whoever calls next. A thread here keeps its priority, and mostly its CPUs.
//!
//! No more run at a time than `Shares` admits.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::protocol::reply::Reply;
use crate::protocol::request::Request;
use crate::transport::cpu_set::Confinement;
use crate::transport::parked_request::ParkedRequest;
use crate::transport::priority;
use crate::transport::single_caller;
use crate::transport::user_shares::SlotNr;
use crate::transport::worker_pool::{Handler, WorkerPool};

/// How long a thread without work stays.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// A reply buffer that has become larger than this is freed, in bytes.
const REPLY_KEPT: usize = 64 << 10;

/// A parked request that its user's share of the workers has room for now.
type Admitted = (SlotNr, ParkedRequest);

#[derive(Default)]
struct State {
    admitted: VecDeque<Admitted>,
    /// Threads that wait, and all threads.
    idle: usize,
    threads: usize,
    closed: bool,
}

#[derive(Default)]
pub struct Background {
    state: Mutex<State>,
    given: Condvar,
    ended: Condvar,
}

impl Background {
    /// The threads end when they have nothing left to do.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.given.notify_all();
    }

    /// Returns when all threads have ended.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        while state.threads > 0 {
            self.ended.wait(&mut state);
        }
    }

    /// Waits for a request; `None`: the thread is to end, and is not counted any more.
    fn next(&self) -> Option<Admitted> {
        let mut state = self.state.lock();
        loop {
            if let Some(admitted) = state.admitted.pop_front() {
                return Some(admitted);
            }
            state.idle += 1;
            let ends = state.closed || self.given.wait_for(&mut state, IDLE_MAX).timed_out();
            state.idle -= 1;
            if ends && state.admitted.is_empty() {
                state.threads -= 1;
                self.ended.notify_all();
                return None;
            }
        }
    }
}

impl<H: Handler> WorkerPool<H> {
    /// Has a request answered in the background. Where no thread can be started for that, the
    /// calling one answers.
    pub(super) fn answer_in_background(self: &Arc<Self>, nr: SlotNr, parked: ParkedRequest) {
        let mut state = self.background.state.lock();
        state.admitted.push_back((nr, parked));
        if state.admitted.len() <= state.idle {
            self.background.given.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        if let Err(e) = self.start_background_thread() {
            crate::log(format_args!("cannot start a thread for a request: {e}"));
            let mut state = self.background.state.lock();
            state.threads -= 1;
            self.background.ended.notify_all();
            // Another thread may have taken it since.
            let admitted = state.admitted.pop_back();
            drop(state);
            if let Some(admitted) = admitted {
                self.answer_admitted(admitted, &mut Reply::new(), false);
            }
        }
    }

    fn start_background_thread(self: &Arc<Self>) -> io::Result<()> {
        let pool = self.clone();
        let run = move || {
            single_caller::begin_thread();
            priority::set(true);
            let mut reply = Reply::new();
            while let Some(admitted) = pool.background.next() {
                pool.answer_admitted(admitted, &mut reply, true);
                if reply.capacity() > REPLY_KEPT {
                    reply = Reply::new();
                }
            }
        };
        thread::Builder::new().name("xact-background".into()).spawn(run).map(drop)
    }

    /// Answers a request, and what else of its user is parked. `confined`: on the callers' CPUs.
    fn answer_admitted(self: &Arc<Self>, (nr, parked): Admitted, reply: &mut Reply, confined: bool) {
        let mut next = Some(parked);
        while let Some(parked) = next {
            // Those that cannot be decoded are not parked.
            if let Ok(request) = Request::decode(&parked.request) {
                if confined {
                    Confinement::of(request.header.pid).apply();
                }
                self.answer(&parked.channel, &request, reply);
                self.caller.raise_priority();
            }
            next = self.shares.done(nr);
        }
    }
}
