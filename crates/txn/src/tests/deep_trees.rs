//! Trees of folders that are deeper than any path: differences, and commits and aborts of parts.
//! Their cost is in proportion to the depth; with the square of it, these tests would take minutes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xact_fs::{Caller, FileKind, RenameHow, View, WriteHow};
use xact_types::{Ino, SHOWN_PATH_MAX};

use crate::mem_fs::MemFs;
use crate::{Durability, Transaction, TxOptions, What};

const DEPTH: usize = 20_000;
const NAME: [u8; 100] = [b'n'; 100];
/// Linear work takes a second or two.
const TIME_MAX: Duration = Duration::from_secs(30);

/// A chain of folders below the root, each with a file; returns the folders.
fn chain(view: &dyn View, depth: usize) -> Vec<Ino> {
    let mut folders = Vec::new();
    let mut at = Ino::ROOT;
    for _ in 0..depth {
        at = view.make_dir(&Caller::ROOT, at, &NAME, 0o755).unwrap().ino;
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let file = view.make_node(&Caller::ROOT, at, b"f", mode, 0).unwrap().ino;
        view.write(file, 0, b"text", WriteHow::default()).unwrap();
        folders.push(at);
    }
    folders
}

fn begin(base: &Arc<MemFs>) -> Transaction<MemFs> {
    Transaction::begin(base, TxOptions::default())
}

/// The path of the folder with this number, from 1 on.
fn path(number: usize) -> Vec<u8> {
    [&b"/"[..], &NAME].concat().repeat(number)
}

#[test]
fn parts_of_a_deep_tree_are_selected_in_linear_time() {
    let base = MemFs::new(1024);
    let start = Instant::now();
    let tx = begin(&base);
    let folders = chain(&tx, DEPTH);
    let all = tx.diff().unwrap();
    assert_eq!(all.len(), 2 * DEPTH);
    assert!(all.iter().all(|difference| difference.path.len() <= SHOWN_PATH_MAX + 100));
    let deepest = format!("/<{}>/f", folders[DEPTH - 1]).into_bytes();
    assert!(all.iter().any(|difference| difference.path == deepest));
    // The file needs all folders above it, and nothing else.
    tx.commit_only(&[deepest], Durability::Durable, &mut ()).unwrap();
    assert_eq!(tx.diff().unwrap().len(), DEPTH - 1);
    // The new folders at and below a path.
    tx.abort_only(&[path(2)]).unwrap();
    assert_eq!(tx.diff().unwrap().len(), 1);
    tx.commit().unwrap();
    let found = (0..DEPTH).fold(Ino::ROOT, |at, _| base.lookup(at, &NAME).unwrap().ino);
    assert_eq!(found, folders[DEPTH - 1]);
    assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
}

#[test]
fn an_abort_of_a_deep_part_takes_all_that_it_needs() {
    let base = MemFs::new(1024);
    let start = Instant::now();
    chain(&*base, DEPTH);
    // Removes the whole chain, from the end.
    let tx = begin(&base);
    let mut way = vec![Ino::ROOT];
    while let Ok(next) = tx.lookup(way[way.len() - 1], &NAME) {
        way.push(next.ino);
    }
    for pair in way.windows(2).rev() {
        tx.unlink(&Caller::ROOT, pair[1], b"f").unwrap();
        tx.remove_dir(&Caller::ROOT, pair[0], &NAME).unwrap();
    }
    assert_eq!(tx.diff().unwrap().len(), 2 * DEPTH);
    let deepest = format!("/<{}>/f", way[DEPTH]).into_bytes();
    tx.abort_only(&[deepest]).unwrap();
    // The folders are back, the other files are not.
    assert_eq!(tx.diff().unwrap().len(), DEPTH - 1);
    assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
}

/// Files in a renamed folder are listed up to the longest path that a program can use. Beyond it,
/// the folder's own difference stands for them.
#[test]
fn a_diff_by_file_of_a_deep_tree_is_limited() {
    let base = MemFs::new(1024);
    chain(&*base, 2000);
    let tx = begin(&base);
    tx.rename(&Caller::ROOT, (Ino::ROOT, &NAME), (Ino::ROOT, b"renamed"), RenameHow::Replace).unwrap();
    let all = tx.diff_by_file(None).unwrap();
    let folders = all.iter().filter(|difference| difference.new.is_some_and(|new| new.is_dir()));
    assert_eq!(folders.map(|folder| folder.what).collect::<Vec<_>>(), [What::Renamed]);
    assert!(all.iter().all(|difference| difference.what == What::Renamed));
    assert!((38..43).contains(&all.len()), "{}", all.len());
    // A change there is listed, by number.
    let mut at = Ino::ROOT;
    for depth in 0..1000 {
        let name: &[u8] = if depth == 0 { b"renamed" } else { &NAME };
        at = tx.lookup(at, name).unwrap().ino;
    }
    let file = tx.lookup(at, b"f").unwrap().ino;
    tx.write(file, 0, b"other", WriteHow::default()).unwrap();
    let all = tx.diff_by_file(None).unwrap();
    let changed: Vec<_> = all.iter().filter(|difference| difference.what == What::Modified).collect();
    let [changed] = changed[..] else { panic!("{changed:?}") };
    assert_eq!(changed.path, format!("/<{at}>/f").into_bytes());
}
