//! Journals and super-journals that are in memory of this process, by name: SQLite asks for them by
//! their names.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::database::Database;
use crate::host::Code;
use crate::super_journal::SuperJournal;

#[derive(Default)]
struct Registry {
    /// By the names of their journals. Several connections may have a database open.
    databases: HashMap<Vec<u8>, Vec<Arc<Database>>>,
    super_journals: HashMap<Vec<u8>, Arc<SuperJournal>>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

pub fn add(database: &Arc<Database>) {
    let name = database.journal_name.as_bytes().to_vec();
    REGISTRY.lock().databases.entry(name).or_default().push(database.clone());
}

pub fn remove(database: &Arc<Database>) {
    let name = database.journal_name.as_bytes();
    let mut registry = REGISTRY.lock();
    if let Some(all) = registry.databases.get_mut(name) {
        all.retain(|other| !Arc::ptr_eq(other, database));
        if all.is_empty() {
            registry.databases.remove(name);
        }
    }
}

/// Whether a database of the extension has a journal of this name.
pub fn knows_journal(name: &CStr) -> bool {
    REGISTRY.lock().databases.contains_key(name.to_bytes())
}

/// Whether any database is open.
pub fn any() -> bool {
    !REGISTRY.lock().databases.is_empty()
}

/// The database whose journal has this name and is in memory. There is one at most, since it has a
/// lock that others wait for.
pub fn with_journal(name: &[u8]) -> Option<Arc<Database>> {
    let registry = REGISTRY.lock();
    let all = registry.databases.get(name)?;
    all.iter().find(|database| database.has_journal.load(Ordering::Acquire)).cloned()
}

/// The device of a database of the extension that has a journal of this name, if it has one.
pub fn device_of(name: &[u8]) -> Option<u64> {
    REGISTRY.lock().databases.get(name)?.first().map(|database| database.volume.device)
}

pub fn add_super_journal(journal: SuperJournal) -> Arc<SuperJournal> {
    let (name, journal) = (journal.name.as_bytes().to_vec(), Arc::new(journal));
    REGISTRY.lock().super_journals.insert(name, journal.clone());
    journal
}

pub fn super_journal(name: &CStr) -> Option<Arc<SuperJournal>> {
    REGISTRY.lock().super_journals.get(name.to_bytes()).cloned()
}

pub fn remove_super_journal(name: &CStr) {
    REGISTRY.lock().super_journals.remove(name.to_bytes());
}

pub fn any_super_journal() -> bool {
    !REGISTRY.lock().super_journals.is_empty()
}

/// Calls `each` with all super-journals, without the registry's lock.
pub fn with_super_journals(mut each: impl FnMut(&SuperJournal) -> Result<(), Code>) -> Result<(), Code> {
    let all: Vec<Arc<SuperJournal>> = REGISTRY.lock().super_journals.values().cloned().collect();
    all.iter().try_for_each(|journal| each(journal))
}
