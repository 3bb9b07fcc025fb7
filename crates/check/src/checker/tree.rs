//! Step 4: every directory is reached from the root, `..` leads back, and link counts equal the
//! numbers of names.

use std::collections::BTreeSet;

use xact_types::{Ino, Site};

use super::Checker;
use super::found::DIRECTORY_TYPE;

/// `EXT4_LINK_MAX`: a directory with more subdirectories has the count 1 (`dir_nlink`).
const LINK_MAX: u32 = 65_000;

impl Checker<'_> {
    pub(crate) fn check_tree(&mut self) {
        let root = self.seen.get(Ino::ROOT);
        if root.file_type != DIRECTORY_TYPE {
            self.report.problem(Site::Inode(Ino::ROOT), "the root is not a directory");
        }
        let mut reached: BTreeSet<Ino> = BTreeSet::from([Ino::ROOT]);
        for at in 0..self.directories.len() {
            let (ino, dotdot) = (self.directories[at].ino, self.directories[at].dotdot);
            let parent = if ino == Ino::ROOT { Some(Ino::ROOT) } else { self.parents.get(&ino).copied() };
            if let (Some(parent), Some(dotdot)) = (parent, dotdot)
                && parent != dotdot
            {
                self.report.problem(Site::Inode(ino), format!("its '..' is {dotdot}, and it is in {parent}"));
            }
            self.climb(ino, &mut reached);
        }
        self.check_links();
    }

    /// Climbs until a directory that is known to be reached; visits each directory once.
    fn climb(&mut self, from: Ino, reached: &mut BTreeSet<Ino>) {
        let mut way = Vec::new();
        let mut at = from;
        while reached.insert(at) {
            way.push(at);
            match self.parents.get(&at) {
                Some(parent) => at = *parent,
                None => {
                    self.report.problem(Site::Inode(at), "directory has no name");
                    return;
                }
            }
        }
        if way.contains(&at) {
            self.report.problem(Site::Inode(from), "directory is in itself, and not in the root");
        }
    }

    fn check_links(&mut self) {
        for (ino, seen) in self.seen.iter() {
            if !seen.used || seen.internal || seen.is_orphan || seen.is_value && seen.refs != 1 {
                continue;
            }
            let site = Site::Inode(ino);
            let is_dir = seen.file_type == DIRECTORY_TYPE;
            // A folder with an index keeps the count 1 after most subdirectories were deleted.
            let was_large = seen.is_indexed && seen.refs > 1 || seen.refs >= LINK_MAX;
            let uncounted = is_dir && seen.links == 1 && was_large;
            if seen.refs == 0 && !is_dir {
                self.report.problem(site, "is in use and has no name");
            } else if u32::from(seen.links) != seen.refs && !uncounted {
                let beyond = if is_dir && seen.refs > LINK_MAX { " (more than can be counted)" } else { "" };
                let what = format!("counts {} links and has {}{beyond}", seen.links, seen.refs);
                self.report.problem(site, what);
            }
        }
    }
}
