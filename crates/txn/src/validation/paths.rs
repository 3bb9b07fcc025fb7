//! Names by which inodes were found, for the paths in conflicts and differences.

use std::collections::HashMap;

use xact_types::Ino;

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
    /// number is shown as `<inode N>`.
    pub fn of(&self, ino: Ino) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut at = ino;
        // After renames, old names may form a loop.
        while at != Ino::ROOT && parts.len() < 4096 {
            match self.met.get(&at) {
                Some((dir, name)) => {
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
        if path.starts_with('<') { path } else { format!("/{path}") }
    }

    pub fn of_name(&self, dir: Ino, name: &[u8]) -> String {
        let dir = self.of(dir);
        let name = String::from_utf8_lossy(name);
        if dir == "/" { format!("/{name}") } else { format!("{dir}/{name}") }
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
}
