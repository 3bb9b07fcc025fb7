//! The losses of a volume that could not be closed, by the paths of its files; paths of inodes.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use xact_fs::{FileKind, View};
use xact_types::Ino;

use crate::volume::Volume;

/// The longest search for paths. A volume whose device failed may have no answer to many reads.
const SEARCH_MAX: Duration = Duration::from_secs(2);

/// Files and folders whose last changes were not saved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsaved {
    /// Paths of some of them, with a leading `/`.
    pub paths: Vec<Vec<u8>>,
    /// The number of others, whose paths were not looked for, or not found.
    pub others: u64,
}

impl Volume {
    /// The files and folders with changes that are not durable, with up to `most` paths. These
    /// changes are lost if [`Volume::close`] has failed. Deletions are lost then too, and not
    /// listed.
    pub fn unsaved(&self, most: usize) -> Unsaved {
        let live = self.live();
        let unsaved: BTreeSet<Ino> = live.unsaved().into_iter().collect();
        let paths = paths_of(&**live, &unsaved, most);
        let others = unsaved.len().saturating_sub(paths.len()) as u64;
        Unsaved { paths, others }
    }

    /// A path of an inode with a leading `/`, by a search of limited length; `None` if it found
    /// none.
    pub fn path_of(&self, ino: Ino) -> Option<Vec<u8>> {
        paths_of(&**self.live(), &BTreeSet::from([ino]), 1).pop()
    }
}

/// A folder that the search has met: the folder above it, by its place in the list, and its name.
pub(crate) struct Met {
    pub above: usize,
    pub name: Vec<u8>,
}

/// Up to `most` paths of these inodes, by a walk through the folders from the root. Folders are
/// kept by name and not by path, which would use memory in the square of the depth.
fn paths_of(view: &dyn View, wanted: &BTreeSet<Ino>, most: usize) -> Vec<Vec<u8>> {
    let until = Instant::now() + SEARCH_MAX;
    let mut left = wanted.clone();
    let mut found = Vec::new();
    if left.remove(&Ino::ROOT) && most > 0 {
        found.push(b"/".to_vec());
    }
    let mut met = vec![Met { above: 0, name: Vec::new() }];
    let mut folders = VecDeque::from([(Ino::ROOT, 0)]);
    while let Some((dir, at)) = folders.pop_front() {
        if left.is_empty() || found.len() >= most || Instant::now() > until {
            break;
        }
        // A folder that cannot be read hides the paths below it.
        let _ = view.read_dir(dir, 0, &mut |item| {
            if item.name == b"." || item.name == b".." {
                return true;
            }
            if left.remove(&item.ino) {
                found.push(path(&met, at, item.name));
            }
            if item.kind == FileKind::Directory {
                folders.push_back((item.ino, met.len()));
                met.push(Met { above: at, name: item.name.to_vec() });
            }
            found.len() < most
        });
    }
    found
}

/// The path of a name in a folder that was met.
pub(crate) fn path(met: &[Met], mut at: usize, name: &[u8]) -> Vec<u8> {
    let mut names = vec![name];
    while at > 0 {
        names.push(&met[at].name);
        at = met[at].above;
    }
    names.iter().rev().flat_map(|name| [b"/", *name]).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::{MemoryDevice, PathExt, VolumeOptions};

    #[test]
    fn unsaved_files_are_named() {
        let device = Arc::new(MemoryDevice::new(32 << 20));
        mkfs(&*device, &MkfsOptions::default()).unwrap();
        let volume = Volume::open(device, &VolumeOptions::default()).unwrap();
        volume.create_dir("/folder").unwrap();
        volume.write("/saved", "text").unwrap();
        volume.sync().unwrap();
        assert_eq!(volume.unsaved(10), Unsaved::default());
        for number in 0..3 {
            volume.write(format!("/folder/{number}"), "more").unwrap();
        }
        // In the order of the folder, which is that of hashes.
        let mut paths = volume.unsaved(10).paths;
        paths.sort();
        assert_eq!(
            paths,
            ["/folder", "/folder/0", "/folder/1", "/folder/2"].map(|path| path.as_bytes().to_vec())
        );
        assert_eq!(volume.path_of(volume.metadata("/folder/1").unwrap().ino).unwrap(), b"/folder/1");
        assert_eq!(volume.path_of(Ino(9999)), None);
        let some = volume.unsaved(2);
        assert_eq!((some.paths.len(), some.others), (2, 2));
        volume.poison("a test");
        assert!(volume.close().is_err());
        assert_eq!(volume.unsaved(10).paths.len(), 4);
    }
}
