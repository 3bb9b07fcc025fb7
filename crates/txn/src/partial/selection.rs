//! The changes that paths select, with all changes that must stay together with them.

use std::collections::{BTreeSet, HashMap};

use xact_fs::FileKind;
use xact_types::{Error, Ino, Result};

use crate::diff::Side;
use crate::diff::budget::Budget;
use crate::diff::by_path::{self, Found, NameAt};
use crate::diff::places::Places;
use crate::overlay::Overlay;
use crate::validation::paths::Paths;

/// The purpose of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Commit,
    Drop,
}

/// A selection of an overlay's changes.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    pub(super) names: BTreeSet<NameAt>,
    pub(crate) inodes: BTreeSet<Ino>,
}

impl Selection {
    /// Selects the changes at and below `paths` (from the volume's root, with or without a leading
    /// `/`), with all changes that must stay together with them. `refused`: paths of a change
    /// that was refused, which may be selected to be dropped.
    pub fn of(
        overlay: &Overlay,
        met: &Paths,
        paths: &[impl AsRef<[u8]>],
        purpose: Purpose,
        refused: &[String],
        budget: &mut Budget,
    ) -> Result<Selection> {
        let all = by_path::all(overlay, met, budget)?;
        let mut selection = Selection::default();
        for path in paths {
            let path = clean(path.as_ref());
            let mut any = false;
            for found in all.iter().filter(|found| concerns(found, &path)) {
                selection.add(found);
                any = true;
            }
            if !any && !refused.iter().any(|refused| is_at_or_below(refused.as_bytes(), &path)) {
                let shown = String::from_utf8_lossy(&path);
                let shown = if shown.is_empty() { "/" } else { &shown };
                return Err(Error::Usage(format!("the transaction changes nothing at or below {shown}")));
            }
        }
        selection.close_over(overlay, met, &all, purpose);
        Ok(selection)
    }

    /// Whether one of the selected paths is one of these, or is above it.
    pub fn selects(&self, of: &[String], paths: &[impl AsRef<[u8]>]) -> bool {
        let above = |path: &[u8]| of.iter().any(|of| is_at_or_below(of.as_bytes(), path));
        paths.iter().any(|selected| above(&clean(selected.as_ref())))
    }

    fn add(&mut self, found: &Found) {
        self.names.extend(found.names.iter().cloned());
        self.inodes.extend(found.ino);
    }

    /// Adds what the rules of the module's head require. Each name is looked at once, so that a
    /// chain of folders takes time in proportion to its length.
    fn close_over(&mut self, overlay: &Overlay, met: &Paths, all: &[Found], purpose: Purpose) {
        let mut by_name: HashMap<&NameAt, Vec<&Found>> = HashMap::new();
        for found in all {
            found.names.iter().for_each(|at| by_name.entry(at).or_default().push(found));
        }
        let side = if purpose == Purpose::Commit { Side::New } else { Side::Old };
        let places = Places::of(overlay, side, met);
        let mut next: Vec<NameAt> = self.names.iter().cloned().collect();
        while let Some(at) = next.pop() {
            let mut more = required(overlay, &places, &at, purpose);
            for found in by_name.remove(&at).unwrap_or_default() {
                more.extend(found.names.iter().cloned());
                self.inodes.extend(found.ino);
            }
            for at in more {
                if !self.names.contains(&at) {
                    self.names.insert(at.clone());
                    next.push(at);
                }
            }
        }
    }
}

/// The names that must stay together with a selected one.
fn required(overlay: &Overlay, places: &Places<'_>, at: &NameAt, purpose: Purpose) -> Vec<NameAt> {
    let (dir, name) = at;
    let Some(node) = overlay.nodes.get(dir) else { return Vec::new() };
    let Some(change) = node.names.get(name) else { return Vec::new() };
    let (arrives, leaves) = match purpose {
        Purpose::Commit => (change.now, change.base),
        Purpose::Drop => (change.base, change.now),
    };
    let is_new = match purpose {
        Purpose::Commit => node.born,
        Purpose::Drop => node.removed_dir && !node.born,
    };
    let mut more = Vec::new();
    if arrives.is_some()
        && is_new
        && let Some((parent, name)) = places.place(*dir)
    {
        more.push((parent, name.to_vec()));
    }
    // The deletion of a folder includes all changes in it.
    if let Some(gone) = leaves.and_then(|entry| overlay.nodes.get(&entry.ino)) {
        let goes = match purpose {
            Purpose::Commit => gone.removed_dir,
            Purpose::Drop => gone.born && gone.origin.kind == FileKind::Directory,
        };
        if goes {
            more.extend(gone.names.iter().map(|(name, _)| (gone.origin.ino, name.clone())));
        }
    }
    more
}

/// Normalizes a path to one slash at the start and none at the end: `a/b/` to `/a/b`. Empty for the
/// root.
fn clean(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.fold(Vec::new(), |mut clean, part| {
        clean.push(b'/');
        clean.extend_from_slice(part);
        clean
    })
}

fn is_at_or_below(of: &[u8], path: &[u8]) -> bool {
    of.strip_prefix(path).is_some_and(|rest| rest.first().is_none_or(|b| *b == b'/'))
}

fn concerns(found: &Found, path: &[u8]) -> bool {
    let below = |of: &[u8]| is_at_or_below(of, path);
    let Found { difference, .. } = found;
    below(&difference.path)
        || difference.from.as_deref().is_some_and(below)
        || found.deep.iter().any(|path| below(path))
}
