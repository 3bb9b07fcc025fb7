//! The super-journal of a transaction of several databases. SQLite makes it before the first of
//! them is synced, and its deletion is their commit:
//!
//! ```text
//!                 a database is synced              deleted by SQLite
//!   in memory ─────────────────────▶ holds databases ───────────────▶ one atomic write of all
//!       │            │                           │  a rollback
//!       │            │ one of them is elsewhere, │  releases them
//!       ▼            ▼ or too large              ▼
//!     a file, as all of their journals: SQLite's own way; deleting the file is the commit
//! ```

use std::ffi::{CString, c_int};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi;
use crate::batch;
use crate::database::{Database, write_synced};
use crate::host::{Code, OwnedFile, host};
use crate::overlay::Overlay;
use crate::registry;

pub struct SuperJournal {
    pub name: CString,
    flags: c_int,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Names of journals, each with a zero byte behind it.
    names: Vec<u8>,
    held: Vec<Arc<Database>>,
    /// Whether it stays in memory, once that is decided.
    in_memory: Option<bool>,
    file: Option<OwnedFile>,
}

impl SuperJournal {
    pub fn new(name: CString, flags: c_int) -> SuperJournal {
        SuperJournal { name, flags, inner: Mutex::default() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.inner.lock().names.clone()
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let names = &mut self.inner.lock().names;
        let end = offset + bytes.len();
        names.resize(names.len().max(end), 0);
        names[offset..end].copy_from_slice(bytes);
    }

    fn journals(&self) -> Vec<Vec<u8>> {
        let inner = self.inner.lock();
        inner.names.split(|&byte| byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
    }

    /// Whether the databases can be committed in one write. Otherwise the super-journal is a file
    /// from now on. Called before the first of them is synced, when it names all of them.
    pub fn stays_in_memory(&self) -> Result<bool, Code> {
        if let Some(known) = self.inner.lock().in_memory {
            return Ok(known);
        }
        let mut devices = Vec::new();
        let in_memory = self.journals().iter().all(|name| match registry::with_journal(name) {
            Some(database) => {
                devices.push(database.volume.device);
                database.is_buffered()
            }
            // A database with nothing to commit, or whose journal SQLite keeps in memory itself.
            None => match (registry::device_of(name), CString::new(name.as_slice())) {
                (Some(device), Ok(name)) => {
                    devices.push(device);
                    !host().exists(&name)
                }
                _ => false,
            },
        });
        let in_memory = in_memory && devices.windows(2).all(|two| two[0] == two[1]);
        if in_memory {
            self.inner.lock().in_memory = Some(true);
        } else {
            self.to_file()?;
        }
        Ok(in_memory)
    }

    fn to_file(&self) -> Result<(), Code> {
        let mut inner = self.inner.lock();
        if inner.file.is_none() {
            // SAFETY: the name lives as long as the file.
            let mut file = unsafe { OwnedFile::open(self.name.as_ptr(), self.flags) }?;
            write_synced(file.real(), &inner.names)?;
            inner.file = Some(file);
        }
        inner.in_memory = Some(false);
        Ok(())
    }

    /// Becomes a file, because the journal of `database` does, if it names this one. So do the
    /// journals of the databases that are held.
    pub fn to_file_for(&self, database: &Database) -> Result<(), Code> {
        if !self.journals().iter().any(|name| name == database.journal_name.as_bytes()) {
            return Ok(());
        }
        self.to_file()?;
        self.held_to_plain(Some(database))
    }

    fn held_to_plain(&self, except: Option<&Database>) -> Result<(), Code> {
        let held = std::mem::take(&mut self.inner.lock().held);
        for database in held {
            if except.is_some_and(|except| std::ptr::eq(except, &*database)) {
                continue;
            }
            let mut state = database.state.lock();
            state.held = None;
            database.make_plain(&mut state)?;
            state.real.sync()?;
        }
        Ok(())
    }

    /// The changes of a database wait for the deletion.
    pub fn hold(&self, database: &Arc<Database>) {
        self.inner.lock().held.push(database.clone());
    }

    pub fn release(&self, database: &Database) {
        self.inner.lock().held.retain(|held| !std::ptr::eq(&**held, database));
    }

    /// SQLite deletes it: to commit, or, when no database is held any longer, after a rollback.
    pub fn delete(&self, sync_folder: bool) -> c_int {
        let held = self.inner.lock().held.clone();
        if !held.is_empty() {
            let mut states: Vec<_> = held.iter().map(|database| database.state.lock()).collect();
            let changes: Vec<(_, &Overlay)> = held
                .iter()
                .zip(&states)
                .filter_map(|(database, state)| Some((&database.volume, state.overlay.as_ref()?)))
                .collect();
            match batch::commit(&changes, true) {
                Ok(()) => {
                    states.iter_mut().for_each(|state| state.note_commit());
                    self.inner.lock().held.clear();
                }
                Err(batch::Failure::Code(code)) => return code,
                Err(batch::Failure::Refused) => {
                    drop(states);
                    if let Err(code) = self.to_file().and_then(|()| self.held_to_plain(None)) {
                        return code;
                    }
                }
            }
        }
        if self.inner.lock().file.take().is_some() {
            let code = host().delete(&self.name, sync_folder);
            if code != abi::OK {
                return code;
            }
        }
        registry::remove_super_journal(&self.name);
        abi::OK
    }
}
