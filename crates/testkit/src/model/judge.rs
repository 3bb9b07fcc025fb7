//! The legal trees after a crash (docs/CRASH.md in code).
//!
//! For each thread, some number `k` of its steps must explain the tree:
//! 1. `k` is at least the number of promised steps (fsync, sync, commit) and at most the number of
//!    begun ones.
//! 2. Names, kinds, owners, permissions, attributes, link counts and symlinks are exactly those
//!    after `k` steps: metadata operations form a prefix.
//! 3. The inside of each file obeys `contents`.
//!
//! On a volume on which an fsync need not wait for others (`goes_ahead`), `k` is at least the
//! number of steps promised by calls that are not an fsync of a file. Each file that was synced may
//! be apart: with its attributes, its inside and, if it is new, its name as at one of its syncs
//! beyond `k`, as long as it depends on nothing else beyond `k`. If that sync was acknowledged, it
//! must be.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Debug;

use xact::PERSISTED_FOLDER;
use xact_fs::FileKind;

use crate::recording::Time;
use crate::tree::{Body, Entry, Tree};

use super::contents::{Moments, judge_file};
use super::history::{History, Names};
use super::stamp;
use super::state::{Content, Id, Node, State};

impl History {
    /// Whether a crash at `time` may leave `tree`; if not, the violated rule and the place.
    pub fn judge(&self, time: Time, tree: &Tree) -> Result<(), String> {
        for thread in 0..self.threads.len() {
            self.judge_thread(thread, time, tree)?;
        }
        Ok(())
    }

    fn judge_thread(&self, number: usize, time: Time, tree: &Tree) -> Result<(), String> {
        let thread = &self.threads[number];
        let tree = tree.below(&thread.prefix);
        let (floor, begun) = (self.floor(number, time), thread.begun(time));
        // Most states have another number of names, which is reported only if none of the others
        // explains the tree.
        let named = tree.entries.keys().filter(|path| *path != b"/" && !is_kept(path)).count();
        let (likely, unlikely): (Vec<usize>, Vec<usize>) =
            (floor..=begun).rev().partition(|&k| thread.names(k).paths.len() == named);
        let mut names_differ = Vec::new();
        let mut contents_differ = Vec::new();
        for k in likely.into_iter().chain(unlikely) {
            let apart = self.apart(number, time, k);
            match match_names(&thread.states[k], thread.names(k), &tree, &apart) {
                Err(why) => names_differ.push((k, why)),
                Ok(files) => match self.judge_files((number, time, k), begun, &files, &apart) {
                    Ok(()) => return Ok(()),
                    Err(why) => contents_differ.push((k, why)),
                },
            }
        }
        names_differ.sort_by_key(|(k, _)| Reverse(*k));
        // If the names are right for some k, the contents give the reason.
        let why = reasons(if contents_differ.is_empty() { names_differ } else { contents_differ });
        let last =
            |n: usize| n.checked_sub(1).map_or("nothing".to_owned(), |n| thread.steps[n].op.to_string());
        Err(format!(
            "thread '{}': no prefix of {floor} (promised: {}) to {begun} (begun: {}) steps explains it: {why}",
            thread.prefix,
            last(floor),
            last(begun),
        ))
    }

    /// The files that syncs of them alone may have taken past the first `k` steps, or must have.
    fn apart(&self, number: usize, time: Time, k: usize) -> Apart {
        let mut apart = Apart::default();
        if !self.goes_ahead {
            return apart;
        }
        let thread = &self.threads[number];
        let called = thread.called(time);
        for id in thread.synced_after(k) {
            let needed = thread.needed(time, id);
            let mut moments = thread.apart(id, k, called);
            moments.retain(|&v| v >= needed);
            if needed <= k && thread.states[k].node(id).is_some() {
                moments.push(k);
            }
            let is_new = thread.states[k].node(id).is_none();
            if is_new && let Some(&v) = moments.last() {
                let paths = &thread.names(v).paths;
                let path = paths.iter().find(|(_, named)| *named == id).expect("a synced file has a name");
                apart.new.entry(path.0.clone()).or_default().push(id);
            }
            if needed > k && moments.is_empty() {
                apart.lost = Some(id);
            }
            if needed > k && is_new {
                apart.required.insert(id);
            }
            apart.moments.insert(id, moments);
        }
        apart
    }

    /// Judges the attributes and contents of files, each after `k` steps or apart from that.
    fn judge_files(
        &self,
        (number, time, k): (usize, Time, usize),
        begun: usize,
        files: &FoundFiles<'_>,
        apart: &Apart,
    ) -> Result<(), String> {
        let thread = &self.threads[number];
        let judge = |id: Id, entry: &Entry, v: usize| {
            let named = || path_of(&thread.states[v], id);
            match_attributes(thread.states[v].node(id).expect("it exists then"), entry, named)?;
            let Body::File(bytes) = &entry.body else { return Ok(()) };
            let synced = self.synced(number, time, id);
            let reach = if self.goes_ahead { thread.reach(id, v, begun) } else { v };
            judge_file(thread, self.promise, id, bytes, Moments { synced, k: v, reach, begun })
                .map_err(|why| format!("file {id} ({}): {why}", named()))
        };
        // The newest reason is the one that counts.
        let any = |id: Id, entry: &Entry, moments: &[usize]| {
            let tried = moments.iter().map(|&v| judge(id, entry, v));
            tried.reduce(Result::or).unwrap_or_else(|| Err(format!("file {id} cannot be as it was synced")))
        };
        for (&id, entry) in &files.old {
            any(id, entry, apart.moments.get(&id).map_or(&[k][..], |moments| moments))?;
        }
        let mut found = Vec::new();
        for (path, entry) in &files.new {
            // Several files may have had the path one after the other: those that must exist first.
            let mut ids = apart.new[*path].clone();
            ids.sort_by_key(|id| (!apart.required.contains(id), *id));
            let fits = |id: &&Id| any(**id, entry, &apart.moments[*id]).is_ok();
            match ids.iter().find(fits) {
                Some(id) => found.push(*id),
                None => any(ids[0], entry, &apart.moments[&ids[0]])?,
            }
        }
        match apart.required.iter().find(|id| !found.contains(id)) {
            Some(id) => Err(format!("file {id} was synced, and is missing")),
            None => Ok(()),
        }
    }
}

/// The files that syncs have taken past the first `k` steps.
#[derive(Default)]
struct Apart {
    /// For each file that was synced alone, the numbers of steps after which it may be.
    moments: HashMap<Id, Vec<usize>>,
    /// The paths of those that do not exist after `k` steps.
    new: BTreeMap<Vec<u8>, Vec<Id>>,
    /// Those of them that must exist.
    required: BTreeSet<Id>,
    /// A file that cannot be as it must be.
    lost: Option<Id>,
}

/// The files of a tree.
struct FoundFiles<'a> {
    old: BTreeMap<Id, &'a Entry>,
    /// Those that do not exist after `k` steps.
    new: Vec<(&'a Vec<u8>, &'a Entry)>,
}

/// The distinct reasons against each k, newest first.
fn reasons(mut list: Vec<(usize, String)>) -> String {
    const SHOWN: usize = 6;
    list.dedup_by(|a, b| a.1 == b.1);
    let more = list.len().saturating_sub(SHOWN);
    list.truncate(SHOWN);
    let mut text: Vec<String> = list.into_iter().map(|(k, why)| format!("not {k} steps: {why}")).collect();
    if more > 0 {
        text.push(format!("and {more} more"));
    }
    text.join("; ")
}

fn path_of(state: &State, id: Id) -> String {
    let path = state.paths().into_iter().find(|(_, i)| *i == id).map(|(p, _)| p).unwrap_or_default();
    String::from_utf8_lossy(&path).into_owned()
}

/// Whether a path belongs to the volume's own files for persisted transactions.
fn is_kept(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').nth(1) == Some(PERSISTED_FOLDER.as_bytes())
}

/// Compares everything but the contents of files, and the attributes of those that may be apart;
/// returns the entry of each.
fn match_names<'a>(
    state: &State,
    Names { paths, links }: &Names,
    tree: &'a Tree,
    apart: &Apart,
) -> Result<FoundFiles<'a>, String> {
    if let Some(id) = apart.lost {
        return Err(format!("file {id} was synced after other changes of its names"));
    }
    let mut found = BTreeMap::new();
    let mut inodes: HashMap<u64, Id> = HashMap::new();
    for (path, id) in paths {
        let shown = || String::from_utf8_lossy(path).into_owned();
        let node = state.node(*id).expect("named nodes exist");
        let entry = tree.entries.get(path).ok_or_else(|| format!("{} is missing", shown()))?;
        let before = inodes.insert(entry.ino, *id);
        if before.is_some_and(|other| other != *id)
            || found.get(id).is_some_and(|e: &&Entry| e.ino != entry.ino)
        {
            return Err(format!("{}: wrong inode {}", shown(), entry.ino));
        }
        same(&shown, "kind", &entry.kind, &node.kind())?;
        same(&shown, "link count", &entry.nlink, &links[id])?;
        if !apart.moments.contains_key(id) {
            match_attributes(node, entry, shown)?;
        }
        found.insert(*id, entry);
    }
    let known: HashSet<_> = paths.iter().map(|(path, _)| path).collect();
    let entries = tree.entries.iter().filter(|(path, _)| !is_kept(path));
    let mut new = Vec::new();
    for (path, entry) in entries.filter(|(path, _)| *path != b"/" && !known.contains(path)) {
        let shown = || String::from_utf8_lossy(path).into_owned();
        if !apart.new.contains_key(path) {
            return Err(format!("{} should not be there", shown()));
        }
        same(&shown, "kind", &entry.kind, &FileKind::Regular)?;
        same(&shown, "link count", &entry.nlink, &1)?;
        if inodes.insert(entry.ino, 0).is_some() {
            return Err(format!("{}: wrong inode {}", shown(), entry.ino));
        }
        new.push((path, entry));
    }
    Ok(FoundFiles {
        old: found
            .into_iter()
            .filter(|(id, _)| state.node(*id).is_some_and(|n| n.file().is_some()))
            .collect(),
        new,
    })
}

fn same<T: PartialEq + Debug>(
    shown: &dyn Fn() -> String,
    what: &str,
    ours: &T,
    theirs: &T,
) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("{} has {what} {ours:?}, not {theirs:?}", shown())) }
}

/// Compares the attributes of an entry, and a link's target.
fn match_attributes(node: &Node, entry: &Entry, shown: impl Fn() -> String) -> Result<(), String> {
    same(&shown, "mode", &entry.perm, &node.perm)?;
    same(&shown, "owner", &(entry.uid, entry.gid), &(node.uid, node.gid))?;
    if entry.xattrs != node.xattrs {
        let list = |map: &BTreeMap<Vec<u8>, Vec<u8>>| {
            let show = |(name, value): (&Vec<u8>, &Vec<u8>)| {
                format!("{} ({})", String::from_utf8_lossy(name), stamp::describe(value))
            };
            map.iter().map(show).collect::<Vec<_>>().join(", ")
        };
        return Err(format!(
            "{} has attributes [{}], not [{}]",
            shown(),
            list(&entry.xattrs),
            list(&node.xattrs)
        ));
    }
    if let Content::Symlink(target) = &node.content {
        same(&shown, "target", &entry.body, &Body::Symlink(target.clone().into_bytes()))?;
    }
    Ok(())
}
