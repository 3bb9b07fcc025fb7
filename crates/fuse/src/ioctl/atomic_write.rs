//! Atomic writes of one file: the ioctls that F2FS provides for databases, and that SQLite uses if
//! it is built with `SQLITE_ENABLE_BATCH_ATOMIC_WRITE`. It then commits without a journal file:
//!
//! ```text
//!   START_ATOMIC_WRITE, page writes, COMMIT_ATOMIC_WRITE (or ABORT), fsync
//! ```
//!
//! A section, from START to COMMIT, is a transaction of the volume in which the process that began
//! it writes to this file. So its atomicity, durability and crash argument are those of a commit.
//!
//! 1. Writes of the process that began it go into the transaction. All its other calls, and all
//!    calls of other processes, are outside. If these change the same blocks or the size, the
//!    COMMIT fails and no change of the section is applied. Stores through mappings are outside
//!    too, since the kernel does not say which process made them. In a page that contains data of
//!    the section, the bytes that differ from that data are taken as stored ([`stored`]).
//! 2. No other process reads uncommitted data. The kernel puts written data into its page cache,
//!    where others would find it. So a write is answered only when the kernel has forgotten its
//!    pages again. That matters most when the process dies: its locks are released at once, and the
//!    next process reads before the daemon notices the death.
//! 3. The process that began the section is known by a pidfd. When it has died, the section is
//!    aborted by the next process that wants to begin one, or by a check once a second.
//!
//! A worker in a section waits for the kernel's lock of the written pages. A READ that another
//! worker answers may hold that lock, and [`SECTIONS_MAX`] keeps enough workers free for this. The
//! write itself holds no lock on a page that it fills, or whose contents the kernel has
//! (`fuse_fill_write_pages`). A page whose contents it has not, and into which only a part is
//! written, is locked until the answer. No process reads that page from the cache, so it need not
//! be forgotten ([`AbsentPages`](crate::ioctl::absent_pages::AbsentPages)). It is always the last
//! page of a request. If it is not known whether the kernel has it (it may have dropped it when
//! memory was short), the worker tries to make the kernel forget it. After [`LOCKED_WAIT`] the
//! reaper answers `EINTR`: this releases the lock, and the kernel does not take the pages of a
//! write that failed for valid. The caller writes again, as after any signal, and then the page is
//! known to be absent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xact::{AbortHistory, Durability, Isolation, Resource, TxOptions};
use xact_fs::{Caller, View, WriteHow};
use xact_types::{AccessCheck, Errno, Error, Ino, Result};

use crate::commit::publish::Publisher;
use crate::ioctl::absent_pages::{LOCKED_WAIT, PAGE};
use crate::ioctl::answer::answer;
use crate::ioctl::answer::put;
use crate::ioctl::sections::{Pending, SECTIONS_MAX, SECTIONS_OF_USER, Section, stored};
use crate::ops::credentials::caller;
use crate::protocol::abi::{self, InHeader, WriteOut};
use crate::protocol::node::Node;
use crate::protocol::reply::Reply;
use crate::server::Outcome;
use crate::server::Server;
use crate::server::jobs::Kind;
use crate::server::process::Process;
use crate::transport::channel::Channel;

/// The ioctls, as in the kernel's `linux/f2fs.h`.
pub const START: u32 = 0xf501;
pub const COMMIT: u32 = 0xf502;
pub const ABORT: u32 = 0xf505;
pub const GET_FEATURES: u32 = 0x8004_f50c;
/// `F2FS_FEATURE_ATOMIC_WRITE`
const FEATURE_ATOMIC_WRITE: u32 = 4;

/// Interval of the check for abandoned sections while any exist.
const LOOK: Duration = Duration::from_secs(1);

/// Whether the ioctl is one of these.
pub(crate) fn is_atomic_command(command: u32) -> bool {
    matches!(command, START | COMMIT | ABORT | GET_FEATURES)
}

/// Features of this file system, for a caller that could use them.
pub(crate) fn features(header: &InHeader) -> u32 {
    if header.pid == 0 { 0 } else { FEATURE_ATOMIC_WRITE }
}

impl Server {
    /// START, COMMIT, ABORT on a file of the live volume. Errors make SQLite fall back to a journal
    /// file.
    pub(crate) fn atomic_ioctl(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        ino: Ino,
        header: &InHeader,
        command: u32,
        reply: &mut Reply,
    ) -> Result<Outcome> {
        match command {
            START => self.start_section(ino, header)?,
            COMMIT => {
                self.commit_section_later(channel, ino, header)?;
                return Ok(Outcome::Later);
            }
            _ => {
                let section = self.sections.take(ino, header.pid)?;
                self.abort_section(ino, &section);
            }
        }
        put(reply, &());
        Ok(Outcome::Done)
    }

    /// Runs on a separate thread, as all commits do.
    fn commit_section_later(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        ino: Ino,
        header: &InHeader,
    ) -> Result<()> {
        let (channel, unique) = (channel.clone(), header.unique);
        let section = self.sections.take(ino, header.pid)?;
        let ours = section.clone();
        let account = self.volume.accounts().of(section.uid);
        let started = self.spawn_for(&account, Kind::End, move |server| {
            let parts = ours.ranges.lock().clone();
            let commit = || {
                ours.transaction.commit_with_observer(
                    Durability::Durable,
                    &mut Publisher::over_parts(server, [(ino, parts)]),
                )
            };
            let result = catch_unwind(AssertUnwindSafe(commit)).unwrap_or_else(|_| {
                server.volume.poison("a panic in the commit of an atomic write");
                Err(Errno::EIO.into())
            });
            // The pages are unchanged if it failed. Only the size may look larger.
            server.forget_attributes(Node::Live(ino));
            answer(&channel, unique, result.as_ref().err().map(Error::errno), &());
        });
        started.inspect_err(|_| self.abort_section(ino, &section))
    }

    /// `EBUSY`: another process is in a section of this file, or there are too many sections.
    /// `EINVAL`: this process is in one.
    fn start_section(self: &Arc<Self>, ino: Ino, header: &InHeader) -> Result<()> {
        let attr = self.live.attr(ino)?;
        if attr.kind != xact_fs::FileKind::Regular {
            return Err(Errno::ENOTTY.into());
        }
        // As in F2FS: the daemon does not see opens, so it does not know the access mode of the
        // descriptor. The owner can always grant itself write access, so it needs no other
        // permission.
        if header.uid != 0 && header.uid != attr.uid && AccessCheck::AtomicWriteOwner.is_made() {
            return Err(Errno::EACCES.into());
        }
        if let Some(old) = self.sections.of(ino) {
            if !old.owner.is_dead() {
                return Err(if old.owner.is(header.pid) { Errno::EINVAL } else { Errno::EBUSY }.into());
            }
            if self.sections.remove(ino, &old) {
                self.abort_section(ino, &old);
            }
        }
        let owner = Process::of(header.pid)?;
        let options = TxOptions { isolation: Isolation::Snapshot, ..TxOptions::default() };
        let transaction = self.begin_transaction(header.uid, options, &AbortHistory::default())?;
        let uid = header.uid;
        let section =
            Section { owner, uid, transaction, ranges: Mutex::default(), pending: Mutex::default() };
        let is_limited = self.volume.accounts().of(uid).limit(Resource::Transactions) < u64::MAX;
        let mut open = self.sections.open.lock();
        let own = open.values().filter(|section| section.uid == uid).count();
        let too_many = open.len() >= SECTIONS_MAX || is_limited && own >= SECTIONS_OF_USER;
        if too_many || open.contains_key(&ino) {
            drop(open);
            section.transaction.abort();
            return Err(Errno::EBUSY.into());
        }
        open.insert(ino, Arc::new(section));
        self.sections.count.store(open.len(), Ordering::Release);
        drop(open);
        if !self.sections.watched.swap(true, Ordering::AcqRel) {
            self.reaper.wake(self);
        }
        Ok(())
    }

    fn abort_section(&self, ino: Ino, section: &Section) {
        section.transaction.abort();
        self.forget_attributes(Node::Live(ino));
    }

    /// A write to a file of the live volume. `None`: it does not belong to a section.
    pub(crate) fn section_write(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        header: &InHeader,
        ino: Ino,
        args: &abi::WriteIn,
        data: &[u8],
        reply: &mut Reply,
    ) -> Option<Result<Outcome>> {
        let section = self.sections.of(ino)?;
        if args.write_flags & abi::WRITE_CACHE != 0 {
            let stored = self.stored_beside(&section, ino, args.offset, data).transpose()?;
            return Some(stored.map(|()| {
                reply.put(&WriteOut { size: data.len() as u32, padding: 0 });
                Outcome::Done
            }));
        }
        let is_own = section.owner.is(header.pid);
        is_own.then(|| self.write_in(&section, channel, header, ino, args, data))
    }

    /// Handles pages of a mapping, into which other processes may have stored: applies the stored
    /// bytes to the live volume, without the section's data. `None`: these pages have no data of
    /// the section.
    fn stored_beside(&self, section: &Section, ino: Ino, offset: u64, data: &[u8]) -> Result<Option<()>> {
        let end = offset + data.len() as u64;
        let meets = |&(from, len): &(u64, u64)| from < end && offset < from + len;
        if !section.ranges.lock().iter().any(meets) || !AccessCheck::AtomicWriteMappings.is_made() {
            return Ok(None);
        }
        let (mut written, mut before) = (Vec::new(), Vec::new());
        section.transaction.read(ino, offset, data.len(), &mut written)?;
        self.live.read(ino, offset, data.len(), &mut before)?;
        if let Some(after) = stored(data, &written, &before) {
            let how = WriteHow { append: false, kill_suidgid: false, by: Caller::ROOT, is_part: false };
            self.live.write(ino, offset, &after, how)?;
        }
        Ok(Some(()))
    }

    fn write_in(
        self: &Arc<Self>,
        section: &Section,
        channel: &Arc<Channel>,
        header: &InHeader,
        ino: Ino,
        args: &abi::WriteIn,
        data: &[u8],
    ) -> Result<Outcome> {
        let (offset, len) = (args.offset, data.len() as u64);
        let appended = args.flags & libc::O_APPEND as u32 != 0;
        if len == 0 || appended {
            return Err(Errno::EINVAL.into());
        }
        let kill_suidgid = args.write_flags & abi::WRITE_KILL_SUIDGID != 0;
        let how = WriteHow { append: false, kill_suidgid, by: caller(header, 0), is_part: false };
        let written = section.transaction.write(ino, offset, data, how)?;
        // Whole pages, since the kernel forgets whole pages.
        let (start, end) = (offset / PAGE * PAGE, (offset + len).next_multiple_of(PAGE));
        section.ranges.lock().push((start, end - start));
        let last = end - PAGE;
        let is_partial = offset > last || offset + len < end;
        let is_locked = is_partial && self.sections.absent.has(ino, last / PAGE);
        // The last page is locked if the kernel does not have its contents.
        let end = if is_locked { last } else { end };
        let pending = Arc::new(Pending {
            channel: channel.clone(),
            unique: header.unique,
            len: written.len as u32,
            until: Mutex::new(Instant::now() + LOOK),
            answered: AtomicBool::new(false),
        });
        *section.pending.lock() = Some(pending.clone());
        if end > start {
            self.sections.absent.add(ino, start, end - start);
        }
        let full_end = if is_partial { last } else { end };
        if full_end > start {
            self.forget_range(Node::Live(ino), start, full_end - start);
        }
        if is_partial && !is_locked {
            *pending.until.lock() = Instant::now() + LOCKED_WAIT;
            self.reaper.wake(self);
            self.forget_range(Node::Live(ino), last, PAGE);
        }
        *section.pending.lock() = None;
        pending.answer(Ok(()));
        Ok(Outcome::Later)
    }

    /// Aborts the sections of dead processes and answers the writes that have waited for too long.
    /// Returns when to look again.
    pub(crate) fn check_section_owners(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = now + LOOK;
        for (ino, section) in self.sections.all() {
            if section.owner.is_dead() && self.sections.remove(ino, &section) {
                self.abort_section(ino, &section);
            }
            let Some(pending) = section.pending.lock().clone() else { continue };
            let until = *pending.until.lock();
            if until <= now {
                pending.answer(Err(Errno::EINTR));
            } else {
                next = next.min(until);
            }
        }
        let any = self.sections.any();
        self.sections.watched.store(any, Ordering::Release);
        // A section that began in between has seen that the reaper already looks.
        let any = any || self.sections.any();
        any.then_some(next)
    }

    pub(crate) fn abort_sections(&self) {
        for (ino, section) in self.sections.all() {
            self.sections.remove(ino, &section);
            section.transaction.abort();
        }
    }
}
