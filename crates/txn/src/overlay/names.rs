//! The changed names of one directory.

use std::collections::BTreeMap;

use xact_fs::Entry;

/// The first cookie of added names, above all cookies of the base (those are hashes, and the
/// largest hash does not occur; the top bit stays clear).
pub(crate) const ADDED_COOKIES: u64 = 0x7FFF_FFFF_0000_0001;

/// Memory of a changed name in bytes, including its share of the tree's nodes and of the
/// allocator's rounding. A name that the base does not have is stored twice.
const NAME_BYTES: usize = 160;

/// A name that the transaction has added, removed or pointed at another inode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NameChange {
    /// `None`: removed.
    pub now: Option<Entry>,
    /// The entry in the base as of the stamp. If `None`, the name has a cookie of its own.
    pub base: Option<Entry>,
    cookie: u64,
}

/// Changed names of one directory.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Names {
    by_name: BTreeMap<Vec<u8>, NameChange>,
    /// Names that the base does not have, in the order in which they were added.
    added: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
    /// Memory of all names in bytes.
    pub(super) bytes: usize,
}

/// Memory of a changed name in bytes.
fn name_bytes(name: &[u8], base: Option<Entry>) -> usize {
    NAME_BYTES + name.len() * if base.is_none() { 2 } else { 1 }
}

impl Names {
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub fn get(&self, name: &[u8]) -> Option<&NameChange> {
        self.by_name.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Vec<u8>, &NameChange)> {
        self.by_name.iter()
    }

    /// Names in an order in which they may be set again: added names keep their order.
    pub fn in_order(&self) -> impl Iterator<Item = (&Vec<u8>, &NameChange)> {
        let others = self.by_name.iter().filter(|(_, change)| change.base.is_some());
        let added = self.added.values().filter_map(|name| self.by_name.get_key_value(name));
        others.chain(added)
    }

    /// Added names from a cookie on, each with the cookie after it.
    pub fn added_from(&self, cookie: u64) -> impl Iterator<Item = (u64, &Vec<u8>, Entry)> {
        self.added.range(cookie..).filter_map(|(cookie, name)| {
            let entry = self.by_name.get(name)?.now?;
            Some((cookie + 1, name, entry))
        })
    }

    /// Drops the changes for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8]) -> bool) {
        let Names { by_name, added, bytes, .. } = self;
        by_name.retain(|name, change| {
            let kept = keep(name);
            if !kept {
                *bytes -= name_bytes(name, change.base);
            }
            if !kept && change.base.is_none() {
                added.remove(&change.cookie);
            }
            kept
        });
    }

    /// Sets a name's entry to `now`; `base` is its entry in the base as of the stamp.
    pub fn set(&mut self, name: &[u8], now: Option<Entry>, base: Option<Entry>) {
        if let Some(change) = self.by_name.get_mut(name) {
            change.now = now;
            if now.is_none() && change.base.is_none() {
                let cookie = change.cookie;
                self.bytes -= name_bytes(name, None);
                self.by_name.remove(name);
                self.added.remove(&cookie);
            }
            return;
        }
        if now.is_none() && base.is_none() {
            return;
        }
        let mut cookie = 0;
        if base.is_none() {
            cookie = ADDED_COOKIES + self.next_cookie;
            self.next_cookie += 1;
            self.added.insert(cookie, name.to_vec());
        }
        self.bytes += name_bytes(name, base);
        self.by_name.insert(name.to_vec(), NameChange { now, base, cookie });
    }
}
