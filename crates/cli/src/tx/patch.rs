//! Unified diffs of a transaction's changes, in the form of `git diff`.

use std::io::Write;

use similar::{ChangeTag, TextDiff};
use xact_fuse::client::{Channel, TxChange};
use xact_fuse::control::{ChangeKind, ChangeSide};

use crate::exit::{Failure, Result};

/// Files larger than this are not compared line by line.
const TEXT_MAX: u64 = 16 << 20;
/// As in Git: a NUL in so many first bytes makes a file binary.
const LOOKED_AT: usize = 8000;

/// What was and is in a file.
pub enum Contents {
    Text {
        old: Vec<u8>,
        new: Vec<u8>,
    },
    /// Bytes that are no text, or too many of them.
    Binary,
}

impl Contents {
    pub fn read(channel: &Channel, id: u64, change: &TxChange) -> Result<Contents> {
        let too_large = |side: Option<ChangeSide>| side.is_some_and(|side| side.size > TEXT_MAX);
        if too_large(change.old) || too_large(change.new) {
            return Ok(Contents::Binary);
        }
        let side = |side: Option<ChangeSide>, is_new| match side {
            Some(side) if matches!(side.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFLNK) => {
                read_all(channel, id, side.ino, is_new)
            }
            _ => Ok(Vec::new()),
        };
        let (old, new) = (side(change.old, false)?, side(change.new, true)?);
        let is_text = |bytes: &[u8]| !bytes[..bytes.len().min(LOOKED_AT)].contains(&0);
        Ok(if is_text(&old) && is_text(&new) { Contents::Text { old, new } } else { Contents::Binary })
    }
}

fn read_all(channel: &Channel, id: u64, ino: u64, is_new: bool) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let page = channel
            .read_side(id, ino, is_new, all.len() as u64)
            .map_err(|e| Failure::system(format_args!("read inode {ino} in transaction {id}"), e))?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

/// Lines that are added and removed.
pub fn count_lines(old: &[u8], new: &[u8]) -> (u64, u64) {
    let diff = TextDiff::from_lines(old, new);
    diff.iter_all_changes().fold((0, 0), |(plus, minus), change| match change.tag() {
        ChangeTag::Insert => (plus + 1, minus),
        ChangeTag::Delete => (plus, minus + 1),
        ChangeTag::Equal => (plus, minus),
    })
}

/// Adds one change to a patch. What a patch cannot say of it is left as a line that patch(1) skips.
pub fn write(out: &mut Vec<u8>, change: &TxChange, contents: Option<&Contents>) {
    let new_path = change.path.strip_prefix(b"/").unwrap_or(&change.path);
    let old_path = change.from.as_deref().map_or(new_path, |from| from.strip_prefix(b"/").unwrap_or(from));
    let is_dir =
        |side: Option<ChangeSide>| side.is_some_and(|side| side.mode & libc::S_IFMT == libc::S_IFDIR);
    if is_dir(change.old) || is_dir(change.new) {
        let what = match change.kind {
            ChangeKind::Added => "new folder",
            ChangeKind::Deleted => "deleted folder",
            ChangeKind::Renamed => "renamed folder",
            ChangeKind::Modified | ChangeKind::Attributes => "changed folder",
        };
        let from = change.from.as_ref().map(|_| [old_path, b" -> "].concat()).unwrap_or_default();
        put(out, &[what.as_bytes(), b" ", &from, new_path, b"\n"]);
        return;
    }
    put(out, &[b"diff --git a/", old_path, b" b/", new_path, b"\n"]);
    let mode = |side: ChangeSide| format!("{:06o}\n", git_mode(side.mode)).into_bytes();
    match (change.old, change.new) {
        (None, Some(new)) => put(out, &[b"new file mode ", &mode(new)]),
        (Some(old), None) => put(out, &[b"deleted file mode ", &mode(old)]),
        (Some(old), Some(new)) if git_mode(old.mode) != git_mode(new.mode) => {
            put(out, &[b"old mode ", &mode(old), b"new mode ", &mode(new)]);
        }
        _ => {}
    }
    if change.from.is_some() {
        put(out, &[b"rename from ", old_path, b"\nrename to ", new_path, b"\n"]);
    }
    let here = |side: Option<ChangeSide>, prefix: &[u8], path: &[u8]| match side {
        Some(_) => [prefix, path].concat(),
        None => b"/dev/null".to_vec(),
    };
    let (a, b) = (here(change.old, b"a/", old_path), here(change.new, b"b/", new_path));
    match contents {
        Some(Contents::Text { old, new }) if old != new => {
            let diff = TextDiff::from_lines(&old[..], &new[..]);
            put(out, &[b"--- ", &a, b"\n+++ ", &b, b"\n"]);
            diff.unified_diff().to_writer(&mut *out).expect("writing into memory");
        }
        Some(Contents::Binary) if change.kind != ChangeKind::Attributes => {
            put(out, &[b"Binary files ", &a, b" and ", &b, b" differ\n"]);
        }
        _ => {}
    }
}

/// As Git has modes: whether a file can be executed, and no other permission.
fn git_mode(mode: u32) -> u32 {
    match mode & libc::S_IFMT {
        libc::S_IFREG if mode & 0o100 != 0 => 0o100_755,
        libc::S_IFREG => 0o100_644,
        other => other,
    }
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.write_all(part).expect("writing into memory");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(mode: u32) -> Option<ChangeSide> {
        Some(ChangeSide { ino: 12, size: 4, mode, ..ChangeSide::default() })
    }

    fn patch(
        kind: ChangeKind,
        old: Option<ChangeSide>,
        new: Option<ChangeSide>,
        text: (&str, &str),
    ) -> String {
        let change = TxChange { kind, path: b"/d/f".to_vec(), from: None, old, new };
        let contents = Contents::Text { old: text.0.into(), new: text.1.into() };
        let mut out = Vec::new();
        write(&mut out, &change, Some(&contents));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn patches_are_those_of_git() {
        let file = libc::S_IFREG | 0o644;
        assert_eq!(
            patch(ChangeKind::Modified, side(file), side(file | 0o100), ("a\nb\n", "a\nc")),
            "diff --git a/d/f b/d/f\nold mode 100644\nnew mode 100755\n--- a/d/f\n+++ b/d/f\n\
             @@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n"
        );
        assert_eq!(
            patch(ChangeKind::Added, None, side(file), ("", "x\n")),
            "diff --git a/d/f b/d/f\nnew file mode 100644\n--- /dev/null\n+++ b/d/f\n@@ -0,0 +1 @@\n+x\n"
        );
        assert_eq!(
            patch(ChangeKind::Deleted, side(libc::S_IFLNK | 0o777), None, ("to", "")),
            "diff --git a/d/f b/d/f\ndeleted file mode 120000\n--- a/d/f\n+++ /dev/null\n\
             @@ -1 +0,0 @@\n-to\n\\ No newline at end of file\n"
        );
        assert_eq!(count_lines(b"a\nb\n", b"a\nc\nd\n"), (2, 1));
    }
}
