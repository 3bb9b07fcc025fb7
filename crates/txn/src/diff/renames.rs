//! Classifies changes of names as additions, deletions, modifications and renames: a name that an
//! inode has lost and one that it has gained are one rename.

use std::collections::{BTreeMap, BTreeSet};

use xact_types::{Ino, Result};

use super::by_path::{Found, List, NameAt, now, was};
use super::places::Places;
use super::{Difference, What};
use crate::overlay::Overlay;

pub(super) fn of_names(
    overlay: &Overlay,
    old: &Places<'_>,
    new: &Places<'_>,
    gone: &BTreeSet<Ino>,
    list: &mut List<'_>,
) -> Result<()> {
    let changes = || {
        overlay.nodes.iter().flat_map(|(&dir, node)| {
            node.names.iter().filter(|(_, c)| c.base != c.now).map(move |(name, c)| (dir, name, *c))
        })
    };
    // Names that no longer have their inode of the base, which may have another name now.
    let mut sources: BTreeMap<Ino, Vec<NameAt>> = BTreeMap::new();
    for (dir, name, change) in changes() {
        if let Some(base) = change.base
            && change.now.is_none_or(|now| now.ino != base.ino)
        {
            sources.entry(base.ino).or_default().push((dir, name.clone()));
        }
    }
    let mut explained: BTreeSet<NameAt> = BTreeSet::new();
    for (dir, name, change) in changes() {
        let Some(entry) = change.now else { continue };
        let at = (dir, name.clone());
        let mut deep = Vec::new();
        let source = sources.get_mut(&entry.ino).and_then(Vec::pop);
        let (what, from) = match (&source, change.base) {
            (Some(source), _) => (What::Renamed, Some(old.path_in(source.0, &source.1, &mut deep))),
            (None, Some(_)) => (What::Modified, None),
            (None, None) => (What::Added, None),
        };
        let before = if source.is_some() { Some(entry) } else { change.base };
        let path = new.path_in(dir, name, &mut deep);
        let was_at = (what == What::Modified)
            .then(|| old.path_in(dir, name, &mut deep))
            .filter(|was_at| *was_at != path);
        let difference = Difference {
            what,
            path,
            from,
            was_at,
            old: before.and_then(|entry| was(overlay, entry)),
            new: now(overlay, entry.ino),
        };
        explained.extend(source.clone());
        let names = source.into_iter().chain([at]).collect();
        let base = change.base.map(|entry| entry.ino).filter(|ino| gone.contains(ino));
        let replaced = change.base.and_then(|entry| was(overlay, entry));
        list.push(Found { difference, names, ino: base, replaced, deep })?;
    }
    for (dir, name, change) in changes() {
        let at = (dir, name.clone());
        if let (Some(base), None) = (change.base, change.now)
            && !explained.contains(&at)
        {
            let mut deep = Vec::new();
            let path = old.path_in(dir, name, &mut deep);
            let old = was(overlay, base);
            let difference =
                Difference { what: What::Deleted, path, from: None, was_at: None, old, new: None };
            // Its other changes belong to the deletion.
            let ino = gone.contains(&base.ino).then_some(base.ino);
            list.push(Found { difference, names: vec![at], ino, replaced: None, deep })?;
        }
    }
    Ok(())
}
