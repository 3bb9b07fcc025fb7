//! The net effect of a transaction file by file, for tools that support neither renamed folders nor
//! renames over existing files, like those that apply patches.
//!
//! Each path at which the two sides have different files, or a changed file, is listed with both
//! sides; renamed folders are walked on both sides. So each path has one difference, and the
//! differences may be applied in any order in which removals come before creations.

use std::collections::{BTreeMap, HashMap, HashSet};

use xact_fs::posix::{self, Access, Credentials};
use xact_fs::{Attr, FileKind, InodeOps};
use xact_types::{AccessCheck, Ino, Result, path_by_number, path_in};

use super::budget::Budget;
use super::by_path::Found;
use super::{Difference, Side, What};

/// FilesByPath by path.
type FilesByPath = BTreeMap<Vec<u8>, Attr>;

/// Memory of a file on both sides and in the list, without its path.
const FILE_BYTES: usize = 3 * size_of::<Attr>() + 256;

/// The list of differences by file between the sides `old` and `new`. A folder that `who` may not
/// list is not walked; if it was renamed, it stays one difference. So does a renamed folder with
/// paths that are too long to be shown, beside the files that are shown.
pub(crate) fn of(
    found: Vec<Found>,
    who: Option<&Credentials>,
    old: &mut (impl InodeOps + ?Sized),
    new: &mut (impl InodeOps + ?Sized),
    budget: &mut Budget,
) -> Result<Vec<Difference>> {
    let (mut before, mut after) = (FilesByPath::new(), FilesByPath::new());
    // Paths at which only attributes differ.
    let mut attributes = HashSet::new();
    let mut folders = Vec::new();
    for Found { difference, replaced, deep, .. } in found {
        let Difference { what, path, from, old: was, new: is, .. } = &difference;
        if *what == What::Attributes {
            attributes.insert(path.clone());
        }
        let is_folder = |attr: &Option<Attr>| attr.is_some_and(|attr| attr.kind == FileKind::Directory);
        put(&mut before, difference.path_on(Side::Old), *was);
        put(&mut before, path, replaced);
        put(&mut after, path, *is);
        match (from, is) {
            (Some(from), Some(folder)) if is_folder(is) => {
                // A path that is shown by number is too long.
                let start = |path: &Vec<u8>| deep.is_empty().then(|| path.clone());
                let whole = walk(old, who, (folder.ino, start(from)), &mut before, budget)?
                    & walk(new, who, (folder.ino, start(path)), &mut after, budget)?;
                if !whole {
                    folders.push(difference);
                }
            }
            _ if is_folder(was) || is_folder(is) => folders.push(difference),
            _ => {}
        }
    }
    let mut all = folders;
    all.extend(pair(before, after, &attributes));
    all.sort_by(|a, b| (&a.path, a.what).cmp(&(&b.path, b.what)));
    Ok(all)
}

fn put(files: &mut FilesByPath, path: &[u8], attr: Option<Attr>) {
    if let Some(attr) = attr.filter(|attr| attr.kind != FileKind::Directory) {
        files.insert(path.to_vec(), attr);
    }
}

/// A folder and its path, unless that is too long to be shown.
type Folder = (Ino, Option<Vec<u8>>);

/// Lists all files below a folder; false if `who` may not list one of the folders, or if a path is
/// too long to be shown.
fn walk(
    tree: &mut (impl InodeOps + ?Sized),
    who: Option<&Credentials>,
    top: Folder,
    files: &mut FilesByPath,
    budget: &mut Budget,
) -> Result<bool> {
    let mut whole = true;
    let mut left = vec![top];
    while let Some((folder, path)) = left.pop() {
        if let Some(who) = who
            && AccessCheck::DiffPermission.is_made()
            && !posix::permits(tree, who, folder, Access::LIST)?
        {
            whole = false;
            continue;
        }
        let (mut names, mut fits) = (Vec::new(), Ok(()));
        posix::read_dir(tree, folder, 0, &mut |item| {
            if item.name != b"." && item.name != b".." {
                fits = budget.add(item.name.len() + 64);
                names.push((item.name.to_vec(), item.ino));
            }
            fits.is_ok()
        })?;
        fits?;
        for (name, ino) in names {
            budget.add(FILE_BYTES + 2 * (path.as_ref().map_or(0, Vec::len) + name.len()))?;
            let below = path.as_ref().and_then(|path| path_in(path, &name));
            whole &= below.is_some();
            let attr = tree.attr(ino)?;
            if attr.kind == FileKind::Directory {
                left.push((ino, below));
            } else {
                let by_number = || [&path_by_number(folder)[..], b"/", &name].concat();
                files.insert(below.unwrap_or_else(by_number), attr);
            }
        }
    }
    Ok(whole)
}

/// Pairs the two sides: a path on both sides is a modification; a file at two different paths is a
/// rename.
fn pair(before: FilesByPath, mut after: FilesByPath, attributes: &HashSet<Vec<u8>>) -> Vec<Difference> {
    let mut all = Vec::new();
    let mut gone: HashMap<Ino, Vec<(Vec<u8>, Attr)>> = HashMap::new();
    for (path, old) in before {
        match after.remove(&path) {
            // A file deep in a renamed folder is shown by number in both states.
            Some(new) if old == new => {}
            Some(new) => {
                let same = old.ino == new.ino && attributes.contains(&path);
                let what = if same { What::Attributes } else { What::Modified };
                all.push(Difference { what, path, from: None, was_at: None, old: Some(old), new: Some(new) });
            }
            None => gone.entry(old.ino).or_default().push((path, old)),
        }
    }
    for (path, new) in after {
        let source = gone.get_mut(&new.ino).and_then(Vec::pop);
        let what = if source.is_some() { What::Renamed } else { What::Added };
        let (from, old) = source.unzip();
        all.push(Difference { what, path, from, was_at: None, old, new: Some(new) });
    }
    for (path, old) in gone.into_values().flatten() {
        all.push(Difference {
            what: What::Deleted,
            path,
            from: None,
            was_at: None,
            old: Some(old),
            new: None,
        });
    }
    all
}
