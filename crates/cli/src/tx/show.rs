//! Prints the changes of a transaction, as text and as JSON.

use serde::Serialize;
use xact::text::printable_bytes;
use xact_control::abi::{ChangeKind, ChangeSide};
use xact_control::client::{Channel, TxChange};

use crate::exit::{Failure, Result};
use crate::tx::patch::{self, Contents};
use crate::values::size_text;

/// The changes at or below one of the paths; all if there are no paths.
pub fn below(all: Vec<TxChange>, paths: &[Vec<u8>]) -> Result<Vec<TxChange>> {
    if paths.is_empty() {
        return Ok(all);
    }
    for path in paths {
        if !all.iter().any(|change| concerns(change, path)) {
            let path = String::from_utf8_lossy(path);
            return Err(Failure::usage(format!("the transaction changes nothing at or below {path}")));
        }
    }
    let wanted = |change: &TxChange| paths.iter().any(|path| concerns(change, path));
    Ok(all.into_iter().filter(wanted).collect())
}

fn concerns(change: &TxChange, path: &[u8]) -> bool {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let below = |of: &[u8]| of.strip_prefix(path).is_some_and(|rest| rest.first().is_none_or(|b| *b == b'/'));
    below(&change.path) || change.from.as_deref().is_some_and(below)
}

fn word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Deleted => "deleted",
        ChangeKind::Modified => "modified",
        ChangeKind::Renamed => "renamed",
        ChangeKind::Attributes => "attributes",
    }
}

fn from_to(change: &TxChange) -> String {
    let path = printable_bytes(&change.path);
    match &change.from {
        Some(from) => format!("{} -> {path}", printable_bytes(from)),
        None => path,
    }
}

/// One line for each change.
pub fn names(changes: &[TxChange]) -> String {
    let line = |change: &TxChange| format!("{:<10}  {}\n", word(change.kind), from_to(change));
    changes.iter().map(line).collect()
}

/// The number of changes of each kind, and by how much files grew and shrank.
pub fn totals(changes: &[TxChange]) -> String {
    use ChangeKind::{Added, Attributes, Deleted, Modified, Renamed};
    let mut text = String::new();
    for kind in [Added, Deleted, Modified, Renamed, Attributes] {
        let count = changes.iter().filter(|change| change.kind == kind).count();
        if count > 0 {
            text += &format!("{:<10}  {count}\n", word(kind));
        }
    }
    let size = |side: Option<ChangeSide>| match side {
        Some(side) if side.mode & libc::S_IFMT == libc::S_IFREG => side.size,
        _ => 0,
    };
    let (old, new): (Vec<u64>, Vec<u64>) = changes.iter().map(|c| (size(c.old), size(c.new))).unzip();
    let grown: u64 = old.iter().zip(&new).map(|(old, new)| new.saturating_sub(*old)).sum();
    let shrunk: u64 = old.iter().zip(&new).map(|(old, new)| old.saturating_sub(*new)).sum();
    text + &format!(
        "{} changes, files {} larger, {} smaller\n",
        changes.len(),
        size_text(grown),
        size_text(shrunk)
    )
}

/// A side of a change as JSON.
#[derive(Debug, Serialize)]
struct Side {
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
    /// Permissions, octal.
    mode: String,
    uid: u32,
    gid: u32,
}

#[derive(Debug, Serialize)]
pub struct Change {
    change: &'static str,
    path: String,
    from: Option<String>,
    old: Option<Side>,
    new: Option<Side>,
}

pub fn json(changes: &[TxChange]) -> Vec<Change> {
    let side = |side: ChangeSide| Side {
        kind: kind_of(side.mode),
        size: side.size,
        mode: format!("{:04o}", side.mode & 0o7777),
        uid: side.uid,
        gid: side.gid,
    };
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    changes
        .iter()
        .map(|change| Change {
            change: word(change.kind),
            path: text(&change.path),
            from: change.from.as_deref().map(text),
            old: change.old.map(side),
            new: change.new.map(side),
        })
        .collect()
}

fn kind_of(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFREG => "file",
        libc::S_IFDIR => "folder",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR => "character-device",
        libc::S_IFBLK => "block-device",
        _ => "unknown",
    }
}

/// Whether contents can be compared: files and symbolic links have contents.
fn has_contents(side: Option<ChangeSide>) -> bool {
    side.is_some_and(|side| matches!(side.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFLNK))
}

/// Added and removed lines and bytes.
pub fn stat(channel: &Channel, id: u64, changes: &[TxChange]) -> Result<String> {
    let mut text = String::new();
    let (mut files, mut added, mut removed) = (0u64, 0, 0);
    for change in changes {
        files += 1;
        let size = |side: Option<ChangeSide>| side.map_or(0, |side| side.size);
        let (old, new) = (size(change.old), size(change.new));
        let compared = has_contents(change.old) || has_contents(change.new);
        let what = if !compared || change.kind == ChangeKind::Attributes {
            word(change.kind).to_string()
        } else {
            match Contents::read(channel, id, change)? {
                Contents::Text { old, new } => {
                    let (plus, minus) = patch::count_lines(&old, &new);
                    added += plus;
                    removed += minus;
                    format!("+{plus} -{minus} lines")
                }
                Contents::Binary { .. } => format!("{} -> {}", size_text(old), size_text(new)),
            }
        };
        text += &format!("{}  {what}\n", from_to(change));
    }
    text += &format!("{files} changes, {added} lines added, {removed} removed\n");
    Ok(text)
}

/// A unified diff of the changes at or below the paths; of all if there are no paths.
pub fn patch(channel: &Channel, id: u64, paths: &[Vec<u8>]) -> Result<Vec<u8>> {
    let changes = channel
        .diff_by_file(id)
        .map_err(|e| Failure::system(format_args!("list the changes of transaction {id}"), e))?;
    let wanted = |change: &&TxChange| paths.is_empty() || paths.iter().any(|path| concerns(change, path));
    let mut out = Vec::new();
    for change in changes.iter().filter(wanted) {
        let contents = if has_contents(change.old) || has_contents(change.new) {
            Some(Contents::read(channel, id, change)?)
        } else {
            None
        };
        patch::write(&mut out, change, contents.as_ref());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: ChangeKind, from: Option<&str>, path: &str) -> TxChange {
        let from = from.map(|from| from.as_bytes().to_vec());
        TxChange { kind, path: path.as_bytes().to_vec(), from, old: None, new: None }
    }

    #[test]
    fn paths_choose_what_is_shown() {
        let all = || {
            vec![
                change(ChangeKind::Added, None, "/a/b"),
                change(ChangeKind::Renamed, Some("/c/d"), "/e"),
                change(ChangeKind::Deleted, None, "/ab"),
            ]
        };
        let shown = |paths: &[&str]| {
            let paths: Vec<Vec<u8>> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
            below(all(), &paths).map(|changes| names(&changes))
        };
        assert_eq!(shown(&["/a"]).unwrap(), "added       /a/b\n");
        assert_eq!(shown(&["/c"]).unwrap(), "renamed     /c/d -> /e\n");
        assert_eq!(shown(&["/"]).unwrap().lines().count(), 3);
        assert!(shown(&["/x"]).is_err());
    }

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(names(&[change(ChangeKind::Added, None, "/a\nb")]), "added       /a\\nb\n");
    }
}
