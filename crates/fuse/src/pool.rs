//! Worker threads: as many as wait, plus as many as are busy.
//!
//! An operation may wait for the device, so the one thing that must never happen is that all
//! workers are busy and a request waits that one of them needs, directly or not. A worker that
//! takes the last waiting place therefore puts another one in it before it starts to work. When
//! things calm down, surplus workers step aside, and after a while end.
//!
//! With one caller at a time a second worker is in the way (see `calm`): then one waits alone, and a
//! guard calls another when it has been busy for long.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::calm::{self, Calm, Seat};
use crate::channel::{Channel, Received};
use crate::init::BUFFER;
use crate::reply::Reply;
use crate::request;

/// Workers at the start.
const START: usize = 2;
/// Workers that may wait for requests; one more steps aside.
const WAITING_MAX: usize = 4;
/// All workers. Operations in such numbers all wait for the device, in the end.
const WORKERS_MAX: usize = 64;
/// So many looks without a request, and the guard rests until the next one.
const QUIET_TICKS: u32 = 10;
/// How long a worker that stepped aside stays.
const ASIDE: Duration = Duration::from_secs(10);
/// How long it keeps its buffers, which may have grown to a megabyte each: beside a caller that reads, one worker calls
/// another at each request, and new ones would have to be cleared each time.
const ASIDE_BRIEFLY: Duration = Duration::from_millis(100);

/// What workers do with a request.
pub trait Handler: Send + Sync + 'static {
    /// Whether a request is likely to wait for the device.
    fn waits(&self, request: &[u8]) -> bool;

    /// Answers one request on `channel`, or sees to it that somebody does.
    fn handle(self: &Arc<Self>, channel: &Arc<Channel>, request: &[u8], reply: &mut Reply);
}

/// What the guard knows.
#[derive(Default)]
struct Guard {
    /// Requests received and requests done: while somebody works it grows.
    progress: AtomicU64,
    /// It rests: nothing comes, or it is not calm.
    resting: AtomicBool,
    lock: Mutex<()>,
    call: Condvar,
}

#[derive(Default)]
struct Aside {
    /// Workers that stepped aside.
    count: usize,
    /// How many of them are called back.
    called: usize,
}

pub struct Pool<H> {
    handler: Arc<H>,
    source: Channel,
    /// Workers that wait for a request in `receive`.
    waiting: AtomicUsize,
    closed: AtomicBool,
    calm: Arc<Calm>,
    guard: Guard,
    aside: Mutex<Aside>,
    call: Condvar,
    /// Workers that live, and the guard.
    workers: Mutex<usize>,
    ended: Condvar,
}

impl<H: Handler> Pool<H> {
    /// Starts serving the connection that `source` belongs to.
    pub fn start(source: Channel, handler: Arc<H>) -> io::Result<Arc<Pool<H>>> {
        let pool = Arc::new(Pool {
            handler,
            source,
            waiting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            calm: Arc::new(Calm::new()),
            guard: Guard::default(),
            aside: Mutex::default(),
            call: Condvar::new(),
            workers: Mutex::new(0),
            ended: Condvar::new(),
        });
        for _ in 0..START {
            pool.spawn()?;
        }
        let guarded = pool.clone();
        thread::Builder::new().name("xact-guard".into()).spawn(move || guarded.keep_guard())?;
        *pool.workers.lock() += 1;
        Ok(pool)
    }

    /// Returns when the connection is closed and all threads have ended.
    pub fn wait(&self) {
        let mut workers = self.workers.lock();
        while *workers > 0 {
            self.ended.wait(&mut workers);
        }
    }

    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        let mut workers = self.workers.lock();
        if *workers >= WORKERS_MAX || self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let channel = match self.source.clone_queue() {
            Ok(channel) => channel,
            // /dev/fuse itself may not be opened here.
            Err(_) => self.source.share()?,
        }
        .replying_by(self.calm.clone());
        let pool = self.clone();
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let started = thread::Builder::new().name("xact-fuse".into()).spawn(move || pool.work(channel));
        match started {
            Ok(_) => {
                *workers += 1;
                Ok(())
            }
            Err(e) => {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                Err(e)
            }
        }
    }

    fn work(self: Arc<Self>, channel: Channel) {
        let channel = Arc::new(channel);
        let mut buffers = None;
        while !self.closed.load(Ordering::Acquire) {
            let (buffer, reply) = buffers.get_or_insert_with(|| (vec![0; BUFFER], Reply::new()));
            self.serve(&channel, buffer, reply);
            self.calm.stand_up();
            if !self.step_aside(|| buffers = None) {
                break;
            }
        }
        self.has_ended();
    }

    fn has_ended(&self) {
        let mut workers = self.workers.lock();
        *workers -= 1;
        if *workers == 0 {
            self.ended.notify_all();
        }
    }

    /// Serves until the connection is closed or there are workers enough. The caller counts as
    /// waiting at the start, and does not at the end.
    fn serve(self: &Arc<Self>, channel: &Arc<Channel>, buffer: &mut [u8], reply: &mut Reply) {
        let mut seat = Seat::default();
        loop {
            let came = self.calm.is_on().then(Instant::now);
            match channel.receive(buffer) {
                Ok(Received::Request(len)) => {
                    let request = &buffer[..len];
                    let waited = came.is_some_and(|came| came.elapsed() > calm::BESIDE);
                    let begins = self.calm.note(request::caller_thread(request), waited);
                    seat.take(&self.calm);
                    // Either the guard sees the progress before it rests, or this sees that it rests.
                    self.guard.progress.fetch_add(1, Ordering::SeqCst);
                    if begins || self.calm.is_on() && self.guard.resting.load(Ordering::SeqCst) {
                        self.wake_guard();
                    }
                    let last = self.waiting.fetch_sub(1, Ordering::AcqRel) == 1;
                    if !self.calm.is_on() || self.handler.waits(request) {
                        self.calm.stand_up();
                        if last {
                            self.call_another();
                        }
                    }
                    reply.clear();
                    self.handler.handle(channel, request, reply);
                    self.guard.progress.fetch_add(1, Ordering::AcqRel);
                    let most = if self.calm.is_on() { 1 } else { WAITING_MAX };
                    // In one step: counted in between, it might keep the one that takes the last
                    // place from calling another.
                    let waits = |n: usize| (n < most).then_some(n + 1);
                    if self.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, waits).is_err() {
                        return;
                    }
                }
                Ok(Received::Nothing) => {}
                Ok(Received::Closed) => return self.close(),
                Err(e) => {
                    crate::log(format_args!("reading /dev/fuse failed: {e}; the mount ends"));
                    return self.close();
                }
            }
        }
    }

    fn close(&self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        self.closed.store(true, Ordering::Release);
        self.wake_guard();
        let _aside = self.aside.lock();
        self.call.notify_all();
    }

    fn wake_guard(&self) {
        let _guard = self.guard.lock.lock();
        self.guard.resting.store(false, Ordering::Release);
        self.guard.call.notify_all();
    }

    /// While it is calm, sees to it that somebody waits for requests or is done soon with one.
    fn keep_guard(self: Arc<Self>) {
        let mut quiet = QUIET_TICKS;
        let mut seen = 0;
        let mut seat = Seat::default();
        while !self.closed.load(Ordering::Acquire) {
            if quiet >= QUIET_TICKS || !self.calm.is_on() {
                let mut guard = self.guard.lock.lock();
                self.guard.resting.store(true, Ordering::SeqCst);
                let missed = self.calm.is_on() && self.guard.progress.load(Ordering::SeqCst) != seen;
                if !missed && !self.closed.load(Ordering::Acquire) {
                    self.guard.call.wait(&mut guard);
                }
                self.guard.resting.store(false, Ordering::Release);
                quiet = 0;
            }
            seat.leave(&self.calm);
            thread::sleep(calm::TICK);
            let progress = self.guard.progress.load(Ordering::Acquire);
            if progress != seen {
                quiet = 0;
            } else if self.waiting.load(Ordering::Acquire) > 0 {
                quiet += 1;
            } else {
                // One request for a whole tick, and nobody for the next.
                let starved = self.calm.relieve();
                if starved && (!self.calm.has_answered() || self.source.has_requests()) {
                    self.calm.give_up();
                    self.call_another();
                } else if !starved {
                    self.call_another();
                }
            }
            seen = progress;
        }
        self.has_ended();
    }

    /// Puts a worker in the last waiting place, which the caller is about to leave.
    fn call_another(self: &Arc<Self>) {
        let mut aside = self.aside.lock();
        if aside.called < aside.count {
            aside.called += 1;
            self.waiting.fetch_add(1, Ordering::AcqRel);
            self.call.notify_one();
            return;
        }
        drop(aside);
        if let Err(e) = self.spawn() {
            crate::log(format_args!("cannot start another worker: {e}"));
        }
    }

    /// Waits until it is called back (true) or no longer needed (false). `settle` follows where that takes a
    /// while.
    fn step_aside(&self, settle: impl FnOnce()) -> bool {
        let mut settle = Some(settle);
        let mut aside = self.aside.lock();
        aside.count += 1;
        loop {
            if aside.called > 0 {
                aside.called -= 1;
                aside.count -= 1;
                return true;
            }
            let most = if settle.is_some() { ASIDE_BRIEFLY } else { ASIDE };
            let ends =
                self.closed.load(Ordering::Acquire) || self.call.wait_for(&mut aside, most).timed_out();
            if ends && let Some(settle) = settle.take() {
                MutexGuard::unlocked(&mut aside, settle);
            } else if ends {
                // Called at the last moment: counted as waiting already.
                let called = aside.called > 0;
                aside.called -= usize::from(called);
                aside.count -= 1;
                return called;
            }
        }
    }
}
