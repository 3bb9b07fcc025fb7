//! Worker threads: as many as wait, plus as many as are busy.
//!
//! An operation may wait for the device, so the one thing that must never happen is that all
//! workers are busy and a request waits that one of them needs, directly or not. A worker that
//! takes the last waiting place therefore puts another one in it before it starts to work. When
//! things calm down, surplus workers step aside, and after a while end.
//!
//! With one caller at a time a second worker is in the way (see `single_caller`): then one waits alone, and a
//! guard calls another when it has been busy for long.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::protocol::init::BUFFER;
use crate::protocol::reply::Reply;
use crate::protocol::request;
use crate::transport::channel::{Channel, Received};
use crate::transport::priority;
use crate::transport::single_caller::{self, Calm, Confinement, Seat};
use crate::transport::user_shares::{Share, Shares, SlotNr};

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

/// A request or reply that takes more makes a worker's buffers large, in bytes.
const LARGE: usize = 64 << 10;
/// Workers whose buffers stay large from one request to the next. Those of all would be 128 MiB.
const LARGE_KEPT: usize = 8;

/// What workers do with a request.
pub trait Handler: Send + Sync + 'static {
    /// Whether a request is likely to wait for the device.
    fn waits(&self, request: &[u8]) -> bool;

    /// Answers one request on `channel`, or sees to it that somebody does.
    fn handle(self: &Arc<Self>, channel: &Arc<Channel>, request: &[u8], reply: &mut Reply);

    /// Answers a request that may have to wait, without that: with an error.
    fn refuse(&self, channel: &Arc<Channel>, request: &[u8], reply: &mut Reply);
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
    /// Workers that have large buffers.
    large_buffers: AtomicUsize,
    shares: Shares,
    guard: Guard,
    aside: Mutex<Aside>,
    call: Condvar,
    /// Workers that live, and the guard.
    workers: Mutex<usize>,
    ended: Condvar,
}

/// What a worker receives into and replies from.
struct Buffers<'a> {
    request: Vec<u8>,
    reply: Reply,
    /// They may stay large, as those of a few workers.
    may_be_large: bool,
    large: &'a AtomicUsize,
}

impl<'a> Buffers<'a> {
    fn new(large: &'a AtomicUsize) -> Buffers<'a> {
        Buffers { request: vec![0; BUFFER], reply: Reply::new(), may_be_large: false, large }
    }

    /// After a request of this length: large buffers stay, or their memory is given back.
    fn keep_or_trim(&mut self, len: usize) {
        if self.may_be_large || len.max(self.reply.capacity()) <= LARGE {
            return;
        }
        let one_more = |count: usize| (count < LARGE_KEPT).then(|| count + 1);
        self.may_be_large = self.large.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        if !self.may_be_large {
            give_back(&mut self.request);
            self.reply = Reply::new();
        }
    }
}

impl Drop for Buffers<'_> {
    fn drop(&mut self) {
        if self.may_be_large {
            self.large.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Gives the pages of a buffer back to the system; it reads as zeros then.
fn give_back(buffer: &mut [u8]) {
    const PAGE: usize = 4096;
    let skipped = buffer.as_ptr().align_offset(PAGE).min(buffer.len());
    let pages = &mut buffer[skipped..];
    let len = pages.len() / PAGE * PAGE;
    // SAFETY: whole pages of memory that is borrowed here alone, and any contents are valid bytes.
    unsafe { libc::madvise(pages.as_mut_ptr().cast(), len, libc::MADV_DONTNEED) };
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
            large_buffers: AtomicUsize::new(0),
            shares: Shares::new(WORKERS_MAX),
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
        single_caller::begin_thread();
        let channel = Arc::new(channel);
        let mut buffers = None;
        while !self.closed.load(Ordering::Acquire) {
            self.serve(&channel, buffers.get_or_insert_with(|| Buffers::new(&self.large_buffers)));
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
    fn serve(self: &Arc<Self>, channel: &Arc<Channel>, buffers: &mut Buffers<'_>) {
        let mut seat = Seat::new(&self.calm);
        loop {
            let came = self.calm.is_on().then(Instant::now);
            match channel.receive(&mut buffers.request) {
                Ok(Received::Request(len)) => {
                    let request = &buffers.request[..len];
                    let waited = came.is_some_and(|came| came.elapsed() > single_caller::BESIDE);
                    let begins = self.calm.note(request::caller_thread(request), waited);
                    seat.take();
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
                    self.handle(channel, request, &mut buffers.reply);
                    buffers.keep_or_trim(len);
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

    /// Answers a request within its user's share of the workers, and what of the same user waits for that.
    fn handle(&self, channel: &Arc<Channel>, request: &[u8], reply: &mut Reply) {
        let uid = request::caller_user(request);
        let (slot, mut parked) = match self.shares.admit(uid, channel, request) {
            Share::Parked => match self.shares.after_parking(uid) {
                Some((slot, parked)) => (Some(slot), Some(parked)),
                None => return,
            },
            Share::Crowded(slot)
                if self.shares.is_crowded() && request::may_wait_for_transaction(request) =>
            {
                reply.clear();
                self.handler.refuse(channel, request, reply);
                (slot, self.shares.done(slot))
            }
            Share::Now(slot) | Share::Crowded(slot) => {
                self.work_for(slot, request);
                reply.clear();
                self.handler.handle(channel, request, reply);
                (slot, self.shares.done(slot))
            }
        };
        while let Some(next) = parked {
            self.work_for(slot, &next.request);
            reply.clear();
            self.handler.handle(&next.channel, &next.request, reply);
            // While somebody works the guard is to see that.
            self.guard.progress.fetch_add(1, Ordering::AcqRel);
            parked = self.shares.done(slot);
        }
        // It is woken by whoever calls next.
        Confinement::default().apply();
        priority::set(false);
    }

    /// Before a request is answered: on the CPUs, and with the priority, that its user may have.
    fn work_for(&self, slot: Option<SlotNr>, request: &[u8]) {
        let is_busy = self.shares.is_busy(slot);
        if is_busy {
            Confinement::of(request::caller_thread(request)).apply();
        }
        priority::set(is_busy);
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
        let mut seat = Seat::new(&self.calm);
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
            seat.leave();
            thread::sleep(single_caller::TICK);
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
