//! A database on a mounted volume: what a transaction of SQLite has written to it is kept in memory
//! until its commit, and is then given to the volume in one piece.
//!
//! ```text
//!              write, truncate (under EXCLUSIVE)     sync          the volume has it
//!   unchanged ──────────────────────────▶ changed ──────▶ commit ──────────────────▶ unchanged
//!       ▲                                  │ │  │                    refused │
//!       │      unlock, a rollback's sync   │ │  └── sync with a             ▼
//!       └──────────────────────────────────┘ │      super-journal ─▶ held  plain (see below)
//!                                             └── too large for memory ─────▶ plain
//! ```
//! - **changed**: the rollback journal and the written pages are in memory, nothing is on the
//!   volume. Reads see the written pages. A rollback needs no write.
//! - **held**: the transaction is of several databases. All of them are committed in one piece when
//!   SQLite deletes the super-journal.
//! - **plain**: SQLite's own way. The journal is written to its file and synced before any page is
//!   written to the database, as SQLite would have done. So it is safe to change to it at any time.
//!
//! The commit of SQLite is the sync of the database, which SQLite calls before it deletes the
//! journal. An error there makes SQLite roll back, from the journal in memory.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::abi;
use crate::batch;
use crate::host::{Code, OwnedFile, Real, host};
use crate::originals;
use crate::overlay::{Change, Overlay};
use crate::registry;
use crate::super_journal::SuperJournal;
use crate::volume::Volume;

/// The bytes of the database's header that each commit changes: its counter of changes, the number
/// of pages, and the list of unused pages.
const VERSION_AT: u64 = 24;
const VERSION_BYTES: usize = 16;

/// An open database.
pub struct Database {
    /// The name that SQLite has given.
    pub journal_name: CString,
    pub volume: Volume,
    /// Whether the journal is open and in memory. Read by other connections of the process.
    pub has_journal: AtomicBool,
    pub state: Mutex<State>,
}

pub struct State {
    pub real: Real,
    /// SQLite's lock of the database.
    pub lock: c_int,
    /// The written pages.
    pub overlay: Option<Overlay>,
    pub journal: Journal,
    /// The size of the file, while the lock keeps others from changing it.
    size: Option<u64>,
    /// The version of the database after the last commit here, and the file's size then: while the
    /// version is the same, no other connection has changed the size.
    last: Option<([u8; VERSION_BYTES], u64)>,
    /// Pages go to the file at once: SQLite has its journal on the volume, or none.
    plain: bool,
    /// It is in WAL mode, or was.
    wal: bool,
    /// SQLite has asked for a sync of all pages, so the changes are those of a commit.
    ready: bool,
    /// The changes of a sync that SQLite is going to ask for are done.
    settled: bool,
    /// The commit is done, and the lock is still held.
    committed: bool,
    pub held: Option<Arc<SuperJournal>>,
    /// Bytes of journal and pages that may be in memory.
    memory_max: usize,
    pub commits: u64,
    pub plain_commits: u64,
}

/// The rollback journal.
#[derive(Default)]
pub enum Journal {
    /// Not open, or a file of which the extension does not know.
    #[default]
    None,
    Memory {
        bytes: Vec<u8>,
        /// SQLite has synced all of it: it will sync the database too.
        is_synced: bool,
        /// SQLite has read from it: this may be a rollback.
        is_read: bool,
        /// The name and the flags with which SQLite has opened it.
        name: *const c_char,
        flags: c_int,
    },
    File(OwnedFile),
}

// SAFETY: the name is that of SQLite's pager, which lives longer than its open journal; the state
// is used under its lock.
unsafe impl Send for Journal {}

impl Database {
    pub fn new(journal_name: CString, volume: Volume, real: Real, memory_max: usize) -> Database {
        let state = State {
            real,
            lock: 0,
            overlay: None,
            journal: Journal::None,
            size: None,
            last: None,
            plain: false,
            wal: false,
            ready: false,
            settled: false,
            committed: false,
            held: None,
            memory_max,
            commits: 0,
            plain_commits: 0,
        };
        Database { journal_name, volume, has_journal: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Opens the journal in memory. False: SQLite must open it as a file, because no lock is held
    /// (`nolock=1`).
    ///
    /// # Safety
    /// The name stays valid until the journal is closed.
    pub unsafe fn open_journal(&self, name: *const c_char, flags: c_int) -> bool {
        let mut state = self.state.lock();
        state.wal = false;
        if state.lock < abi::LOCK_RESERVED {
            state.plain = true;
            return false;
        }
        state.plain = false;
        state.journal = Journal::Memory { bytes: Vec::new(), is_synced: false, is_read: false, name, flags };
        self.has_journal.store(true, Ordering::Release);
        true
    }

    pub fn close_journal(&self) {
        self.has_journal.store(false, Ordering::Release);
        self.state.lock().journal = Journal::None;
    }

    /// Whether its changes can be committed together with those of others.
    pub fn is_buffered(&self) -> bool {
        self.has_journal.load(Ordering::Acquire) && !self.state.lock().plain
    }

    /// `SQLITE_FCNTL_SYNC` without a super-journal: all pages are written, and a sync follows
    /// unless `synchronous` is off. False: the VFS below is to be asked too.
    pub fn before_sync(&self) -> Result<bool, Code> {
        let mut state = self.state.lock();
        if state.overlay.is_none() {
            return Ok(false);
        }
        self.release(&mut state);
        state.ready = true;
        if state.is_rolled_back() {
            state.discard();
            state.settled = true;
        } else if matches!(state.journal, Journal::Memory { is_synced: false, .. }) {
            // SQLite syncs neither journal nor database.
            self.commit(&mut state, false)?;
            state.settled = true;
        }
        Ok(true)
    }

    /// The same with a super-journal in memory.
    pub fn hold_for(self: &Arc<Self>, journal: Arc<SuperJournal>) -> Result<bool, Code> {
        let mut state = self.state.lock();
        if state.overlay.is_none() {
            return Ok(false);
        }
        journal.hold(self);
        state.held = Some(journal);
        Ok(true)
    }

    /// The same with one that is a file.
    pub fn become_plain(&self) -> Result<(), Code> {
        let mut state = self.state.lock();
        if state.overlay.is_some() { self.make_plain(&mut state) } else { Ok(()) }
    }

    pub fn sync(&self, flags: c_int) -> Result<(), Code> {
        let mut state = self.state.lock();
        if state.held.is_some() || std::mem::take(&mut state.settled) {
            return Ok(());
        }
        if state.overlay.is_some() {
            self.commit(&mut state, true)?;
            // Done, unless it was SQLite's own way.
            if !state.plain {
                return Ok(());
            }
        }
        let real = state.real;
        // SAFETY: the file is open.
        crate::host::checked(unsafe { (real.methods().sync)(real.pointer(), flags) })
    }

    /// `SQLITE_FCNTL_COMMIT_PHASETWO`: SQLite has ended its journal.
    pub fn after_commit(&self) -> Result<(), Code> {
        let mut state = self.state.lock();
        if state.ready && state.overlay.is_some() && state.held.is_none() {
            self.commit(&mut state, false)?;
        }
        Ok(())
    }

    /// After a failure the changes are still in memory, or SQLite's journal is on the volume.
    fn commit(&self, state: &mut State, durable: bool) -> Result<(), Code> {
        let Some(overlay) = &state.overlay else { return Ok(()) };
        match batch::commit(&[(&self.volume, overlay)], durable) {
            Ok(()) => {
                state.note_commit();
                Ok(())
            }
            Err(batch::Failure::Code(code)) => Err(code),
            Err(batch::Failure::Refused) => self.make_plain(state),
        }
    }

    /// Changes to SQLite's own way: the journal becomes a file and is synced, then the pages are
    /// written to the database. If that fails before the first page, nothing has changed.
    pub fn make_plain(&self, state: &mut State) -> Result<(), Code> {
        if let Journal::Memory { .. } = state.journal {
            // A journal that names a super-journal counts only if that exists.
            registry::with_super_journals(|journal| journal.to_file_for(self))?;
            state.held = None;
        }
        state.make_plain()
    }

    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Code> {
        let mut state = self.state.lock();
        if state.overlay.is_some() {
            return state.read_changed(offset, out);
        }
        state.real.read_exact(offset, out)?;
        // SQLite looks at the version when it has a lock, and then at the size.
        if offset == VERSION_AT && out.len() == VERSION_BYTES && state.is_stable() {
            let same = state.last.filter(|(version, _)| version == out);
            state.size = same.map(|(_, size)| size);
        }
        Ok(())
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Code> {
        let mut state = self.state.lock();
        if !state.buffers() {
            (state.size, state.last) = (None, None);
            return state.real.write(offset, bytes);
        }
        let real = state.real;
        self.changed(&mut state)?.write(offset, bytes, |at, part| real.read(at, part))?;
        if state.bytes() > state.memory_max {
            self.make_plain(&mut state)?;
        }
        Ok(())
    }

    pub fn truncate(&self, size: u64) -> Result<(), Code> {
        let mut state = self.state.lock();
        let is_ready = state.ready;
        if state.overlay.is_none() && (!state.buffers() || state.committed) {
            // After the commit SQLite cuts off pages that the database no longer has.
            (state.size, state.last) = (None, None);
            return state.real.truncate(size);
        }
        let overlay = self.changed(&mut state)?;
        overlay.truncate(size);
        // Without a sync, SQLite does that before the end of the commit.
        state.ready = is_ready;
        Ok(())
    }

    /// The overlay, for a change.
    fn changed<'a>(&self, state: &'a mut State) -> Result<&'a mut Overlay, Code> {
        (state.ready, state.settled, state.committed) = (false, false, false);
        self.release(state);
        if state.overlay.is_none() {
            let size = state.size()?;
            state.overlay = Some(Overlay::new(size));
        }
        Ok(state.overlay.as_mut().expect("made above"))
    }

    /// It is held no longer: SQLite rolls back.
    fn release(&self, state: &mut State) {
        if let Some(journal) = state.held.take() {
            journal.release(self);
        }
    }

    /// SQLite has this lock now.
    pub fn locked(&self, lock: c_int) {
        let mut state = self.state.lock();
        state.lock = state.lock.max(lock);
    }

    pub fn buffers(&self) -> bool {
        self.state.lock().buffers()
    }

    /// Whether the next transaction is going to be one atomic write.
    pub fn is_atomic(&self) -> bool {
        let state = self.state.lock();
        !state.plain && !state.wal
    }

    /// It is in WAL mode.
    pub fn note_wal(&self) {
        let mut state = self.state.lock();
        (state.wal, state.size) = (true, None);
    }

    /// For people: how its transactions are committed, and how many were.
    pub fn status(&self) -> String {
        let state = self.state.lock();
        let mode = if state.wal { "WAL" } else { "atomic" };
        format!("{mode}, {} atomic commits, {} with a journal file", state.commits, state.plain_commits)
    }

    /// Before SQLite gives up a lock.
    pub fn unlock(&self, lock: c_int) {
        let mut state = self.state.lock();
        if lock < abi::LOCK_RESERVED {
            // Changes that SQLite has not asked to sync are not committed.
            state.discard();
            (state.plain, state.committed, state.settled) =
                (matches!(state.journal, Journal::File(_)), false, false);
            self.release(&mut state);
        }
        if lock < abi::LOCK_SHARED {
            state.size = None;
        }
        state.lock = lock;
    }
}

impl State {
    /// Whether writes stay in memory.
    fn buffers(&self) -> bool {
        !self.plain && !self.wal && self.lock >= abi::LOCK_EXCLUSIVE
    }

    fn read_changed(&self, offset: u64, out: &mut [u8]) -> Result<(), Code> {
        let Some(overlay) = &self.overlay else { return Err(abi::IOERR) };
        let len = overlay.read(offset, out, |at, part| self.real.read(at, part))?;
        if len < out.len() { Err(abi::IOERR_SHORT_READ) } else { Ok(()) }
    }

    /// Whether a lock keeps others from changing the file, and no page goes past the overlay.
    fn is_stable(&self) -> bool {
        self.lock >= abi::LOCK_SHARED && !self.wal && !self.plain
    }

    /// Bytes in memory.
    fn bytes(&self) -> usize {
        let journal = if let Journal::Memory { bytes, .. } = &self.journal { bytes.len() } else { 0 };
        self.overlay.as_ref().map_or(0, Overlay::bytes) + journal
    }

    pub fn size(&mut self) -> Result<u64, Code> {
        if let Some(overlay) = &self.overlay {
            return Ok(overlay.size());
        }
        if let Some(size) = self.size {
            return Ok(size);
        }
        let size = self.real.size()?;
        self.size = self.is_stable().then_some(size);
        Ok(size)
    }

    fn discard(&mut self) {
        self.overlay = None;
        self.ready = false;
    }

    pub fn note_commit(&mut self) {
        self.size = self.overlay.as_ref().map(Overlay::size);
        let mut version = [0; VERSION_BYTES];
        let is_known = self.read_changed(VERSION_AT, &mut version).is_ok();
        self.last = self.size.filter(|_| is_known).map(|size| (version, size));
        self.discard();
        self.held = None;
        self.committed = true;
        self.commits += 1;
    }

    /// Whether the changes are those of a rollback: SQLite has written back each page of the
    /// journal. A commit writes another number to the first page.
    fn is_rolled_back(&self) -> bool {
        let (Some(overlay), Journal::Memory { bytes, is_read: true, .. }) = (&self.overlay, &self.journal)
        else {
            return false;
        };
        let pages = originals::pages(bytes);
        overlay.keeps_size() && !pages.is_empty() && pages.iter().all(|(at, page)| overlay.holds(*at, page))
    }

    fn make_plain(&mut self) -> Result<(), Code> {
        if let Journal::Memory { bytes, name, flags, .. } = &self.journal {
            // The journal of a file that has another name by now would not be found.
            if self.real.has_moved()? {
                return Err(abi::READONLY_DBMOVED);
            }
            // SAFETY: the pager's name of the journal is valid while the journal is open.
            let file = unsafe { OwnedFile::open(*name, *flags) }.and_then(|mut file| {
                let written = write_synced(file.real(), bytes);
                written.map(|()| file)
            });
            match file {
                Ok(file) => self.journal = Journal::File(file),
                Err(code) => {
                    // SAFETY: as above.
                    host().delete(unsafe { CStr::from_ptr(*name) }, false);
                    return Err(code);
                }
            }
        }
        (self.plain, self.size, self.last) = (true, None, None);
        self.plain_commits += 1;
        let (real, overlay) = (self.real, self.overlay.take());
        self.discard();
        overlay.map_or(Ok(()), |overlay| {
            overlay.changes(REAL_MAX, |change| match change {
                Change::Bytes(offset, bytes) => real.write(offset, bytes),
                Change::Truncate(size) => real.truncate(size),
            })
        })
    }
}

/// Bytes of one write. SQLite's VFS takes fewer than 128 KiB at a time.
const REAL_MAX: usize = 64 << 10;

/// Makes a file have these contents, durably.
pub fn write_synced(file: Real, bytes: &[u8]) -> Result<(), Code> {
    file.truncate(0)?;
    let mut offset = 0;
    for part in bytes.chunks(REAL_MAX) {
        file.write(offset, part)?;
        offset += part.len() as u64;
    }
    file.sync()
}
