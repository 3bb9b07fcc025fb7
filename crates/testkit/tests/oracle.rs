//! The oracle itself: for each rule of docs/CRASH.md a tree that obeys it, and the same tree
//! changed in just this respect, which the oracle must refuse.

use std::collections::BTreeMap;
use std::sync::Arc;

use xact_fs::RenameHow;
use xact_testkit::explorer::Subject;
use xact_testkit::model::{Content, History, Op, Promise, State, ThreadHistory, stamp};
use xact_testkit::recording::Time;
use xact_testkit::tree::{Body, Entry, Tree};
use xact_testkit::workloads;

/// Every step takes ten units of time; the crash comes after the last.
#[derive(Clone)]
struct Story {
    thread: ThreadHistory,
    now: Time,
    promise: Promise,
    goes_ahead: bool,
}

impl Story {
    fn new() -> Story {
        Story { thread: ThreadHistory::new("", 2), now: 0, promise: Promise::default(), goes_ahead: false }
    }

    fn then(mut self, op: Op) -> Story {
        let shown = op.to_string();
        self.thread.push(op, self.now + 1, Some(self.now + 9)).unwrap_or_else(|e| panic!("{shown}: {e}"));
        self.now += 10;
        self
    }

    fn create(self, path: &str) -> Story {
        self.then(Op::Create { path: path.into(), perm: 0o644 })
    }

    fn write(self, path: &str, offset: u64, len: u64, generation: u32) -> Story {
        self.then(Op::Write { path: path.into(), offset, len, generation })
    }

    fn truncate(self, path: &str, size: u64) -> Story {
        self.then(Op::Truncate { path: path.into(), size })
    }

    fn fsync(self, path: &str) -> Story {
        self.then(Op::Fsync { path: path.into() })
    }

    fn sync(self) -> Story {
        self.then(Op::Sync)
    }

    fn commit(self, durable: bool, ops: Vec<Op>) -> Story {
        self.then(Op::Commit { ops, durable })
    }

    /// The tree after `k` steps, all data written.
    fn tree(&self, k: usize) -> Tree {
        render(&self.thread.states[k])
    }

    fn history(&self) -> History {
        let threads = vec![self.thread.clone()];
        History { threads, promise: self.promise, goes_ahead: self.goes_ahead }
    }

    fn judge(&self, tree: &Tree) -> Result<(), String> {
        self.history().judge(self.now + 1, tree)
    }

    #[track_caller]
    fn legal(&self, tree: &Tree) {
        self.judge(tree).unwrap_or_else(|why| panic!("a legal tree is refused: {why}"));
    }

    #[track_caller]
    fn illegal(&self, tree: &Tree, why: &str) {
        let said = self.judge(tree).expect_err("an illegal tree is taken");
        assert!(said.contains(why), "refused for another reason: {said}");
    }
}

fn render(state: &State) -> Tree {
    let root = (b"/".to_vec(), xact_testkit::model::ROOT);
    let entries = state.paths().into_iter().chain([root]).map(|(path, id)| {
        let node = state.node(id).unwrap();
        let entry = Entry {
            ino: u64::from(id) + 100,
            kind: node.kind(),
            perm: node.perm,
            uid: node.uid,
            gid: node.gid,
            nlink: state.links(id),
            rdev: 0,
            mtime: (0, 0),
            ctime: (0, 0),
            xattrs: node.xattrs.clone(),
            body: match &node.content {
                Content::Dir(_) => Body::None,
                Content::File(bytes) => Body::File(bytes.clone()),
                Content::Symlink(target) => Body::Symlink(target.clone().into_bytes()),
            },
        };
        (path, entry)
    });
    Tree { entries: entries.collect::<BTreeMap<_, _>>() }
}

/// The tree with the bytes of one file changed.
fn with_bytes(mut tree: Tree, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> Tree {
    let entry = tree.entries.get_mut(path.as_bytes()).unwrap();
    let Body::File(bytes) = &mut entry.body else { panic!("{path} is not a file") };
    change(Arc::make_mut(bytes));
    tree
}

fn with_entry(mut tree: Tree, path: &str, change: impl FnOnce(&mut Entry)) -> Tree {
    change(tree.entries.get_mut(path.as_bytes()).unwrap());
    tree
}

fn without(mut tree: Tree, path: &str) -> Tree {
    tree.entries.remove(path.as_bytes()).unwrap();
    tree
}

fn unlink(path: &str) -> Op {
    Op::Unlink { path: path.into() }
}

fn chmod(path: &str, perm: u16) -> Op {
    Op::Chmod { path: path.into(), perm }
}

fn write(path: &str, offset: u64, len: u64, generation: u32) -> Op {
    Op::Write { path: path.into(), offset, len, generation }
}

#[test]
fn r1_sync() {
    let s = Story::new().create("/a").write("/a", 0, 2000, 1).create("/b").sync().create("/c");
    s.legal(&s.tree(5));
    s.legal(&s.tree(4));
    s.illegal(&s.tree(2), "missing");
    s.illegal(&with_bytes(s.tree(5), "/a", |b| b[512..1024].fill(0)), "zeros");
    s.illegal(&with_bytes(s.tree(5), "/a", |b| b.truncate(1024)), "size");
}

#[test]
fn r2_fsync() {
    let s = Story::new().create("/z").create("/a").write("/a", 0, 2000, 1).fsync("/a").create("/c");
    s.legal(&s.tree(4));
    s.illegal(&with_bytes(s.tree(5), "/a", |b| b.clear()), "size");
    s.illegal(&with_bytes(s.tree(4), "/a", |b| b[0] ^= 1), "none of");
    s.illegal(&without(s.tree(4), "/a"), "/a is missing");
    s.illegal(&without(s.tree(4), "/z"), "/z is missing");
    let renamed = Story::new()
        .create("/a")
        .then(Op::Rename { from: "/a".into(), to: "/b".into(), how: RenameHow::Replace })
        .then(chmod("/b", 0o600))
        .fsync("/b");
    renamed.legal(&renamed.tree(4));
    renamed.illegal(&renamed.tree(1), "missing");
    renamed.illegal(&renamed.tree(2), "mode");
}

#[test]
fn r3_fsync_of_a_folder() {
    let s = Story::new().create("/a").then(unlink("/a")).create("/b").fsync("/").create("/c");
    s.legal(&s.tree(3));
    s.illegal(&s.tree(2), "missing");
    s.illegal(&s.tree(1), "missing");
}

#[test]
fn r4_fdatasync() {
    let s = Story::new().create("/a").sync().write("/a", 0, 2000, 1).then(chmod("/a", 0o600));
    let s = s.then(Op::Fdatasync { path: "/a".into() });
    s.legal(&s.tree(5));
    // The mode may be missing, the data may not.
    s.legal(&with_entry(s.tree(5), "/a", |e| e.perm = 0o644));
    s.illegal(&with_bytes(s.tree(5), "/a", |b| b.truncate(1999)), "size");
    s.illegal(&with_bytes(s.tree(5), "/a", |b| b[1536..].fill(0)), "zeros");
}

#[test]
fn r5_durable_commit() {
    let s = Story::new().create("/a").commit(true, vec![chmod("/a", 0o600), write("/a", 0, 600, 1)]);
    s.legal(&s.tree(2));
    s.illegal(&s.tree(1), "mode");
}

fn pair(durable: bool) -> Story {
    let s = Story::new().create("/a").write("/a", 0, 2048, 1).create("/b").write("/b", 0, 2048, 2).sync();
    let both = vec![
        write("/a", 0, 1024, 3),
        write("/b", 0, 1024, 4),
        chmod("/a", 0o600),
        Op::Create { path: "/new".into(), perm: 0o644 },
    ];
    s.commit(durable, both)
}

#[test]
fn r6_names_and_attributes_all_or_nothing() {
    let s = pair(false);
    s.legal(&s.tree(5));
    s.legal(&s.tree(6));
    s.illegal(&without(s.tree(6), "/new"), "missing");
    s.illegal(&with_entry(s.tree(6), "/a", |e| e.perm = 0o644), "mode");
}

#[test]
fn r7_contents_all_or_nothing() {
    let s = pair(false);
    let (old, new) = (s.tree(5), s.tree(6));
    let bytes = |tree: &Tree, path: &str| tree.entries[path.as_bytes()].bytes().unwrap().to_vec();
    s.illegal(&with_bytes(new.clone(), "/b", |b| *b = bytes(&old, "/b")), "none of");
    s.illegal(&with_bytes(old.clone(), "/b", |b| *b = bytes(&new, "/b")), "none of");
    s.illegal(
        &with_bytes(new.clone(), "/a", |b| b[512..1024].copy_from_slice(&bytes(&old, "/a")[512..1024])),
        "none of",
    );
}

#[test]
fn r8_no_trace_of_uncommitted_changes() {
    let s = Story::new().create("/a").write("/a", 0, 1024, 1).sync();
    let mut tree = s.tree(3);
    let extra = tree.entries[&b"/a"[..]].clone();
    tree.entries.insert(b"/aborted".to_vec(), Entry { ino: 999, ..extra });
    s.illegal(&tree, "should not be there");
    s.illegal(&with_bytes(s.tree(3), "/a", |b| *b = stamp::bytes(2, 77, 0, 1024)), "write 77");
}

#[test]
fn r9_metadata_is_a_prefix() {
    let s = Story::new()
        .create("/a")
        .create("/b")
        .then(Op::Link { from: "/a".into(), to: "/c".into() })
        .then(chmod("/b", 0o600))
        .then(unlink("/a"));
    for k in 0..=5 {
        s.legal(&s.tree(k));
    }
    s.illegal(&without(s.tree(2), "/a"), "missing");
    s.illegal(&with_entry(s.tree(5), "/b", |e| e.perm = 0o644), "mode");
    s.illegal(&with_entry(s.tree(3), "/c", |e| e.ino = 7), "wrong inode");
    s.illegal(&with_entry(s.tree(5), "/c", |e| e.nlink = 2), "link count");
    s.illegal(&with_entry(s.tree(2), "/a", |e| e.uid = 1), "owner");
    s.illegal(
        &with_entry(s.tree(2), "/a", |e| {
            e.xattrs.insert(b"user.x".to_vec(), Vec::new());
        }),
        "attributes",
    );
}

/// Files that an fsync has made durable without others are apart from the prefix, with their names,
/// attributes and contents, and depend on nothing else beyond it.
#[test]
fn r9_synced_files_are_apart_from_the_prefix() {
    let ahead = |story: Story| Story { goes_ahead: true, ..story };
    let old = || {
        let folder = Op::Mkdir { path: "/d".into(), perm: 0o755 };
        Story::new().then(folder).create("/old").write("/old", 0, 600, 1).sync()
    };
    let take = |from: &Tree, into: Tree, path: &str| {
        let mut tree = into;
        tree.entries.insert(path.as_bytes().to_vec(), from.entries[path.as_bytes()].clone());
        tree
    };
    // A new file beside others, and an old one with another mode.
    let s = ahead(old().create("/a").create("/d/b").write("/d/b", 0, 700, 2).create("/c").fsync("/d/b"));
    let alone = take(&s.tree(9), s.tree(4), "/d/b");
    s.legal(&alone);
    s.legal(&s.tree(9));
    s.illegal(&s.tree(4), "was synced, and is missing");
    s.illegal(&with_bytes(alone.clone(), "/d/b", |b| b.truncate(0)), "size 0");
    s.illegal(&with_entry(alone.clone(), "/d/b", |e| e.perm = 0o600), "mode");
    s.illegal(&with_entry(alone.clone(), "/d/b", |e| e.nlink = 2), "link count");
    s.illegal(&take(&s.tree(9), alone, "/c"), "should not be there");
    let s = ahead(old().create("/a").then(chmod("/old", 0o600)).fsync("/old"));
    s.legal(&take(&s.tree(6), s.tree(4), "/old"));
    s.illegal(&s.tree(4), "mode");
    // An fsync that was not acknowledged may have done so; other calls may not.
    let mut s = ahead(old().create("/a").create("/b"));
    let alone = take(&s.tree(6), s.tree(4), "/b");
    s.illegal(&alone, "missing");
    s.thread.push(Op::Fsync { path: "/b".into() }, s.now + 1, None).unwrap();
    s.now += 10;
    s.legal(&alone);
    s.legal(&s.tree(4));
    // A file that depends on more takes it along: a folder that is new or moves, a name that was in
    // use, another name, a transaction.
    let mkdir = || Op::Mkdir { path: "/e".into(), perm: 0o755 };
    let mv = |from: &str, to: &str| Op::Rename { from: from.into(), to: to.into(), how: RenameHow::Replace };
    let stories = [
        old().create("/x").then(mkdir()).create("/e/b").fsync("/e/b"),
        old().create("/x").then(mv("/d", "/e")).create("/e/b").fsync("/e/b"),
        old().create("/x").then(unlink("/old")).create("/old").fsync("/old"),
        old().create("/x").create("/y").then(mv("/y", "/b")).fsync("/b"),
        old().create("/x").create("/b").then(Op::Link { from: "/b".into(), to: "/y".into() }).fsync("/b"),
        old().create("/x").commit(false, vec![chmod("/d", 0o700)]).create("/b").fsync("/b"),
    ];
    for story in stories {
        let s = ahead(story);
        let newest = s.tree(s.thread.steps.len());
        s.legal(&newest);
        s.illegal(&without(newest, "/x"), "");
    }
    // Changes of it after the sync may be missing, or not.
    let s = ahead(old().create("/x").create("/b").fsync("/b").then(mv("/b", "/c")));
    let alone = take(&s.tree(7), s.tree(4), "/b");
    s.legal(&alone);
    s.legal(&s.tree(8));
    s.illegal(&take(&s.tree(8), s.tree(4), "/c"), "");
    s.illegal(&take(&s.tree(8), alone, "/c"), "");
    s.illegal(&without(s.tree(8), "/c"), "");
}

#[test]
fn r10_unsynced_data() {
    let s = Story::new().create("/other").write("/other", 0, 4096, 1).create("/a").write("/a", 0, 2048, 2);
    let s = s.sync().write("/a", 0, 1024, 3).write("/a", 2048, 1024, 4);
    s.legal(&s.tree(7));
    // The overwrite lost and the growth with it; growth without its data.
    s.legal(&with_bytes(s.tree(6), "/a", |b| b[..1024].copy_from_slice(&stamp::bytes(3, 2, 0, 1024))));
    s.illegal(&with_bytes(s.tree(7), "/a", |b| b[2048..].fill(0)), "size 3072");
    // Another file's bytes; its own from another place; synced data gone; half a sector.
    s.illegal(
        &with_bytes(s.tree(7), "/a", |b| b[2048..].copy_from_slice(&stamp::bytes(2, 1, 2048, 1024))),
        "file 2",
    );
    s.illegal(
        &with_bytes(s.tree(7), "/a", |b| b[..512].copy_from_slice(&stamp::bytes(3, 2, 512, 512))),
        "offset 512",
    );
    s.illegal(&with_bytes(s.tree(7), "/a", |b| b[1024..1536].fill(0)), "zeros");
    s.illegal(
        &with_bytes(s.tree(7), "/a", |b| b[..256].copy_from_slice(&stamp::bytes(3, 2, 0, 256))),
        "none of",
    );
}

#[test]
fn r11_truncated_data_stays_away() {
    let s = Story::new().create("/a").write("/a", 0, 4096, 1).sync().truncate("/a", 1000);
    let s = s.write("/a", 3000, 1000, 2).create("/after");
    s.legal(&s.tree(6));
    s.legal(&s.tree(3));
    // If /after exists, the truncation must be there too.
    s.illegal(
        &with_bytes(s.tree(6), "/a", |b| b[1536..2048].copy_from_slice(&stamp::bytes(2, 1, 1536, 512))),
        "write 1",
    );
    let old_bytes = s.tree(3).entries[&b"/a"[..]].bytes().unwrap().to_vec();
    s.illegal(&with_bytes(s.tree(6), "/a", |b| *b = old_bytes), "size");
}

#[test]
fn r12_size() {
    let s = Story::new().create("/a").write("/a", 0, 1000, 1).sync().write("/a", 1000, 3000, 2);
    s.illegal(&with_bytes(s.tree(4), "/a", |b| b.truncate(2048)), "size 2048");
    s.illegal(&with_bytes(s.tree(4), "/a", |b| b.truncate(999)), "size 999");
    s.illegal(&with_bytes(s.tree(4), "/a", |b| b.resize(4001, 0)), "size 4001");
}

/// A size may be of a later moment than the names, if an fsync need not wait for other files: up to
/// a change of another kind of the same file, or of a folder's place.
#[test]
fn r12_a_size_ahead_of_the_names() {
    let old = || {
        let folder = Op::Mkdir { path: "/d".into(), perm: 0o755 };
        Story::new().create("/a").write("/a", 0, 600, 1).then(folder).sync()
    };
    let ahead = |story: &Story| Story { goes_ahead: true, ..story.clone() };
    let newest = |story: &Story| {
        let bytes = story.tree(story.thread.steps.len()).entries[&b"/a"[..]].bytes().unwrap().to_vec();
        with_bytes(story.tree(4), "/a", |b| *b = bytes)
    };
    let s = old().create("/other").write("/a", 600, 600, 2);
    s.illegal(&newest(&s), "size 1200");
    ahead(&s).legal(&newest(&s));
    let synced = ahead(&s.fsync("/a"));
    synced.legal(&newest(&synced));
    synced.illegal(&synced.tree(4), "size 600");
    let moved = Op::Rename { from: "/d".into(), to: "/e".into(), how: RenameHow::Replace };
    for between in [chmod("/a", 0o600), moved] {
        let s = ahead(&old().then(between).write("/a", 600, 600, 2));
        s.illegal(&newest(&s), "size 1200");
        s.legal(&s.tree(4));
    }
}

/// The promise of each data mode about sizes and unsynced overwritten data.
#[test]
fn r12_sizes_come_with_their_data() {
    let story = |promise| {
        let mut s = Story::new().create("/a").write("/a", 0, 3000, 1).sync();
        s.promise = promise;
        s.write("/a", 3000, 1500, 2).write("/a", 512, 1024, 3).write("/a", 4500, 900, 4)
    };
    let sizes = story(Promise::Sizes);
    (3..=6).for_each(|k| sizes.legal(&sizes.tree(k)));
    // Half of an append, and sizes without their data.
    sizes.illegal(&with_bytes(sizes.tree(6), "/a", |b| b.truncate(4096)), "size 4096");
    sizes.illegal(&with_bytes(sizes.tree(4), "/a", |b| b[3072..].fill(0)), "size 4500");
    let old_middle = |b: &mut Vec<u8>| b[1024..1536].copy_from_slice(&stamp::bytes(2, 1, 1024, 512));
    sizes.illegal(&with_bytes(sizes.tree(6), "/a", old_middle), "size 5400");
    // Overwrites in place come before the size that is written with them, one by one.
    let early = |b: &mut Vec<u8>| b[512..1024].copy_from_slice(&stamp::bytes(2, 3, 512, 512));
    sizes.legal(&with_bytes(sizes.tree(3), "/a", early));
    sizes.legal(&with_bytes(sizes.tree(4), "/a", early));

    let writes = story(Promise::Writes);
    (3..=6).for_each(|k| writes.legal(&writes.tree(k)));
    writes.illegal(&with_bytes(writes.tree(3), "/a", early), "size 3000");
    writes.illegal(&with_bytes(writes.tree(4), "/a", early), "size 4500");

    let sectors = story(Promise::Sectors);
    sectors.legal(&with_bytes(sectors.tree(6), "/a", |b| b.truncate(4096)));
    sectors.legal(&with_bytes(sectors.tree(4), "/a", |b| b[3072..].fill(0)));
    sectors.legal(&with_bytes(sectors.tree(6), "/a", old_middle));
    sectors.illegal(&with_bytes(sectors.tree(4), "/a", |b| b.truncate(2999)), "size 2999");
}

/// Holes are punched in the order of metadata, which does not wait for data.
#[test]
fn r12_holes_beside_unsynced_data() {
    let mut s = Story::new().create("/a").write("/a", 0, 4096, 1).sync().write("/a", 0, 512, 2);
    s.promise = Promise::Writes;
    let s = s.then(Op::Punch { path: "/a".into(), offset: 1024, len: 1024 });
    s.legal(&with_bytes(s.tree(3), "/a", |b| b[1024..2048].fill(0)));
    s.illegal(&with_bytes(s.tree(3), "/a", |b| b[2048..2560].fill(0)), "zeros");
}

#[test]
fn r13_rename_over_makes_the_data_durable() {
    let s =
        Story::new().create("/a").write("/a", 0, 3000, 1).sync().create("/a.new").write("/a.new", 0, 2000, 2);
    let s = s.then(Op::Rename { from: "/a.new".into(), to: "/a".into(), how: RenameHow::Replace });
    s.legal(&s.tree(3));
    s.legal(&s.tree(6));
    s.legal(&with_bytes(s.tree(5), "/a.new", |b| b.clear()));
    s.illegal(&with_bytes(s.tree(6), "/a", |b| b.clear()), "size 0");
    s.illegal(&with_bytes(s.tree(6), "/a", |b| b[512..1024].fill(0)), "zeros");
}

#[test]
fn r14_an_unsound_volume_is_refused() {
    let workload = workloads::find("append").unwrap();
    let (recording, _) = workload.record(1).unwrap();
    let cursor = xact_testkit::recording::Cursor::at(&recording, recording.events.len());
    let parts = vec![xact_testkit::recording::Part::All; cursor.pending().len()];
    let closed = workload.recover(&cursor.crash(&parts)).unwrap().closed;
    workload.inspect(&closed).unwrap();
    // Block by block through the metadata of the first group: damage is noticed.
    let mut noticed = 0;
    for block in [2u64, 5, 20, 40] {
        let mut spoilt = closed.clone();
        let mut bytes = [0; 1024];
        spoilt.read(&mut bytes, block * 1024);
        bytes.iter_mut().for_each(|b| *b ^= 0x55);
        spoilt.write(&bytes, block * 1024);
        noticed += workload.inspect(&spoilt).is_err() as u32;
    }
    assert!(noticed >= 3, "only {noticed} of 4 damages were noticed");
}

#[test]
fn r15_and_r16_trees_are_compared_in_everything() {
    let s = pair(true);
    let tree = s.tree(6);
    assert_eq!(tree.difference(&tree.clone()), "");
    for (change, what) in [
        (with_entry(tree.clone(), "/a", |e| e.mtime.1 = 1), "mtime"),
        (with_entry(tree.clone(), "/a", |e| e.ino += 1), "ino"),
        (with_bytes(tree.clone(), "/a", |b| b[2000] ^= 1), "contents"),
        (without(tree.clone(), "/a"), "only in the first"),
    ] {
        assert!(tree != change && tree.difference(&change).contains(what), "{what}");
    }
}
