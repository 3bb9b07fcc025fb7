//! Worker threads: some that wait for requests, and those that are busy.
//!
//! An operation may wait for the device. So one state must never occur: all workers are busy, and
//! one of them depends on a request that no worker has taken yet. A worker that takes the last
//! waiting place therefore puts another worker in it before it starts to work. When fewer requests
//! come, surplus workers are parked, and after a while they end.
//!
//! With one caller at a time a second worker is in the way (see `single_caller`). Then one worker
//! waits alone, and a guard calls another one when it has been busy for long.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xact_types::Errno;

use crate::protocol::init::BUFFER;
use crate::protocol::reply::Reply;
use crate::protocol::request::{Operation, Request};
use crate::transport::background::Rank;
use crate::transport::channel::{Channel, Received};
use crate::transport::cpu_pin::CpuPin;
use crate::transport::idle_threads::IdleThreads;
use crate::transport::parked_request::ParkedRequest;
use crate::transport::single_caller::{self, Noted, SingleCaller};
use crate::transport::thread_pool::ThreadPool;
use crate::transport::user_shares::{Share, Shares};

/// Workers at the start.
const WORKERS_AT_START: usize = 2;
/// Workers that may wait for requests; one more is parked.
const WAITING_MAX: usize = 4;
/// All workers. If this number of operations is running, all of them wait for the device, in the
/// end.
const WORKERS_MAX: usize = 64;
/// The guard rests after this number of checks without a request, until the next request.
const QUIET_TICKS: u32 = 10;
/// How long a parked worker stays.
const PARKED_MAX: Duration = Duration::from_secs(10);
/// How long a parked worker keeps its buffers, which may have grown to a megabyte each. While a
/// single caller reads, one worker calls another at each request, and new buffers would have to be
/// cleared each time.
const BUFFERS_KEPT: Duration = Duration::from_millis(100);

/// A request or reply of more than this number of bytes makes a worker's buffers large.
const LARGE: usize = 64 << 10;
/// Workers whose buffers stay large from one request to the next. Large buffers of all workers
/// would be 128 MiB.
const LARGE_KEPT: usize = 8;

/// The server's part in the work on a request.
pub trait Handler: Send + Sync + 'static {
    /// Whether a request is likely to wait for the device.
    fn waits(&self, request: &Request<'_>) -> bool;

    /// Answers one request on `channel`, or arranges that another thread does.
    fn handle(self: &Arc<Self>, channel: &Arc<Channel>, request: &Request<'_>, reply: &mut Reply);

    /// Answers a request with an error instead, since it may have to wait.
    fn refuse(&self, channel: &Arc<Channel>, request: &Request<'_>, reply: &mut Reply);

    /// Answers with an error bytes that are not a request of the protocol.
    fn refuse_unreadable(&self, channel: &Arc<Channel>, bytes: &[u8], errno: Errno, reply: &mut Reply);
}

/// The state of the guard.
#[derive(Default)]
struct Guard {
    /// Requests received plus requests done: it grows while any worker works.
    progress: AtomicU64,
    /// The guard rests: no request comes, or several threads call.
    resting: AtomicBool,
    lock: Mutex<()>,
    call: Condvar,
}

pub struct WorkerPool<H> {
    handler: Arc<H>,
    source: Channel,
    /// Workers that wait for a request in `receive`.
    waiting: AtomicUsize,
    closed: AtomicBool,
    pub(super) caller: Arc<SingleCaller>,
    /// Workers that have large buffers.
    large_buffers: AtomicUsize,
    pub(super) shares: Shares,
    pub(super) background: ThreadPool,
    pub(super) low_background: ThreadPool,
    guard: Guard,
    /// Parked workers. The last one, which is called first, still has its buffers.
    parked: IdleThreads<()>,
    /// Workers that live, and the guard.
    workers: Mutex<usize>,
    ended: Condvar,
    /// Workers with a request that is not done.
    busy: AtomicUsize,
    /// The kernel has sent its last request, and waits for the reply. Workers that wait for
    /// requests stay until then.
    destroyed: AtomicBool,
}

/// The buffers of a worker, for requests and replies.
struct Buffers<'a> {
    request: Vec<u8>,
    reply: Reply,
    /// They may stay large, as those of a few workers may.
    may_be_large: bool,
    large: &'a AtomicUsize,
}

impl<'a> Buffers<'a> {
    fn new(large: &'a AtomicUsize) -> Buffers<'a> {
        Buffers { request: vec![0; BUFFER], reply: Reply::new(), may_be_large: false, large }
    }

    /// Called after a request of this length. Large buffers stay, or their memory is returned.
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

/// Returns the pages of a buffer to the system. The buffer reads as zeros then.
fn give_back(buffer: &mut [u8]) {
    const PAGE: usize = 4096;
    let skipped = buffer.as_ptr().align_offset(PAGE).min(buffer.len());
    let pages = &mut buffer[skipped..];
    let len = pages.len() / PAGE * PAGE;
    // SAFETY: whole pages of memory that is borrowed here only, and any contents are valid bytes.
    unsafe { libc::madvise(pages.as_mut_ptr().cast(), len, libc::MADV_DONTNEED) };
}

impl<H: Handler> WorkerPool<H> {
    /// Starts serving the connection that `source` belongs to. `single_caller`: whether a single
    /// caller is served from its CPU.
    pub fn start(source: Channel, handler: Arc<H>, single_caller: bool) -> io::Result<Arc<WorkerPool<H>>> {
        let pool = Arc::new(WorkerPool {
            handler,
            source,
            waiting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            caller: Arc::new(SingleCaller::new(single_caller)),
            large_buffers: AtomicUsize::new(0),
            shares: Shares::new(WORKERS_MAX),
            background: ThreadPool::new("xact-background"),
            low_background: ThreadPool::new("xact-low"),
            guard: Guard::default(),
            parked: IdleThreads::default(),
            workers: Mutex::new(0),
            ended: Condvar::new(),
            busy: AtomicUsize::new(0),
            destroyed: AtomicBool::new(false),
        });
        for _ in 0..WORKERS_AT_START {
            pool.spawn()?;
        }
        let guarded = pool.clone();
        thread::Builder::new().name("xact-guard".into()).spawn(move || guarded.keep_guard())?;
        *pool.workers.lock() += 1;
        Ok(pool)
    }

    /// Returns when the connection is closed and all threads have ended; or after the kernel's last
    /// request, DESTROY, when no other request is served. A worker that has just read a FORGET is
    /// not waited for; what it does comes after the close, which leaves nothing to change.
    pub fn wait(&self) {
        let mut workers = self.workers.lock();
        while *workers > 0 {
            if self.destroyed.load(Ordering::SeqCst) {
                if self.busy.load(Ordering::SeqCst) == 0 {
                    break;
                }
                self.ended.wait_for(&mut workers, Duration::from_millis(1));
            } else {
                self.ended.wait(&mut workers);
            }
        }
        drop(workers);
        self.background.wait();
        self.low_background.wait();
    }

    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        let mut workers = self.workers.lock();
        if *workers >= WORKERS_MAX || self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let channel = match self.source.clone_queue() {
            Ok(channel) => channel,
            // /dev/fuse may not be opened here.
            Err(_) => self.source.share()?,
        }
        .replying_by(self.caller.clone());
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
            self.caller.raise_priority();
            // It keeps its buffers if it is called back soon.
            if self.parked.wait_and_rest(BUFFERS_KEPT, || buffers = None, PARKED_MAX).is_none() {
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

    /// Serves until the connection is closed or enough workers wait. The calling worker counts as
    /// waiting at the start, and does not at the end.
    fn serve(self: &Arc<Self>, channel: &Arc<Channel>, buffers: &mut Buffers<'_>) {
        let mut pin = CpuPin::new(&self.caller);
        loop {
            let came = self.caller.is_on().then(Instant::now);
            match channel.receive(&mut buffers.request) {
                Ok(Received::Request(len)) => {
                    self.busy.fetch_add(1, Ordering::SeqCst);
                    let waited = came.is_some_and(|came| came.elapsed() > single_caller::DISTANT_CALLER_WAIT);
                    let bytes = &buffers.request[..len];
                    let request = Request::decode(bytes);
                    let thread = request.as_ref().map_or(0, |request| request.header.pid);
                    let noted = self.caller.note(thread, waited);
                    pin.follow();
                    // Either the guard sees the progress before it rests, or this worker sees that
                    // it rests.
                    self.guard.progress.fetch_add(1, Ordering::SeqCst);
                    if noted == Noted::Begins
                        || self.caller.is_on() && self.guard.resting.load(Ordering::SeqCst)
                    {
                        self.wake_guard();
                    }
                    let last = self.waiting.fetch_sub(1, Ordering::AcqRel) == 1;
                    let is_other = noted == Noted::IsOther && len <= LARGE;
                    let waits = |request: &Request<'_>| self.handler.waits(request);
                    if !self.caller.is_on() || !is_other && request.as_ref().is_ok_and(waits) {
                        self.caller.raise_priority();
                        if last {
                            self.call_another();
                        }
                    }
                    match &request {
                        Ok(request) => self.handle(channel, request, &mut buffers.reply, is_other),
                        Err(errno) => {
                            buffers.reply.clear();
                            self.handler.refuse_unreadable(channel, bytes, *errno, &mut buffers.reply);
                        }
                    }
                    let is_last = request.is_ok_and(|request| request.operation == Operation::Destroy);
                    buffers.keep_or_trim(len);
                    self.busy.fetch_sub(1, Ordering::SeqCst);
                    if is_last {
                        self.waiting.fetch_add(1, Ordering::AcqRel);
                        self.close();
                        let _workers = self.workers.lock();
                        self.destroyed.store(true, Ordering::SeqCst);
                        self.ended.notify_all();
                        return;
                    }
                    self.guard.progress.fetch_add(1, Ordering::AcqRel);
                    let most = if self.caller.is_on() { 1 } else { WAITING_MAX };
                    // In one step: if it were counted in between, the worker that takes the last
                    // place might not call another one.
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

    /// Answers a request, or has it answered in the background, within its user's share of the
    /// workers. `hand_over`: in the background, whatever the share.
    fn handle(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        request: &Request<'_>,
        reply: &mut Reply,
        hand_over: bool,
    ) {
        if hand_over {
            self.caller.has_handed_over();
        }
        let (uid, thread) = (request.header.uid, request.header.pid);
        let (nr, next) = match self.shares.admit(uid, thread, channel, request.bytes) {
            Share::Parked(nr) => (nr, self.shares.next(nr)),
            Share::Crowded(nr) if self.shares.is_crowded() && request.may_wait_for_transaction() => {
                reply.clear();
                self.handler.refuse(channel, request, reply);
                (nr, self.shares.done(nr))
            }
            share if hand_over => {
                let request = ParkedRequest::new(channel, request.bytes);
                return self.answer_in_background(share.slot(), request, Rank::Ordinary);
            }
            Share::Unlimited => return self.answer(channel, request, reply),
            Share::Now(nr) | Share::Crowded(nr) => {
                self.answer(channel, request, reply);
                (nr, self.shares.done(nr))
            }
        };
        if let Some(parked) = next {
            self.answer_in_background(Some(nr), parked, Rank::Low);
        }
    }

    pub(super) fn answer(&self, channel: &Arc<Channel>, request: &Request<'_>, reply: &mut Reply) {
        reply.clear();
        self.handler.handle(channel, request, reply);
    }

    fn close(&self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        self.closed.store(true, Ordering::Release);
        self.wake_guard();
        self.background.close();
        self.low_background.close();
        self.parked.close();
    }

    fn wake_guard(&self) {
        let _guard = self.guard.lock.lock();
        self.guard.resting.store(false, Ordering::Release);
        self.guard.call.notify_all();
    }

    /// While one thread alone calls, ensures that a worker waits for requests or is about to finish
    /// one.
    fn keep_guard(self: Arc<Self>) {
        let mut quiet = QUIET_TICKS;
        let mut seen = 0;
        let mut pin = CpuPin::new(&self.caller);
        while !self.closed.load(Ordering::Acquire) {
            if quiet >= QUIET_TICKS || !self.caller.is_on() {
                let mut guard = self.guard.lock.lock();
                self.guard.resting.store(true, Ordering::SeqCst);
                let missed = self.caller.is_on() && self.guard.progress.load(Ordering::SeqCst) != seen;
                if !missed && !self.closed.load(Ordering::Acquire) {
                    self.guard.call.wait(&mut guard);
                }
                self.guard.resting.store(false, Ordering::Release);
                quiet = 0;
            }
            pin.avoid();
            thread::sleep(single_caller::TICK);
            let progress = self.guard.progress.load(Ordering::Acquire);
            if progress != seen {
                quiet = 0;
            } else if self.waiting.load(Ordering::Acquire) > 0 {
                quiet += 1;
            } else {
                // One request took a whole tick, and no worker waits for the next.
                let starved = self.caller.restore_priority();
                if starved && (!self.caller.has_answered() || self.source.has_requests()) {
                    self.caller.give_up();
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
        // A parked worker counts as waiting as soon as it is chosen.
        if self.parked.give(|| _ = self.waiting.fetch_add(1, Ordering::AcqRel)) {
            return;
        }
        if let Err(e) = self.spawn() {
            crate::log(format_args!("cannot start another worker: {e}"));
        }
    }
}
