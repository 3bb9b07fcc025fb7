//! Large writes in the background: a thread of the device writes them past the page cache, as
//! [`crate::direct_io`] does, while the caller continues.
//!
//! Crash argument: a queued write counts as written. So a read, write or discard of a range waits
//! for queued writes to it, and a flush waits for all that came before it. After a failure every
//! flush reports the error: several flushes may run at once, and none of them may claim that
//! everything is durable.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::direct_io::{DirectIo, Filled};

/// The most queued writes, each of at most 4 MiB. It is enough to keep the device busy.
const QUEUE_MAX: usize = 4;

/// The writes of one device.
pub struct WriteBehind {
    shared: Arc<Shared>,
    /// The schedule of the thread. The thread that starts it may be bound to a CPU, or run at the
    /// lowest priority.
    schedule: Schedule,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    direct: Arc<DirectIo>,
    /// Writes through the page cache, for those that the device refuses.
    cached: File,
    state: Mutex<State>,
    changed: Condvar,
    /// The length of the queue, readable without the lock.
    queued: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// In the order of arrival; the first is being written.
    queue: VecDeque<Arc<Chunk>>,
    came: u64,
    done: u64,
    failed: Option<Failure>,
    closed: bool,
}

/// The first error, which is reported more than once.
struct Failure {
    kind: io::ErrorKind,
    number: Option<i32>,
    text: String,
}

impl Failure {
    fn of(error: &io::Error) -> Failure {
        Failure { kind: error.kind(), number: error.raw_os_error(), text: error.to_string() }
    }

    fn to_error(&self) -> io::Error {
        match self.number {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(self.kind, self.text.clone()),
        }
    }
}

struct Chunk {
    filled: Filled,
    offset: u64,
}

impl Chunk {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.filled.bytes().len() as u64
    }
}

impl WriteBehind {
    /// For the device that `file` and `direct` have open.
    pub fn new(file: &File, direct: Arc<DirectIo>) -> io::Result<WriteBehind> {
        let shared = Shared {
            direct,
            cached: file.try_clone()?,
            state: Mutex::default(),
            changed: Condvar::new(),
            queued: AtomicUsize::new(0),
        };
        Ok(WriteBehind {
            shared: Arc::new(shared),
            schedule: Schedule::of_this_thread(),
            thread: Mutex::default(),
        })
    }

    /// Queues the large, aligned writes; false for others. Waits if the queue is full.
    pub fn write(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<bool> {
        let len: usize = bufs.iter().map(|b| b.len()).sum();
        if !self.shared.direct.takes(len, offset) {
            return Ok(false);
        }
        self.wait_for_range(offset, len as u64);
        self.start()?;
        self.shared.direct.each_chunk(bufs, offset, &mut |filled, offset| {
            let mut state = self.shared.state.lock();
            while state.queue.len() >= QUEUE_MAX {
                self.shared.changed.wait(&mut state);
            }
            state.queue.push_back(Arc::new(Chunk { filled, offset }));
            state.came += 1;
            self.shared.queued.fetch_add(1, Ordering::AcqRel);
            drop(state);
            self.shared.changed.notify_all();
            Ok(true)
        })
    }

    /// Waits for queued writes to a range.
    pub fn wait_for_range(&self, offset: u64, len: u64) {
        let meets = |chunk: &Arc<Chunk>| {
            let range = chunk.range();
            range.start < offset.saturating_add(len) && offset < range.end
        };
        if self.shared.queued.load(Ordering::Acquire) > 0 {
            self.wait_while(|state| state.queue.iter().any(meets));
        }
    }

    /// Waits for all writes that came before. Errors: that of the first write that ever failed.
    pub fn drain(&self) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        let before = state.came;
        while state.done < before {
            self.shared.changed.wait(&mut state);
        }
        state.failed.as_ref().map_or(Ok(()), |failure| Err(failure.to_error()))
    }

    fn wait_while(&self, busy: impl Fn(&State) -> bool) {
        let mut state = self.shared.state.lock();
        while busy(&state) {
            self.shared.changed.wait(&mut state);
        }
    }

    fn start(&self) -> io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (shared, schedule) = (self.shared.clone(), self.schedule);
            let named = thread::Builder::new().name("xact-behind".into());
            *thread = Some(named.spawn(move || {
                schedule.apply();
                shared.work();
            })?);
        }
        Ok(())
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // The thread has no reason to panic, and a drop cannot return an error.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            match state.queue.front().cloned() {
                Some(chunk) => {
                    let written = MutexGuard::unlocked(&mut state, || self.write_out(&chunk));
                    if let Err(error) = written {
                        state.failed.get_or_insert_with(|| Failure::of(&error));
                    }
                    let passed = state.queue.pop_front();
                    state.done += 1;
                    self.queued.fetch_sub(1, Ordering::AcqRel);
                    self.changed.notify_all();
                    drop(chunk);
                    if let Some(chunk) = passed.and_then(Arc::into_inner) {
                        MutexGuard::unlocked(&mut state, || self.direct.give_back(chunk.filled));
                    }
                }
                None if state.closed => return,
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn write_out(&self, chunk: &Chunk) -> io::Result<()> {
        if self.direct.write_filled(&chunk.filled, chunk.offset)? {
            return Ok(());
        }
        self.cached.write_all_at(chunk.filled.bytes(), chunk.offset)
    }
}

/// The CPUs that a thread may run on (`None` if they could not be read), and its policy.
#[derive(Clone, Copy)]
struct Schedule {
    cpus: Option<libc::cpu_set_t>,
    policy: libc::c_int,
}

impl Schedule {
    fn of_this_thread() -> Schedule {
        // SAFETY: all bits zero is an empty set.
        let mut cpus: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills the set, whose size is an argument.
        let done = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut cpus) };
        // SAFETY: it takes a number.
        let policy = unsafe { libc::sched_getscheduler(0) };
        Schedule { cpus: (done == 0).then_some(cpus), policy }
    }

    /// Applies the schedule to the calling thread, as far as it has the rights.
    fn apply(&self) {
        if let Some(cpus) = &self.cpus {
            // SAFETY: the kernel reads the set, whose size is an argument.
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), cpus) };
        }
        // Other policies need their priority, and no thread of xact changes them.
        if self.policy == libc::SCHED_OTHER {
            let param = libc::sched_param { sched_priority: 0 };
            // SAFETY: the kernel reads the parameters.
            unsafe { libc::sched_setscheduler(0, self.policy, &param) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct_io::LARGE_BYTES;

    fn behind(file: &File) -> Option<WriteBehind> {
        let direct = Arc::new(DirectIo::open(file)?);
        Some(WriteBehind::new(file, direct).unwrap())
    }

    /// More than the queue takes at once; after a flush the file has all of it, the newest on top.
    #[test]
    fn queued_writes_are_in_the_file_after_a_flush() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        let Some(behind) = behind(&file) else {
            println!("no O_DIRECT here: nothing is direct");
            return;
        };
        for round in 0..3u8 {
            for n in 0..3u8 {
                let data = vec![16 * round + n + 1; 17 << 20];
                assert!(behind.write(&[IoSlice::new(&data)], u64::from(n) * (17 << 20)).unwrap());
            }
            // Earlier contents are not written over later ones.
            let data = vec![16 * round; LARGE_BYTES];
            assert!(behind.write(&[IoSlice::new(&data)], 4096).unwrap());
            behind.wait_for_range(4096, 1);
            let mut byte = [0];
            file.read_exact_at(&mut byte, 4096 + LARGE_BYTES as u64 - 1).unwrap();
            assert_eq!(byte, [16 * round]);
            behind.drain().unwrap();
            for (offset, expected) in [(0, 1), (4096 + LARGE_BYTES as u64, 1), (18 << 20, 2), (50 << 20, 3)] {
                file.read_exact_at(&mut byte, offset).unwrap();
                assert_eq!(byte, [16 * round + expected], "at {offset}");
            }
        }
    }

    /// Each flush reports a write that failed before it.
    #[test]
    fn a_flush_reports_earlier_failures() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, []).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        let writable = File::options().read(true).write(true).open(&path).unwrap();
        let Some(direct) = DirectIo::open(&writable) else {
            println!("no O_DIRECT here: nothing is direct");
            return;
        };
        direct.refuse();
        // The way through the cache is not open for writing.
        let behind = WriteBehind::new(&File::open(&path).unwrap(), Arc::new(direct)).unwrap();
        let chunk = behind.shared.direct.filled(&vec![1; LARGE_BYTES]);
        behind.start().unwrap();
        {
            let mut state = behind.shared.state.lock();
            state.queue.push_back(Arc::new(Chunk { filled: chunk, offset: 0 }));
            state.came += 1;
            behind.shared.queued.fetch_add(1, Ordering::AcqRel);
        }
        behind.shared.changed.notify_all();
        for _ in 0..3 {
            let error = behind.drain().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{error}");
        }
    }
}
