//! The holders of a volume's space: transactions, deleted files, large files.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use xact_fs::{FileKind, PERSISTED_FOLDER, TxHolding, View};
use xact_types::Ino;

use crate::paths::PathExt;
use crate::unsaved::{Met, path};
use crate::volume::Volume;

/// The longest search for large files.
const SEARCH_MAX: Duration = Duration::from_secs(1);
/// Entries of a folder that are read at a time.
const ENTRIES: usize = 256;
const SECTOR_BYTES: u64 = 512;

/// The holders of a volume's space, the largest of each kind first. Snapshots are not part of it:
/// they hold space in the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceHolders {
    /// Open transactions that hold space before their commits.
    pub transactions: Vec<TxHolding>,
    /// Transactions that are stored on the volume, by number, with the bytes that they take there.
    pub persisted: Vec<(u64, u64)>,
    /// The number of files without a name that are still in use, and their bytes.
    pub deleted: (u64, u64),
    /// The largest files, by path, with the bytes that they take.
    pub files: Vec<(Vec<u8>, u64)>,
    /// Whether the search has seen all files.
    pub is_complete: bool,
}

impl Volume {
    /// The holders of the volume's space, with up to `most` files. The search for files reads
    /// folders and inodes for a second at most.
    pub fn space_holders(&self, most: usize) -> SpaceHolders {
        let live = self.live();
        let mut transactions: Vec<TxHolding> = live
            .tx_holdings()
            .into_iter()
            .filter(|holding| holding.bytes > 0 || holding.inodes > 0)
            .collect();
        transactions.sort_by_key(|holding| std::cmp::Reverse((holding.bytes, holding.inodes)));
        let persisted = self.persisted_transactions().unwrap_or_default().into_iter();
        let mut persisted: Vec<(u64, u64)> = persisted
            .filter_map(|id| Some((id, self.metadata(format!("/{PERSISTED_FOLDER}/{id}")).ok()?)))
            .map(|(id, attr)| (id, attr.sectors * SECTOR_BYTES))
            .collect();
        persisted.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let deleted = live.orphans().into_iter().filter_map(|ino| live.attr(ino).ok());
        let deleted: Vec<u64> =
            deleted.filter(|attr| attr.nlink == 0).map(|attr| attr.sectors * SECTOR_BYTES).collect();
        let (files, is_complete) = largest_files(&**live, most);
        SpaceHolders {
            transactions,
            persisted,
            deleted: (deleted.len() as u64, deleted.iter().sum()),
            files,
            is_complete,
        }
    }
}

/// The largest files, by a walk through the folders from the root, and whether it has seen all. A
/// file with several names is met by the first one and counted once for each.
fn largest_files(view: &dyn View, most: usize) -> (Vec<(Vec<u8>, u64)>, bool) {
    let until = Instant::now() + SEARCH_MAX;
    let mut largest: Vec<(Ino, Vec<u8>, u64)> = Vec::new();
    let mut met = vec![Met { above: 0, name: Vec::new() }];
    let mut folders = VecDeque::from([(Ino::ROOT, 0)]);
    while let Some((dir, at)) = folders.pop_front() {
        let mut cookie = 0;
        loop {
            if Instant::now() > until {
                return (without_inodes(largest), false);
            }
            // The folder is locked while it is read, so the inodes are read after that.
            let mut entries = Vec::new();
            let read = view.read_dir(dir, cookie, &mut |item| {
                if entries.len() == ENTRIES {
                    return false;
                }
                cookie = item.next_cookie;
                entries.push((item.ino, item.kind, item.name.to_vec()));
                true
            });
            // A folder that cannot be read hides the paths below it.
            if read.is_err() || entries.is_empty() {
                break;
            }
            for (ino, kind, name) in entries {
                match kind {
                    _ if name == b"." || name == b".." => {}
                    FileKind::Directory if at == 0 && name == PERSISTED_FOLDER.as_bytes() => {}
                    FileKind::Directory => {
                        folders.push_back((ino, met.len()));
                        met.push(Met { above: at, name });
                    }
                    FileKind::Regular if !largest.iter().any(|(known, ..)| *known == ino) => {
                        let bytes = view.attr(ino).map_or(0, |attr| attr.sectors * SECTOR_BYTES);
                        let place = largest.partition_point(|(_, _, other)| *other >= bytes);
                        if bytes > 0 && place < most {
                            largest.insert(place, (ino, path(&met, at, &name), bytes));
                            largest.truncate(most);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    (without_inodes(largest), true)
}

fn without_inodes(files: Vec<(Ino, Vec<u8>, u64)>) -> Vec<(Vec<u8>, u64)> {
    files.into_iter().map(|(_, path, bytes)| (path, bytes)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::{MemoryDevice, VolumeOptions};

    #[test]
    fn holders_are_named_from_the_largest_on() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs(&*device, &MkfsOptions::default()).unwrap();
        let volume = Volume::open(device, &VolumeOptions::default()).unwrap();
        volume.create_dir("/folder").unwrap();
        for number in 0..ENTRIES {
            volume.write(format!("/folder/{number}"), vec![1; 1024]).unwrap();
        }
        volume.write("/folder/large", vec![1; 3 << 20]).unwrap();
        volume.write("/larger", vec![1; 5 << 20]).unwrap();
        volume.hard_link("/larger", "/again").unwrap();
        let deleted = volume.metadata("/larger").unwrap().ino;
        let holders = volume.space_holders(2);
        assert!(holders.is_complete);
        let sizes: Vec<u64> = holders.files.iter().map(|(_, bytes)| bytes >> 20).collect();
        assert_eq!(sizes, [5, 3]);
        assert!([&b"/larger"[..], b"/again"].contains(&&*holders.files[0].0));
        assert_eq!(holders.files[1].0, b"/folder/large");
        assert_eq!((holders.deleted, holders.transactions.len()), ((0, 0), 0));

        volume.base().hold(deleted).unwrap();
        volume.remove_file("/larger").unwrap();
        volume.remove_file("/again").unwrap();
        let transaction = volume.begin(Default::default());
        transaction.write("/new", "text").unwrap();
        let holders = volume.space_holders(1);
        assert_eq!((holders.deleted.0, holders.deleted.1 >> 20), (1, 5));
        assert_eq!(holders.files[0].0, b"/folder/large");
        let holding = holders.transactions[0];
        assert_eq!((holding.id, holding.inodes), (transaction.id(), 1));
        drop(transaction);
        volume.base().release(deleted, 1);
        assert_eq!(volume.space_holders(1).deleted, (0, 0));
        volume.close().unwrap();
    }
}
