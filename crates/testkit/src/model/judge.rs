//! The legal trees after a crash (docs/CRASH.md in code).
//!
//! For each thread, some number `k` of its steps must explain the tree:
//! 1. `k` is at least the number of promised steps (fsync, sync, commit) and at most the number of
//!    begun ones.
//! 2. Names, kinds, owners, permissions, attributes, link counts and symlinks are exactly those
//!    after `k` steps: metadata operations form a prefix.
//! 3. The inside of each file obeys `contents`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use xact::PERSISTED_FOLDER;

use crate::recording::Time;
use crate::tree::{Body, Entry, Tree};

use super::contents::{Moments, judge_file};
use super::history::{History, Names};
use super::stamp;
use super::state::{Content, Id, State};

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
            match match_names(&thread.states[k], thread.names(k), &tree) {
                Err(why) => names_differ.push((k, why)),
                Ok(files) => match self.judge_contents(number, time, k, begun, &files) {
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

    fn judge_contents(
        &self,
        number: usize,
        time: Time,
        k: usize,
        begun: usize,
        files: &BTreeMap<Id, &Entry>,
    ) -> Result<(), String> {
        let thread = &self.threads[number];
        for (&id, entry) in files {
            let Body::File(bytes) = &entry.body else { continue };
            let synced = self.synced(number, time, id);
            let reach = if self.goes_ahead { thread.reach(id, k, begun) } else { k };
            judge_file(thread, self.promise, id, bytes, Moments { synced, k, reach, begun })
                .map_err(|why| format!("file {id} ({}): {why}", path_of(&thread.states[k], id)))?;
        }
        Ok(())
    }
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

/// Compares everything but the contents of files; returns the entry of each.
fn match_names<'a>(
    state: &State,
    Names { paths, links }: &Names,
    tree: &'a Tree,
) -> Result<BTreeMap<Id, &'a Entry>, String> {
    let mut found = BTreeMap::new();
    let mut inodes: HashMap<u64, Id> = HashMap::new();
    for (path, id) in paths {
        let shown = || String::from_utf8_lossy(path);
        let node = state.node(*id).expect("named nodes exist");
        let entry = tree.entries.get(path).ok_or_else(|| format!("{} is missing", shown()))?;
        let before = inodes.insert(entry.ino, *id);
        if before.is_some_and(|other| other != *id)
            || found.get(id).is_some_and(|e: &&Entry| e.ino != entry.ino)
        {
            return Err(format!("{}: wrong inode {}", shown(), entry.ino));
        }
        macro_rules! same {
            ($what:literal, $ours:expr, $theirs:expr) => {
                if $ours != $theirs {
                    return Err(format!(
                        concat!("{} has ", $what, " {:?}, not {:?}"),
                        shown(),
                        $ours,
                        $theirs
                    ));
                }
            };
        }
        same!("kind", entry.kind, node.kind());
        same!("mode", entry.perm, node.perm);
        same!("owner", (entry.uid, entry.gid), (node.uid, node.gid));
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
        same!("link count", entry.nlink, links[id]);
        if let Content::Symlink(target) = &node.content {
            same!("target", entry.body, Body::Symlink(target.clone().into_bytes()));
        }
        found.insert(*id, entry);
    }
    // All of the model's paths exist, and the root; so any further path is an error.
    let entries = || tree.entries.keys().filter(|path| !is_kept(path));
    if entries().count() > paths.len() + 1 {
        let known: HashSet<_> = paths.iter().map(|(path, _)| path).collect();
        let extra = entries().find(|path| *path != b"/" && !known.contains(path));
        let extra = String::from_utf8_lossy(extra.expect("more entries than paths"));
        return Err(format!("{extra} should not be there"));
    }
    Ok(found)
}
