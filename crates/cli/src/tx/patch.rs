//! Unified diffs of a transaction's changes, in the form of `git diff`, for `git apply` and
//! patch(1).
//!
//! Git tracks files with their contents, symbolic links and executable bits. Other changes
//! (folders, other permissions, devices) are lines that programs which apply patches ignore.

use std::io::Write;

use similar::{ChangeTag, TextDiff};
use xact_control::abi::{ChangeKind, ChangeSide};
use xact_control::client::{Channel, TxChange};

use crate::exit::{Failure, Result};

/// Files larger than this are not compared line by line.
const TEXT_MAX: u64 = 16 << 20;
/// As in Git: a zero byte within this number of first bytes makes a file binary.
const PROBED_BYTES: usize = 8000;

/// The old and new contents of a file.
pub enum Contents {
    Text {
        old: Vec<u8>,
        new: Vec<u8>,
    },
    /// Contents that are binary or too large; whether they differ.
    Binary {
        differ: bool,
    },
}

impl Contents {
    pub fn read(channel: &Channel, id: u64, change: &TxChange) -> Result<Contents> {
        let has_bytes = |side: &ChangeSide| matches!(side.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFLNK);
        let (old, new) = (change.old.filter(has_bytes), change.new.filter(has_bytes));
        let size = |side: Option<ChangeSide>| side.map_or(0, |side| side.size);
        if size(old).max(size(new)) > TEXT_MAX {
            return Ok(Contents::Binary { differ: size(old) != size(new) || differ(channel, id, old, new)? });
        }
        let side = |side: Option<ChangeSide>, is_new| match side {
            Some(side) => read_all(channel, id, side.ino, is_new),
            None => Ok(Vec::new()),
        };
        let (old, new) = (side(old, false)?, side(new, true)?);
        let is_text = |bytes: &[u8]| !bytes[..bytes.len().min(PROBED_BYTES)].contains(&0);
        let is_text = is_text(&old) && is_text(&new);
        Ok(if is_text { Contents::Text { old, new } } else { Contents::Binary { differ: old != new } })
    }
}

/// Whether two files of one size hold other bytes, read page by page.
fn differ(channel: &Channel, id: u64, old: Option<ChangeSide>, new: Option<ChangeSide>) -> Result<bool> {
    let (Some(old), Some(new)) = (old, new) else { return Ok(true) };
    let mut at = 0;
    loop {
        let (a, b) = (read_at(channel, id, old.ino, false, at)?, read_at(channel, id, new.ino, true, at)?);
        if a != b || a.is_empty() {
            return Ok(a != b);
        }
        at += a.len() as u64;
    }
}

fn read_at(channel: &Channel, id: u64, ino: u64, is_new: bool, at: u64) -> Result<Vec<u8>> {
    channel
        .read_side(id, ino, is_new, at)
        .map_err(|e| Failure::system(format_args!("read inode {ino} in transaction {id}"), e))
}

fn read_all(channel: &Channel, id: u64, ino: u64, is_new: bool) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let page = read_at(channel, id, ino, is_new, all.len() as u64)?;
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

/// Adds one change to a patch.
pub fn write(out: &mut Vec<u8>, change: &TxChange, contents: Option<&Contents>) {
    let kind = |side: Option<ChangeSide>| side.map(|side| side.mode & libc::S_IFMT);
    let (was, is) = (kind(change.old), kind(change.new));
    let known = |kind: Option<u32>| kind.is_none_or(|kind| matches!(kind, libc::S_IFREG | libc::S_IFLNK));
    if !known(was) || !known(is) {
        return write_note(out, change, is.or(was).is_some_and(|kind| kind == libc::S_IFDIR));
    }
    // Git treats a symbolic link that replaces a file as a deletion and an addition, not as a
    // change.
    if let (Some(was), Some(is), Some(Contents::Text { old, new })) = (was, is, contents)
        && was != is
    {
        let gone = TxChange { new: None, from: None, ..change.clone() };
        write(out, &gone, Some(&Contents::Text { old: old.clone(), new: Vec::new() }));
        let made = TxChange { old: None, from: None, ..change.clone() };
        return write(out, &made, Some(&Contents::Text { old: Vec::new(), new: new.clone() }));
    }
    let path = |path: &[u8]| path.strip_prefix(b"/").unwrap_or(path).to_vec();
    let new_path = path(&change.path);
    let old_path = change.from.as_deref().map_or_else(|| new_path.clone(), path);
    let mut head = Vec::new();
    let mode = |side: ChangeSide| format!("{:06o}\n", git_mode(side.mode)).into_bytes();
    match (change.old, change.new) {
        (None, Some(new)) => put(&mut head, &[b"new file mode ", &mode(new)]),
        (Some(old), None) => put(&mut head, &[b"deleted file mode ", &mode(old)]),
        (Some(old), Some(new)) if git_mode(old.mode) != git_mode(new.mode) => {
            put(&mut head, &[b"old mode ", &mode(old), b"new mode ", &mode(new)]);
        }
        _ => {}
    }
    if change.from.is_some() {
        let (from, to) = (quoted(&old_path), quoted(&new_path));
        put(&mut head, &[b"rename from ", &from, b"\nrename to ", &to, b"\n"]);
    }
    let here = |side: Option<ChangeSide>, path: Vec<u8>| match side {
        Some(_) => quoted(&path),
        None => b"/dev/null".to_vec(),
    };
    let (a, b) = ([b"a/", &old_path[..]].concat(), [b"b/", &new_path[..]].concat());
    let first = [b"diff --git ", &quoted(&a)[..], b" ", &quoted(&b), b"\n"].concat();
    let (a, b) = (here(change.old, a), here(change.new, b));
    match contents {
        Some(Contents::Text { old, new }) if old != new => {
            // A tab ends a name that has spaces.
            let end = |name: &[u8]| if name.contains(&b' ') { &b"\t\n"[..] } else { b"\n" };
            put(&mut head, &[b"--- ", &a, end(&a), b"+++ ", &b, end(&b)]);
            TextDiff::from_lines(&old[..], &new[..])
                .unified_diff()
                .to_writer(&mut head)
                .expect("writing into memory");
        }
        Some(Contents::Binary { differ: true }) => {
            put(&mut head, &[b"Binary files ", &a, b" and ", &b, b" differ\n"]);
        }
        _ if head.is_empty() => return write_note(out, change, false),
        _ => {}
    }
    put(out, &[&first, &head]);
}

/// A line that programs which apply patches ignore.
fn write_note(out: &mut Vec<u8>, change: &TxChange, is_folder: bool) {
    let what = match change.kind {
        ChangeKind::Added => "new",
        ChangeKind::Deleted => "deleted",
        ChangeKind::Renamed => "renamed",
        ChangeKind::Modified => "changed",
        ChangeKind::Attributes => "attributes of",
    };
    let noun = match (is_folder, change.kind) {
        (true, _) => " folder",
        (false, ChangeKind::Attributes | ChangeKind::Modified) => "",
        // Files that Git knows have a diff.
        (false, _) => " special file",
    };
    let from = change.from.as_ref().map(|from| [&quoted(from), &b" -> "[..]].concat()).unwrap_or_default();
    put(out, &[what.as_bytes(), noun.as_bytes(), b" ", &from, &quoted(&change.path), b"\n"]);
}

/// A path as Git writes it: quoted and escaped if it has control characters, quotes or backslashes.
fn quoted(path: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| !byte.is_ascii_control() && !matches!(byte, b'"' | b'\\');
    if path.iter().all(plain) {
        return path.to_vec();
    }
    let mut text = vec![b'"'];
    for byte in path {
        match byte {
            b'"' | b'\\' => text.extend([b'\\', *byte]),
            byte if plain(byte) => text.push(*byte),
            byte => text.extend(format!("\\{byte:03o}").bytes()),
        }
    }
    text.push(b'"');
    text
}

/// The mode as Git stores it, with the executable bit only.
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
    fn changes_that_git_does_not_track_are_notes() {
        let folder = side(libc::S_IFDIR | 0o755);
        assert_eq!(patch(ChangeKind::Added, None, folder, ("", "")), "new folder /d/f\n");
        let (old, new) = (side(libc::S_IFREG | 0o644), side(libc::S_IFREG | 0o600));
        assert_eq!(patch(ChangeKind::Attributes, old, new, ("x", "x")), "attributes of /d/f\n");
        let fifo = side(libc::S_IFIFO | 0o644);
        assert_eq!(patch(ChangeKind::Deleted, fifo, None, ("", "")), "deleted special file /d/f\n");
    }

    #[test]
    fn a_name_stays_on_its_line() {
        assert_eq!(quoted(b"a b"), b"a b");
        assert_eq!(quoted(b"a\nb\\\"\x7f"), br#""a\012b\\\"\177""#);
    }

    #[test]
    fn a_link_that_replaces_a_file_is_a_deletion_and_an_addition() {
        let (file, link) = (side(libc::S_IFREG | 0o644), side(libc::S_IFLNK | 0o777));
        assert_eq!(
            patch(ChangeKind::Modified, file, link, ("x\n", "to")),
            "diff --git a/d/f b/d/f\ndeleted file mode 100644\n--- a/d/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\
             diff --git a/d/f b/d/f\nnew file mode 120000\n--- /dev/null\n+++ b/d/f\n@@ -0,0 +1 @@\n+to\n\
             \\ No newline at end of file\n"
        );
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
