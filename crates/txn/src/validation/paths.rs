//! Names by which inodes were found, for the paths in conflicts and differences.

use std::collections::HashMap;

use xact_types::{Ino, SHOWN_PATH_MAX};

/// Memory of one recorded name in bytes, without the name itself.
pub(super) const NAME_BYTES: usize = 80;

/// Names by which inodes were found.
#[derive(Debug, Default, Clone)]
pub(crate) struct Paths {
    met: HashMap<Ino, (Ino, Vec<u8>)>,
    /// Memory of all names in bytes.
    pub(super) bytes: usize,
}

impl Paths {
    pub fn met(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        match self.met.get_mut(&ino) {
            Some((d, n)) if *d == dir && n == name => {}
            _ => {
                self.bytes += name.len() + NAME_BYTES;
                if let Some((_, before)) = self.met.insert(ino, (dir, name.to_vec())) {
                    self.bytes -= before.len() + NAME_BYTES;
                }
            }
        }
    }

    /// Forgets all names except those of some inodes, and of the folders above them.
    pub fn keep_above(&mut self, wanted: impl Iterator<Item = Ino>) {
        let mut kept = HashMap::new();
        for mut ino in wanted {
            // For a name that was already kept, the folders above are kept, too.
            while let Some(place) = self.met.remove(&ino) {
                let above = place.0;
                kept.insert(ino, place);
                ino = above;
            }
        }
        self.bytes = kept.values().map(|(_, name)| name.len() + NAME_BYTES).sum();
        self.met = kept;
    }

    pub fn iter(&self) -> impl Iterator<Item = (Ino, Ino, &[u8])> {
        self.met.iter().map(|(ino, (dir, name))| (*ino, *dir, name.as_slice()))
    }

    /// The directory and the name by which an inode was last found.
    pub fn place(&self, ino: Ino) -> Option<(Ino, &[u8])> {
        self.met.get(&ino).map(|(dir, name)| (*dir, name.as_slice()))
    }

    /// A path from the root of the volume, as far as it is known: an inode that was only used by
    /// number is shown as `<inode N>`, and a path that is too long as `/<inode N>/NAME`.
    pub fn of(&self, ino: Ino) -> String {
        let by_number = || match self.met.get(&ino) {
            Some((dir, name)) => format!("/<{dir}>/{}", String::from_utf8_lossy(name)),
            None => format!("/<{ino}>"),
        };
        self.up_to(ino, SHOWN_PATH_MAX).unwrap_or_else(by_number)
    }

    /// As [`Paths::of`], however long it is.
    pub fn whole(&self, ino: Ino) -> String {
        self.up_to(ino, usize::MAX).expect("no path is longer")
    }

    /// `None` for a longer path.
    fn up_to(&self, ino: Ino, max: usize) -> Option<String> {
        let mut parts: Vec<String> = Vec::new();
        let (mut at, mut len) = (ino, 0);
        // After renames, old names may form a loop.
        while at != Ino::ROOT && parts.len() <= self.met.len() {
            match self.met.get(&at) {
                Some((dir, name)) => {
                    len += 1 + name.len();
                    if len > max {
                        return None;
                    }
                    parts.push(String::from_utf8_lossy(name).into_owned());
                    at = *dir;
                }
                None => {
                    parts.push(format!("<{at}>"));
                    break;
                }
            }
        }
        parts.reverse();
        let path = parts.join("/");
        Some(if path.starts_with('<') { path } else { format!("/{path}") })
    }

    pub fn of_name(&self, dir: Ino, name: &[u8]) -> String {
        let shown = String::from_utf8_lossy(name);
        match self.up_to(dir, SHOWN_PATH_MAX.saturating_sub(1 + name.len())) {
            Some(root) if root == "/" => format!("/{shown}"),
            Some(folder) => format!("{folder}/{shown}"),
            None => format!("/<{dir}>/{shown}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_the_root_or_say_where_they_stop() {
        let mut paths = Paths::default();
        paths.met(Ino::ROOT, b"a", Ino(12));
        paths.met(Ino(12), b"b", Ino(13));
        assert_eq!(paths.of(Ino::ROOT), "/");
        assert_eq!(paths.of(Ino(13)), "/a/b");
        assert_eq!(paths.of_name(Ino::ROOT, b"x"), "/x");
        assert_eq!(paths.of_name(Ino(13), b"x"), "/a/b/x");
        assert_eq!(paths.of_name(Ino(99), b"x"), "<inode 99>/x");
        paths.met(Ino(13), b"loop", Ino(12));
        assert!(paths.of(Ino(13)).ends_with("/b"));
    }

    #[test]
    fn a_path_that_is_too_long_is_shown_by_number() {
        let mut paths = Paths::default();
        let name = "n".repeat(100);
        for ino in 12..1000 {
            let dir = if ino == 12 { Ino::ROOT } else { Ino(ino - 1) };
            paths.met(dir, name.as_bytes(), Ino(ino));
        }
        assert_eq!(paths.of(Ino(51)), format!("/{name}").repeat(40));
        assert_eq!(paths.of(Ino(999)), format!("/<inode 998>/{name}"));
        assert_eq!(paths.of_name(Ino(51), b"x"), format!("{}/x", paths.of(Ino(51))));
        assert_eq!(paths.of_name(Ino(51), name.as_bytes()), format!("/<inode 51>/{name}"));
        assert_eq!(paths.whole(Ino(999)), format!("/{name}").repeat(988));
    }
}
