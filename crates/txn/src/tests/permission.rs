//! If the permission for a change is withdrawn before its commit, the commit is refused, under
//! every isolation, in one mount and after a reopening.

use xact_fs::{Caller, FileKind, SetAttr, View, WriteHow, XattrHow};
use xact_layout::inode::flag;
use xact_types::Error;

use super::ops::{Op, run};
use crate::mem_fs::MemFs;
use crate::{Isolation, PersistedInfo, Transaction, TxOptions};

const ID: u64 = 7;

fn s(text: &str) -> String {
    text.to_string()
}

fn write(path: &str) -> Op {
    Op::Write(s(path), 0, b"mine".to_vec(), WriteHow::default())
}

/// A change outside, between the transaction's change and its commit.
enum Outside {
    Op(Op),
    /// Sets the `i_flags` of a path.
    Flags(&'static str, u32),
    /// Sets an access list that denies one user all access.
    Deny(&'static str),
}

fn attr(view: &dyn View, path: &str) -> xact_fs::Attr {
    let root = view.attr(xact_types::Ino::ROOT).unwrap();
    path.split('/').filter(|name| !name.is_empty()).fold(root, |dir, name| {
        assert_eq!(dir.kind, FileKind::Directory);
        view.lookup(dir.ino, name.as_bytes()).unwrap()
    })
}

/// `user::rw-, user:1000:---, group::r--, mask::r--, other::r--`.
fn denying_list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 0, 1000), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 4, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

impl Outside {
    fn run(&self, base: &MemFs) {
        match self {
            Outside::Op(op) => drop(run(base, op)),
            Outside::Flags(path, flags) => {
                let ino = attr(base, path).ino;
                let change = SetAttr { flags: Some(*flags), ..SetAttr::default() };
                base.set_attr(&Caller::ROOT, ino, &change).unwrap();
            }
            Outside::Deny(path) => {
                let (ino, list) = (attr(base, path).ino, denying_list());
                let name = b"system.posix_acl_access";
                base.set_xattr(&Caller::ROOT, ino, name, &list, XattrHow::Set).unwrap();
            }
        }
    }
}

/// `top/d` with the files `x` and `y`, and `else`.
fn base() -> std::sync::Arc<MemFs> {
    let base = MemFs::new(1024);
    for op in [
        Op::MakeDir(s("top")),
        Op::MakeDir(s("top/d")),
        Op::MakeDir(s("else")),
        Op::Create(s("top/d/x")),
        Op::Create(s("top/d/y")),
        Op::Create(s("other")),
    ] {
        run(&*base, &op);
    }
    base
}

/// Walks a path as a kernel does: it reads all folders above, and their access lists.
fn look(tx: &Transaction<MemFs>, path: &str) {
    let mut dir = xact_types::Ino::ROOT;
    for name in path.split('/') {
        let Ok(attr) = tx.lookup(dir, name.as_bytes()) else { return };
        dir = attr.ino;
        let _ = tx.xattr(dir, b"system.posix_acl_access");
    }
}

fn outcome(
    isolation: Isolation,
    mounted: bool,
    kept: bool,
    inside: &Op,
    path: &str,
    outside: &[Outside],
) -> bool {
    let mut base = base();
    let options = TxOptions { id: ID, isolation, mounted, owner: 1000, ..TxOptions::default() };
    let mut tx = Transaction::begin(&base, options);
    look(&tx, path);
    run(&tx, inside);
    if kept {
        let info = PersistedInfo { gid: 3, label: Vec::new(), begun: 1_700_000_000, deadline: None };
        tx.persist(info).unwrap();
        drop(tx);
        outside.iter().for_each(|one| one.run(&base));
        base = MemFs::with(base.tree());
        tx = Transaction::reopen(&base, ID, &std::sync::Arc::default()).unwrap();
    } else {
        outside.iter().for_each(|one| one.run(&base));
    }
    match tx.commit() {
        Ok(()) => true,
        Err(Error::Conflict { path, why, .. }) => {
            assert!(!path.is_empty() && why.contains("concurrently"), "{path}: {why}");
            false
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_withdrawn_permission_refuses_the_commit() {
    let chmod = |path: &str, perm| Outside::Op(Op::Chmod(s(path), perm));
    let chown = |path: &str| Outside::Op(Op::Chown(s(path), 1001, 1001));
    let moved = |from: &str, to: &str| Outside::Op(Op::Rename(s(from), s(to), xact_fs::RenameHow::Replace));
    let rename_d = || Op::Rename(s("top/d"), s("top/e"), xact_fs::RenameHow::Replace);
    let write_x = || (write("top/d/x"), "top/d/x");
    let cases: Vec<((Op, &str), Outside)> = vec![
        (write_x(), chmod("top/d/x", 0o600)),
        (write_x(), chown("top/d/x")),
        (write_x(), Outside::Flags("top/d/x", flag::IMMUTABLE)),
        (write_x(), Outside::Flags("top/d/x", flag::APPEND)),
        (write_x(), Outside::Deny("top/d/x")),
        // The path to the file.
        (write_x(), chmod("top/d", 0o700)),
        (write_x(), chmod("top", 0o700)),
        (write_x(), chown("top")),
        (write_x(), Outside::Deny("top")),
        (write_x(), moved("top/d/x", "else/x")),
        (write_x(), moved("top/d", "else/d")),
        // Names in a folder.
        ((Op::Create(s("top/d/new")), "top/d/new"), chmod("top/d", 0o750)),
        ((Op::Create(s("top/d/new")), "top/d/new"), Outside::Flags("top/d", flag::IMMUTABLE)),
        ((Op::MakeDir(s("top/d/new")), "top/d/new"), chmod("top", 0o700)),
        ((Op::Unlink(s("top/d/x")), "top/d/x"), chmod("top/d", 0o1777)),
        ((Op::Unlink(s("top/d/x")), "top/d/x"), chown("top/d")),
        ((Op::Unlink(s("top/d/x")), "top/d/x"), Outside::Flags("top/d", flag::APPEND)),
        ((Op::Unlink(s("top/d/x")), "top/d/x"), Outside::Flags("top/d/x", flag::IMMUTABLE)),
        ((Op::Link(s("other"), s("top/d/n")), "top/d/n"), chown("top/d")),
        // A folder renamed within its parent; its own changes are only times.
        ((rename_d(), "top/d"), Outside::Flags("top/d", flag::IMMUTABLE)),
        ((rename_d(), "top/d"), chown("top/d")),
        // Attributes, which only the owner may change.
        ((Op::Chmod(s("top/d/x"), 0o666), "top/d/x"), chown("top/d/x")),
        ((Op::Utimens(s("top/d/x"), xact_fs::TimeChange::Now), "top/d/x"), chown("top/d/x")),
        ((Op::SetXattr(s("top/d/x"), "user.x", vec![1], XattrHow::Set), "top/d/x"), chmod("top/d/x", 0o400)),
    ];
    for ((inside, path), outside) in &cases {
        let outside = std::slice::from_ref(outside);
        for isolation in [Isolation::Serializable, Isolation::Snapshot] {
            for kept in [false, true] {
                let committed = outcome(isolation, true, kept, inside, path, outside);
                assert!(!committed, "{inside:?}, {isolation:?}, kept {kept}");
            }
        }
    }
}

#[test]
fn items_without_effect_on_permissions_are_not_compared() {
    fn snapshot(inside: &Op, path: &str, outside: Outside) -> bool {
        outcome(Isolation::Snapshot, true, false, inside, path, &[outside])
    }
    // Another file, a folder not on the path, names next to it, and contents that were only read.
    assert!(snapshot(&write("top/d/x"), "top/d/x", Outside::Op(Op::Chmod(s("top/d/y"), 0o600))));
    assert!(snapshot(&write("top/d/x"), "top/d/x", Outside::Op(Op::Chmod(s("else"), 0o700))));
    assert!(snapshot(&write("top/d/x"), "top/d/x", Outside::Op(Op::Create(s("top/d/z")))));
    assert!(snapshot(&write("top/d/x"), "top/d/y", Outside::Op(write("top/d/y"))));
    // A flag that forbids nothing.
    assert!(snapshot(&write("top/d/x"), "top/d/x", Outside::Flags("top/d/x", flag::NODUMP)));
    // Without a front end that checks permission bits, they are not compared.
    let chmod = [Outside::Op(Op::Chmod(s("top/d/x"), 0o600))];
    assert!(outcome(Isolation::Snapshot, false, false, &write("top/d/x"), "top/d/x", &chmod));
}

/// A user's transaction on a mount.
fn of_user() -> TxOptions {
    TxOptions { id: ID, isolation: Isolation::Snapshot, mounted: true, owner: 1000, ..TxOptions::default() }
}

/// A partial commit moves the view to the present state, so it also validates permissions of the
/// rest.
#[test]
fn a_partial_commit_validates_permissions_of_the_rest() {
    let base = base();
    let tx = Transaction::begin(&base, of_user());
    look(&tx, "top/d/x");
    run(&tx, &write("top/d/x"));
    run(&tx, &write("other"));
    run(&*base, &Op::Chmod(s("top/d/x"), 0o600));
    // The rest stays without its permission.
    let left_out = tx.commit_only(&["/other"], Default::default(), &mut ()).unwrap();
    assert!(matches!(left_out, Some(Error::Conflict { path, .. }) if path == "/top/d/x"));
    let rest = tx.try_commit(Default::default(), &mut ());
    assert!(matches!(rest, Err(Error::Conflict { path, .. }) if path == "/top/d/x"));
    // A change of the folder above is one of the permission to change what is left out, too.
    run(&*base, &Op::Chmod(s("top"), 0o700));
    run(&tx, &Op::Create(s("third")));
    let part = tx.commit_only(&["/third"], Default::default(), &mut ());
    assert!(matches!(part, Err(Error::Conflict { path, .. }) if path == "/top"));
}

/// A path that was forgotten for lack of memory before the file was written is still compared.
#[test]
fn a_forgotten_path_is_still_compared() {
    for kept in [false, true] {
        let mut base = base();
        let mut tx = Transaction::begin(&base, of_user());
        look(&tx, "top/d/x");
        tx.reads.lock().coarsen(std::iter::empty());
        tx.write(attr(&*base, "top/d/x").ino, 0, b"mine", WriteHow::default()).unwrap();
        if kept {
            tx.persist(PersistedInfo { gid: 3, label: Vec::new(), begun: 1_700_000_000, deadline: None })
                .unwrap();
            tx.abort();
        }
        run(&*base, &Op::Chmod(s("top"), 0o700));
        if kept {
            base = MemFs::with(base.tree());
            tx = Transaction::reopen(&base, ID, &std::sync::Arc::default()).unwrap();
        }
        assert!(matches!(tx.commit(), Err(Error::Conflict { .. })), "kept {kept}");
    }
}
