//! `xact stat --files`: the files whose data was written most (RFJ-6).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use xact::text::printable;
use xact_control::abi::FileUse;

use crate::control;
use crate::exit::Result;
use crate::output::{print, print_json};

#[derive(Debug, Serialize)]
struct Written {
    /// One of its names, from the root of the mount; none if it has none that the caller may see.
    path: Option<String>,
    inode: u64,
    new_blocks: u64,
    overwritten_blocks: u64,
}

#[derive(Debug, Serialize)]
struct MostWritten {
    files: Vec<Written>,
    /// Deleted files, and files with fewer blocks than the listed ones.
    other_new_blocks: u64,
    other_overwritten_blocks: u64,
}

pub fn list(mount_point: &Path, most: usize, json: bool) -> Result<()> {
    let (mut all, mut others) = control::files(mount_point)?;
    all.sort_by_key(|file| std::cmp::Reverse(file.new_blocks + file.overwritten_blocks));
    for file in all.drain(most.min(all.len())..) {
        others.new_blocks += file.new_blocks;
        others.overwritten_blocks += file.overwritten_blocks;
    }
    let paths = paths(mount_point, all.iter().map(|file| file.ino).collect());
    let written = |file: &FileUse| Written {
        path: paths.get(&file.ino).map(|path| path.to_string_lossy().into_owned()),
        inode: file.ino,
        new_blocks: file.new_blocks,
        overwritten_blocks: file.overwritten_blocks,
    };
    let files = MostWritten {
        files: all.iter().map(written).collect(),
        other_new_blocks: others.new_blocks,
        other_overwritten_blocks: others.overwritten_blocks,
    };
    if json {
        return print_json(&files);
    }
    let mut text = format!("{:>12} {:>12} {:>5}  file\n", "new", "overwritten", "new %");
    let mut line = |new: u64, overwritten: u64, name: &str| {
        if let Some(share) = (100 * new).checked_div(new + overwritten) {
            text += &format!("{new:>12} {overwritten:>12} {share:>5}  {name}\n");
        }
    };
    for file in &files.files {
        let name = match &file.path {
            Some(path) => printable(path).into_owned(),
            None => format!("<inode {}>", file.inode),
        };
        line(file.new_blocks, file.overwritten_blocks, &name);
    }
    line(files.other_new_blocks, files.other_overwritten_blocks, "deleted and other files");
    print(&text)
}

/// A path of each inode, from the root of the mount, by a walk that ends when all are found.
/// Folders that cannot be read are left out.
fn paths(mount_point: &Path, mut wanted: BTreeSet<u64>) -> BTreeMap<u64, PathBuf> {
    let mut found = BTreeMap::new();
    let mut folders = VecDeque::from([PathBuf::new()]);
    while let (false, Some(folder)) = (wanted.is_empty(), folders.pop_front()) {
        let Ok(entries) = std::fs::read_dir(mount_point.join(&folder)) else { continue };
        for entry in entries.flatten() {
            let path = folder.join(entry.file_name());
            if wanted.remove(&entry.ino()) {
                found.insert(entry.ino(), Path::new("/").join(&path));
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push_back(path);
            }
        }
    }
    found
}
