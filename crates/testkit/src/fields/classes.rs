//! Classes of problems: the messages of e2fsck, without numbers and names.

use std::collections::{BTreeMap, BTreeSet};

/// A class with fewer volumes is not counted as covered.
pub const ENOUGH: u64 = 5;

/// The classes of problems in the output of `e2fsck -fn`, whose lines are joined by ` | `.
pub fn of_output(text: &str) -> BTreeSet<String> {
    // The first part names the exit status.
    let lines = text.split(": ").skip(1).collect::<Vec<_>>().join(": ");
    lines.split(" | ").filter_map(class_of).collect()
}

/// How lines begin that report no problem of the volume: what e2fsck does next, advice, and errors
/// that follow from others.
const REMARKS: &[&str] = &[
    "e2fsck ",
    "Pass ",
    "Fix",
    "Clear",
    "Error ",
    "File ",
    "Note ",
    "Running ",
    "Trying ",
    "You ",
    "This ",
    "Get ",
    "Suppress ",
    "Run ",
    "Will ",
    "Or ",
    "If ",
    "There are ",
    "Connect ",
    "Update ",
    "Clone ",
    "Delete ",
    "Programming ",
    "Cannot ",
    "Illegal block number passed",
    "The superblock could not be read",
    "The bad block inode has probably",
    "The filesystem revision is apparently",
];

fn class_of(line: &str) -> Option<String> {
    let line = line.trim();
    // The second line of a message, or the volume's own name.
    let begins = line.starts_with(|c: char| c.is_ascii_uppercase() || line.starts_with("i_"));
    if !begins || REMARKS.iter().any(|start| line.starts_with(start)) || line.contains("mod time") {
        return None;
    }
    // The question and its answer follow the problem.
    let problem = line.split("? ").next()?;
    let words: Vec<String> = problem.split_whitespace().filter_map(word).collect();
    (words.len() > 1).then(|| words.join(" "))
}

/// A word without the number or name of this volume; nothing of one that is only that.
fn word(word: &str) -> Option<String> {
    let is_value = word.chars().any(|c| c.is_ascii_digit()) || word.contains(['\'', '?', '/', '<', '+', '#']);
    let text = word.trim_matches(|c: char| !c.is_alphanumeric());
    (!is_value && !text.is_empty()).then(|| text.to_owned())
}

/// The number of volumes in each class.
#[derive(Debug, Default)]
pub struct Classes {
    volumes: BTreeMap<String, u64>,
}

impl Classes {
    pub fn add<'a>(&mut self, classes: impl IntoIterator<Item = &'a String>) {
        for class in classes {
            *self.volumes.entry(class.clone()).or_default() += 1;
        }
    }

    /// Classes with at least [`ENOUGH`] volumes.
    pub fn covered(&self) -> usize {
        self.volumes.values().filter(|count| **count >= ENOUGH).count()
    }

    /// Prints them by number.
    pub fn print(&self) {
        let mut by_count: Vec<_> = self.volumes.iter().collect();
        by_count.sort_by_key(|(class, count)| (std::cmp::Reverse(**count), class.as_str()));
        for (class, count) in by_count {
            println!("{count:5} {class}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_do_not_count() {
        let text = |inode: u32, name: &str| {
            format!(
                "e2fsck exits with Some(4): e2fsck 1.47.0 | Pass 1: Checking | Inode {inode}, i_size is 7, \
                 should be 12.  Fix? no |  | Entry '{name}' in / (2) has deleted/unused inode 14.  Clear? no | \
                 /tmp/x: ********** WARNING: Filesystem still has errors ********** | "
            )
        };
        let classes = of_output(&text(12, "a"));
        assert_eq!(classes, of_output(&text(13, "b c")));
        assert_eq!(classes.len(), 2, "{classes:?}");
    }
}
