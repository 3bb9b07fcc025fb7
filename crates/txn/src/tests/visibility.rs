//! Effects of a transaction's calls, as seen inside it and outside, before and after its commit.

use std::sync::Arc;

use xact_fs::{RenameHow, View, WriteHow};
use xact_types::{Errno, Error, Ino};

use super::ops::{USER, dump};
use crate::mem_fs::MemFs;
use crate::{Durability, Transaction, TxOptions, TxState};

const ROOT: Ino = Ino::ROOT;

fn begin(base: &Arc<MemFs>) -> Transaction<MemFs> {
    Transaction::begin(base, TxOptions::default())
}

fn create(view: &dyn View, name: &str, data: &[u8]) -> Ino {
    let ino = view.make_node(&USER, ROOT, name.as_bytes(), 0o100644, 0).unwrap().ino;
    view.write(ino, 0, data, WriteHow::default()).unwrap();
    ino
}

fn content(view: &dyn View, name: &str) -> Option<Vec<u8>> {
    let ino = view.lookup(ROOT, name.as_bytes()).ok()?.ino;
    let mut out = Vec::new();
    view.read(ino, 0, 1 << 20, &mut out).unwrap();
    Some(out)
}

fn names(view: &dyn View, dir: Ino) -> Vec<String> {
    let mut names = Vec::new();
    view.read_dir(dir, 2, &mut |item| {
        names.push(String::from_utf8_lossy(item.name).into_owned());
        true
    })
    .unwrap();
    names
}

fn mv(view: &dyn View, from: &str, to: &str, how: RenameHow) {
    view.rename(&USER, (ROOT, from.as_bytes()), (ROOT, to.as_bytes()), how).unwrap();
}

/// The notifications of an observer, each with whether the base showed the change at that time.
#[derive(Default)]
struct Heard(Vec<(&'static str, Vec<Vec<u8>>, bool)>, Option<Arc<MemFs>>);

impl Heard {
    fn note(&mut self, what: &'static str, changes: &crate::Changes) {
        let names = changes.names.iter().map(|(_, name)| name.clone()).collect();
        let base = self.1.as_ref().expect("given at the start");
        self.0.push((what, names, base.lookup(Ino::ROOT, b"new").is_ok()));
    }
}

impl crate::CommitObserver for Heard {
    fn before(&mut self, changes: &crate::Changes) {
        self.note("before", changes);
    }

    fn after(&mut self) {
        self.note("after", &crate::Changes::default());
    }
}

#[test]
fn an_observer_is_notified_before_and_after_a_commit() {
    let base = MemFs::new(1024);
    let heard = |tx: &Transaction<MemFs>| {
        let mut heard = Heard(Vec::new(), Some(base.clone()));
        let done = tx.commit_with_observer(Durability::Durable, &mut heard).is_ok();
        (done, heard.0)
    };
    let begin = || Transaction::begin(&base, TxOptions::default());
    let (writer, loser, reader) = (begin(), begin(), begin());
    for tx in [&writer, &loser] {
        tx.make_node(&USER, Ino::ROOT, b"new", 0o100644, 0).unwrap();
    }
    let names = vec![b"new".to_vec()];
    assert_eq!(heard(&writer), (true, vec![("before", names.clone(), false), ("after", vec![], true)]));
    // After a refused commit, `after` is still called.
    assert_eq!(heard(&loser), (false, vec![("before", names, true), ("after", vec![], true)]));
    assert_eq!(heard(&reader), (true, vec![]));
    base.assert_idle();
}

#[test]
fn changes_are_visible_inside_at_once_and_outside_after_the_commit() {
    let base = MemFs::new(1024);
    create(&*base, "old", b"old");
    let tx = begin(&base);
    let ino = create(&tx, "new", b"new");
    tx.unlink(&USER, ROOT, b"old").unwrap();
    assert_eq!(content(&tx, "new").unwrap(), b"new");
    assert_eq!(content(&tx, "old"), None);
    assert_eq!(content(&*base, "new"), None);
    assert_eq!(content(&*base, "old").unwrap(), b"old");
    let attr = tx.attr(ino).unwrap();
    tx.sync_file(ino, false).unwrap();
    tx.sync_all().unwrap();
    assert_eq!(base.commits(), 0, "fsync inside costs nothing");
    tx.commit().unwrap();
    assert_eq!(content(&*base, "new").unwrap(), b"new");
    assert_eq!(content(&*base, "old"), None);
    let after = base.attr(ino).unwrap();
    assert_eq!((after.mtime, after.ctime, after.uid), (attr.mtime, attr.ctime, attr.uid));
    base.assert_idle();
}

#[test]
fn a_view_is_of_one_instant() {
    let base = MemFs::new(1024);
    let a = create(&*base, "a", b"first");
    let tx = begin(&base);
    base.write(a, 0, b"later", WriteHow::default()).unwrap();
    base.unlink(&USER, ROOT, b"a").unwrap();
    create(&*base, "b", b"b");
    assert_eq!(content(&tx, "a").unwrap(), b"first");
    assert_eq!(names(&tx, ROOT), ["a"]);
    // It has only read, so it commits, without a commit of the base.
    let commits = base.commits();
    tx.commit().unwrap();
    assert_eq!(base.commits(), commits);
}

#[test]
fn a_file_created_and_deleted_inside_needs_no_commit() {
    let base = MemFs::new(1024);
    let tx = begin(&base);
    for _ in 0..100 {
        create(&tx, "log", &[1; 5000]);
        tx.unlink(&USER, ROOT, b"log").unwrap();
    }
    let dir = tx.make_dir(&USER, ROOT, b"dir", 0o755).unwrap().ino;
    tx.make_symlink(&USER, dir, b"link", b"target").unwrap();
    tx.unlink(&USER, dir, b"link").unwrap();
    tx.remove_dir(&USER, ROOT, b"dir").unwrap();
    tx.commit().unwrap();
    assert_eq!(base.commits(), 0);
    assert_eq!(names(&*base, ROOT), [""; 0]);
    base.assert_idle();
}

#[test]
fn calls_after_the_end_fail_with_ended() {
    let base = MemFs::new(1024);
    let ended = |tx: &Transaction<MemFs>| {
        assert!(matches!(tx.attr(ROOT), Err(Error::Ended)));
        assert!(matches!(tx.unlink(&USER, ROOT, b"x"), Err(Error::Ended)));
        assert!(matches!(tx.hold(ROOT), Err(Error::Ended)));
        assert!(matches!(tx.sync_all(), Err(Error::Ended)));
        assert!(matches!(tx.commit(), Err(Error::Ended)));
        tx.release(ROOT, 1);
        tx.abort();
    };
    let tx = begin(&base);
    create(&tx, "x", b"x");
    tx.commit().unwrap();
    ended(&tx);
    assert_eq!(tx.state(), TxState::Committed);
    let tx = begin(&base);
    create(&tx, "y", b"y");
    tx.abort();
    ended(&tx);
    assert_eq!(tx.state(), TxState::Aborted);
    assert_eq!(names(&*base, ROOT), ["x"]);
}

#[test]
fn ordered_commits_do_not_wait_for_durability() {
    let base = MemFs::new(1024);
    let tx = begin(&base);
    create(&tx, "a", b"a");
    tx.commit_with(Durability::Ordered).unwrap();
    assert_eq!((base.commits(), base.durable()), (1, 0));
    let tx = begin(&base);
    create(&tx, "b", b"b");
    tx.commit().unwrap();
    assert_eq!((base.commits(), base.durable()), (2, 2));
}

#[test]
fn renames_in_a_ring_and_over_each_other() {
    let base = MemFs::new(1024);
    for name in ["a", "b", "c"] {
        create(&*base, name, name.as_bytes());
    }
    let tx = begin(&base);
    mv(&tx, "a", "tmp", RenameHow::Replace);
    mv(&tx, "b", "a", RenameHow::Replace);
    mv(&tx, "c", "b", RenameHow::Replace);
    mv(&tx, "tmp", "c", RenameHow::Replace);
    mv(&tx, "a", "b", RenameHow::Exchange);
    create(&tx, "d", b"d");
    mv(&tx, "d", "c", RenameHow::Replace);
    tx.commit().unwrap();
    let all: Vec<_> = ["a", "b", "c"].iter().map(|name| content(&*base, name).unwrap()).collect();
    assert_eq!(all, [b"c", b"b", b"d"]);
    assert_eq!(names(&*base, ROOT).len(), 3);
    base.assert_idle();
}

#[test]
fn a_name_removed_and_added_again_has_another_inode() {
    let base = MemFs::new(1024);
    let old = create(&*base, "a", b"old");
    let tx = begin(&base);
    tx.unlink(&USER, ROOT, b"a").unwrap();
    let new = create(&tx, "a", b"new");
    assert_ne!(old, new);
    tx.commit().unwrap();
    assert_eq!(base.lookup(ROOT, b"a").unwrap().ino, new);
    assert!(base.attr(old).is_err());
}

#[test]
fn unnamed_files_are_linked_or_dropped() {
    let base = MemFs::new(1024);
    let tx = begin(&base);
    let [kept, dropped] = [(); 2].map(|()| tx.make_unnamed(&USER, ROOT, 0o600).unwrap().ino);
    tx.write(kept, 0, b"kept", WriteHow::default()).unwrap();
    tx.link(&USER, kept, ROOT, b"kept").unwrap();
    tx.release(kept, 1);
    // Still held when the transaction ends: only a holder inside had it.
    tx.write(dropped, 0, b"dropped", WriteHow::default()).unwrap();
    let gone = tx.make_unnamed(&USER, ROOT, 0o600).unwrap().ino;
    tx.release(gone, 1);
    assert!(matches!(tx.attr(gone), Err(Error::Posix(Errno::ESTALE))));
    tx.commit().unwrap();
    assert_eq!(content(&*base, "kept").unwrap(), b"kept");
    assert!(base.attr(dropped).is_err());
    base.assert_idle();
}

#[test]
fn an_unlinked_file_stays_while_it_is_held() {
    let base = MemFs::new(1024);
    let tx = begin(&base);
    let ino = create(&tx, "a", b"data");
    tx.hold(ino).unwrap();
    tx.unlink(&USER, ROOT, b"a").unwrap();
    let mut out = Vec::new();
    tx.read(ino, 0, 10, &mut out).unwrap();
    assert_eq!(out, b"data");
    tx.release(ino, 1);
    assert!(tx.attr(ino).is_err());
    tx.commit().unwrap();
    base.assert_idle();
}

#[test]
fn hard_links_add_up_with_those_of_others() {
    let base = MemFs::new(1024);
    let a = create(&*base, "a", b"data");
    let tx = begin(&base);
    tx.link(&USER, a, ROOT, b"b").unwrap();
    tx.link(&USER, a, ROOT, b"c").unwrap();
    tx.unlink(&USER, ROOT, b"a").unwrap();
    assert_eq!(tx.attr(a).unwrap().nlink, 2);
    base.link(&USER, a, ROOT, b"d").unwrap();
    tx.commit().unwrap();
    assert_eq!(base.attr(a).unwrap().nlink, 3);
    assert_eq!(names(&*base, ROOT).len(), 3);
}

#[test]
fn subdirectories_add_up_and_times_do_not_go_back() {
    let base = MemFs::new(1024);
    let tx = begin(&base);
    tx.make_dir(&USER, ROOT, b"inside", 0o755).unwrap();
    base.make_dir(&USER, ROOT, b"outside", 0o755).unwrap();
    let later = base.attr(ROOT).unwrap();
    tx.commit().unwrap();
    let root = base.attr(ROOT).unwrap();
    assert_eq!(root.nlink, 4);
    assert_eq!((root.mtime, root.ctime), (later.mtime, later.ctime));
}

#[test]
fn a_listing_in_portions_lists_every_name_once() {
    let base = MemFs::new(1024);
    for i in 0..40 {
        create(&*base, &format!("old-{i}"), b"");
    }
    let tx = begin(&base);
    for i in 0..10 {
        create(&tx, &format!("new-{i}"), b"");
        tx.unlink(&USER, ROOT, format!("old-{}", i * 3).as_bytes()).unwrap();
    }
    let mut seen: Vec<String> = Vec::new();
    let mut cookie = 0;
    for portion in 0.. {
        let before = seen.len();
        tx.read_dir(ROOT, cookie, &mut |item| {
            if seen.len() == before + 3 {
                return false;
            }
            seen.push(String::from_utf8_lossy(item.name).into_owned());
            cookie = item.next_cookie;
            true
        })
        .unwrap();
        if seen.len() == before {
            break;
        }
        // Names are added and removed during the listing; they may be in it or not.
        if portion < 10 {
            create(&tx, &format!("later-{portion}"), b"");
        }
        if (1..10).contains(&portion) {
            tx.unlink(&USER, ROOT, format!("later-{}", portion - 1).as_bytes()).unwrap();
        }
    }
    seen.retain(|name| !name.starts_with('.') && !name.starts_with("later"));
    let mut unique = seen.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), seen.len(), "a name was listed twice");
    assert_eq!(seen.len(), 40);
}

#[test]
fn a_volume_without_inodes_fails_the_call_and_nothing_else() {
    let base = MemFs::new(1024);
    base.limit_inodes(2);
    let tx = begin(&base);
    create(&tx, "a", b"a");
    create(&tx, "b", b"b");
    assert!(matches!(tx.make_node(&USER, ROOT, b"c", 0o100644, 0), Err(Error::NoSpace)));
    assert_eq!(tx.state(), TxState::Active);
    tx.unlink(&USER, ROOT, b"a").unwrap();
    create(&tx, "c", b"c");
    tx.commit().unwrap();
    assert_eq!(names(&*base, ROOT), ["b", "c"]);
    // An abort gives reserved numbers back.
    base.limit_inodes(1);
    let tx = begin(&base);
    create(&tx, "d", b"d");
    tx.abort();
    create(&begin(&base), "e", b"e");
}

#[test]
fn a_tree_can_be_removed_and_created_again() {
    let base = MemFs::new(1024);
    let dir = base.make_dir(&USER, ROOT, b"dir", 0o755).unwrap().ino;
    for i in 0..5 {
        let sub = base.make_dir(&USER, dir, format!("sub-{i}").as_bytes(), 0o755).unwrap().ino;
        base.make_node(&USER, sub, b"file", 0o100644, 0).unwrap();
    }
    let tx = begin(&base);
    for i in 0..5 {
        let sub = tx.lookup(dir, format!("sub-{i}").as_bytes()).unwrap().ino;
        tx.unlink(&USER, sub, b"file").unwrap();
        tx.remove_dir(&USER, dir, format!("sub-{i}").as_bytes()).unwrap();
    }
    tx.remove_dir(&USER, ROOT, b"dir").unwrap();
    tx.make_dir(&USER, ROOT, b"dir", 0o700).unwrap();
    tx.commit().unwrap();
    assert_eq!(dump(&*base, false).len(), 2);
    assert_eq!(base.lookup(ROOT, b"dir").unwrap().nlink, 2);
    assert_eq!(base.attr(ROOT).unwrap().nlink, 3);
    base.assert_idle();
}
