//! The POSIX operations over inodes in memory give the outcomes, times and link counts of ext4.

use xact_layout::inode::{flag, mode};
use xact_types::{Errno, Error, Ino, Result, Timestamp};

use super::acl::{ACCESS, DEFAULT, encode_for_test};
use super::*;
use crate::api::{Allocate, Caller, RenameHow, SeekTo, SetAttr, TimeChange, WriteHow, XattrHow};
use crate::inode_ops::mem::MemTree;

const ROOT: Ino = Ino::ROOT;
const USER: Caller = Caller { uid: 1000, gid: 100, umask: 0o022 };
const HOW: WriteHow = WriteHow { append: false, kill_suidgid: false, by: Caller::ROOT, is_part: false };

fn tree() -> MemTree {
    MemTree::new(1024)
}

fn file(t: &mut MemTree, dir: Ino, name: &str) -> Ino {
    make_node(t, &USER, dir, name.as_bytes(), 0o644, 0).unwrap().ino
}

fn folder(t: &mut MemTree, dir: Ino, name: &str) -> Ino {
    make_dir(t, &USER, dir, name.as_bytes(), 0o755).unwrap().ino
}

fn mv(t: &mut MemTree, from: (Ino, &str), to: (Ino, &str), how: RenameHow) -> Result<()> {
    rename(t, &USER, (from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), how)
}

fn ino(t: &mut MemTree, dir: Ino, name: &str) -> Option<Ino> {
    t.entry(dir, name.as_bytes()).unwrap().map(|e| e.ino)
}

fn links(t: &mut MemTree, ino: Ino) -> u32 {
    t.attr(ino).unwrap().nlink
}

#[track_caller]
fn assert_errno<T: std::fmt::Debug>(result: Result<T>, errno: Errno) {
    match result {
        Err(Error::Posix(e)) if e == errno => {}
        other => panic!("expected {errno:?}, got {other:?}"),
    }
}

fn chmod(t: &mut MemTree, ino: Ino, perm: u16) {
    set_attr(t, &Caller::ROOT, ino, &SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
}

fn chattr(t: &mut MemTree, ino: Ino, flags: u32) {
    set_attr(t, &Caller::ROOT, ino, &SetAttr { flags: Some(flags), ..SetAttr::default() }).unwrap();
}

#[test]
fn names_are_checked_in_the_kernels_order() {
    let mut t = tree();
    let f = file(&mut t, ROOT, "f");
    assert_errno(lookup(&mut t, ROOT, b"none"), Errno::ENOENT);
    assert_errno(lookup(&mut t, f, b"x"), Errno::ENOTDIR);
    assert_errno(lookup(&mut t, ROOT, &[b'a'; 256]), Errno::ENAMETOOLONG);
    assert_errno(make_node(&mut t, &USER, ROOT, &[b'a'; 256], 0o644, 0), Errno::ENAMETOOLONG);
    assert_errno(make_node(&mut t, &USER, ROOT, b"f", 0o644, 0), Errno::EEXIST);
    assert_errno(make_dir(&mut t, &USER, f, b"x", 0o755), Errno::ENOTDIR);
    assert_errno(make_symlink(&mut t, &USER, ROOT, b"f", b"target"), Errno::EEXIST);
    assert_errno(make_symlink(&mut t, &USER, ROOT, b"l", b""), Errno::ENOENT);
    assert_errno(make_symlink(&mut t, &USER, ROOT, b"l", &[b'a'; 1024]), Errno::ENAMETOOLONG);
    assert_errno(make_node(&mut t, &USER, ROOT, b"d", mode::DIRECTORY | 0o755, 0), Errno::EPERM);
    assert_errno(unlink(&mut t, ROOT, b"none"), Errno::ENOENT);
    assert_errno(remove_dir(&mut t, ROOT, b"f"), Errno::ENOTDIR);
    let d = folder(&mut t, ROOT, "d");
    assert_errno(unlink(&mut t, ROOT, b"d"), Errno::EISDIR);
    assert_errno(link(&mut t, d, ROOT, b"d2"), Errno::EPERM);
    file(&mut t, d, "x");
    assert_errno(remove_dir(&mut t, ROOT, b"d"), Errno::ENOTEMPTY);
    assert_errno(read_link(&mut t, f), Errno::EINVAL);
    assert_errno(read(&mut t, d, 0, 1, &mut Vec::new()), Errno::EISDIR);
}

#[test]
fn new_inodes_get_owner_mode_and_times() {
    let mut t = tree();
    let before = t.attr(ROOT).unwrap();
    let a = make_node(&mut t, &USER, ROOT, b"dev", mode::BLOCK | 0o666, 0x803).unwrap();
    assert_eq!((a.uid, a.gid, a.perm, a.rdev, a.nlink), (1000, 100, 0o644, 0x803, 1));
    let after = t.attr(ROOT).unwrap();
    assert_eq!((after.mtime, after.ctime), (a.ctime, a.ctime));
    assert_eq!((after.atime, after.nlink), (before.atime, 2));
    let d = make_dir(&mut t, &USER, ROOT, b"d", 0o7777).unwrap();
    assert_eq!((d.perm, d.nlink), (0o1755, 2));
    assert_eq!(links(&mut t, ROOT), 3);
    let l = make_symlink(&mut t, &USER, ROOT, b"l", b"some/where").unwrap();
    assert_eq!((l.perm, l.size), (0o777, 10));
    assert_eq!(read_link(&mut t, l.ino).unwrap(), b"some/where");
}

#[test]
fn inodes_in_a_sgid_folder_inherit_its_group() {
    let mut t = tree();
    let d = folder(&mut t, ROOT, "d");
    let change = SetAttr { gid: Some(7), perm: Some(0o2775), ..SetAttr::default() };
    set_attr(&mut t, &Caller::ROOT, d, &change).unwrap();
    let sub = make_dir(&mut t, &USER, d, b"sub", 0o755).unwrap();
    assert_eq!((sub.gid, sub.perm), (7, 0o2755));
    let f = make_node(&mut t, &USER, d, b"f", 0o644, 0).unwrap();
    assert_eq!((f.gid, f.perm), (7, 0o644));
}

#[test]
fn flags_are_inherited_by_kind() {
    let mut t = tree();
    let d = folder(&mut t, ROOT, "d");
    chattr(&mut t, d, flag::NODUMP | flag::DIRSYNC | flag::TOPDIR);
    let sub = make_dir(&mut t, &USER, d, b"sub", 0o755).unwrap();
    assert_eq!(sub.flags & !flag::EXTENTS, flag::NODUMP | flag::DIRSYNC);
    let f = make_node(&mut t, &USER, d, b"f", 0o644, 0).unwrap();
    assert_eq!(f.flags & !flag::EXTENTS, flag::NODUMP);
}

#[test]
fn immutable_and_append_only_files_refuse_changes() {
    let mut t = tree();
    let f = file(&mut t, ROOT, "f");
    write(&mut t, f, 0, b"abc", HOW).unwrap();
    chattr(&mut t, f, flag::APPEND);
    assert_errno(write(&mut t, f, 0, b"x", HOW), Errno::EPERM);
    assert_eq!(write(&mut t, f, 0, b"x", WriteHow { append: true, ..HOW }).unwrap().offset, 3);
    assert_errno(unlink(&mut t, ROOT, b"f"), Errno::EPERM);
    assert_errno(link(&mut t, f, ROOT, b"g"), Errno::EPERM);
    let truncate = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_errno(set_attr(&mut t, &USER, f, &truncate), Errno::EPERM);
    let touch = SetAttr { mtime: Some(TimeChange::Now), ..SetAttr::default() };
    set_attr(&mut t, &USER, f, &touch).unwrap();
    chattr(&mut t, f, flag::IMMUTABLE);
    assert_errno(set_attr(&mut t, &USER, f, &touch), Errno::EPERM);
    assert_errno(set_xattr(&mut t, &Caller::ROOT, f, b"user.a", b"", XattrHow::Set), Errno::EPERM);
    let unprivileged = SetAttr { flags: Some(0), ..SetAttr::default() };
    assert_errno(set_attr(&mut t, &USER, f, &unprivileged), Errno::EPERM);
    chattr(&mut t, f, 0);
    unlink(&mut t, ROOT, b"f").unwrap();

    let d = folder(&mut t, ROOT, "d");
    file(&mut t, d, "x");
    chattr(&mut t, d, flag::APPEND);
    file(&mut t, d, "y");
    assert_errno(unlink(&mut t, d, b"x"), Errno::EPERM);
    assert_errno(mv(&mut t, (d, "x"), (ROOT, "x"), RenameHow::Replace), Errno::EPERM);
    chattr(&mut t, d, flag::IMMUTABLE);
    assert_errno(make_node(&mut t, &USER, d, b"z", 0o644, 0), Errno::EPERM);
    assert_errno(make_node(&mut t, &USER, d, b"x", 0o644, 0), Errno::EEXIST);
}

#[test]
fn link_counts_stop_at_their_limits() {
    let mut t = tree();
    t.set_link_max(3, true);
    let f = file(&mut t, ROOT, "f");
    for name in [b"a", b"b"] {
        link(&mut t, f, ROOT, name).unwrap();
    }
    assert_errno(link(&mut t, f, ROOT, b"c"), Errno::EMLINK);
    unlink(&mut t, ROOT, b"f").unwrap();
    assert_eq!(links(&mut t, f), 2);

    let d = folder(&mut t, ROOT, "d");
    folder(&mut t, d, "1");
    assert_eq!(links(&mut t, d), 3);
    folder(&mut t, d, "2");
    assert_eq!(links(&mut t, d), 1, "no longer counted");
    remove_dir(&mut t, d, b"1").unwrap();
    assert_eq!(links(&mut t, d), 1);
    remove_dir(&mut t, d, b"2").unwrap();
    remove_dir(&mut t, ROOT, b"d").unwrap();
    assert!(t.node(d).is_err());

    t.set_link_max(4, false);
    let d = folder(&mut t, ROOT, "d");
    folder(&mut t, ROOT, "e");
    folder(&mut t, d, "1");
    folder(&mut t, d, "2");
    assert_errno(make_dir(&mut t, &USER, d, b"3", 0o755), Errno::EMLINK);
    assert_errno(mv(&mut t, (ROOT, "e"), (d, "e"), RenameHow::Replace), Errno::EMLINK);
    file(&mut t, d, "f");
    assert_errno(mv(&mut t, (ROOT, "e"), (d, "f"), RenameHow::Exchange), Errno::EMLINK);
}

#[test]
fn unnamed_files_live_until_release_unless_linked() {
    let mut t = tree();
    let a = make_unnamed(&mut t, &USER, ROOT, 0o600).unwrap();
    assert_eq!(a.nlink, 0);
    assert_eq!(link(&mut t, a.ino, ROOT, b"now").unwrap().nlink, 1);
    t.release(a.ino, 1);
    assert!(t.node(a.ino).is_ok());
    let b = make_unnamed(&mut t, &USER, ROOT, 0o600).unwrap();
    t.release(b.ino, 1);
    assert!(t.node(b.ino).is_err());
}

#[test]
fn a_removed_folder_accepts_no_names() {
    let mut t = tree();
    let d = folder(&mut t, ROOT, "d");
    t.hold(d).unwrap();
    remove_dir(&mut t, ROOT, b"d").unwrap();
    assert_errno(make_node(&mut t, &USER, d, b"x", 0o644, 0), Errno::ENOENT);
    assert_errno(make_unnamed(&mut t, &USER, d, 0o644), Errno::ENOENT);
    assert_errno(read_dir(&mut t, d, 0, &mut |_| true), Errno::ENOENT);
    assert_errno(mv(&mut t, (ROOT, "none"), (d, "x"), RenameHow::Replace), Errno::ENOENT);
}

#[test]
fn rename_replaces_only_inodes_of_the_same_kind() {
    let mut t = tree();
    let (f, g) = (file(&mut t, ROOT, "f"), file(&mut t, ROOT, "g"));
    let (d, e) = (folder(&mut t, ROOT, "d"), folder(&mut t, ROOT, "e"));
    assert_errno(mv(&mut t, (ROOT, "f"), (ROOT, "d"), RenameHow::Replace), Errno::EISDIR);
    assert_errno(mv(&mut t, (ROOT, "d"), (ROOT, "f"), RenameHow::Replace), Errno::ENOTDIR);
    assert_errno(mv(&mut t, (ROOT, "f"), (ROOT, "g"), RenameHow::NoReplace), Errno::EEXIST);
    let inner = folder(&mut t, e, "inner");
    assert_errno(mv(&mut t, (ROOT, "d"), (ROOT, "e"), RenameHow::Replace), Errno::ENOTEMPTY);
    assert_errno(mv(&mut t, (e, "inner"), (ROOT, "e"), RenameHow::Replace), Errno::ENOTEMPTY);
    mv(&mut t, (ROOT, "f"), (ROOT, "g"), RenameHow::Replace).unwrap();
    assert_eq!(ino(&mut t, ROOT, "g"), Some(f));
    assert!(t.node(g).is_err());
    assert_eq!(links(&mut t, ROOT), 4);
    mv(&mut t, (ROOT, "d"), (e, "inner"), RenameHow::Replace).unwrap();
    assert!(t.node(inner).is_err());
    assert_eq!((links(&mut t, ROOT), links(&mut t, e)), (3, 3));
    assert_eq!(t.parent(d).unwrap(), e);
    // Rename within one folder, over an empty folder.
    folder(&mut t, e, "other");
    mv(&mut t, (e, "inner"), (e, "other"), RenameHow::Replace).unwrap();
    assert_eq!(links(&mut t, e), 3);
}

#[test]
fn rename_of_two_names_of_one_inode_does_nothing() {
    let mut t = tree();
    let f = file(&mut t, ROOT, "f");
    link(&mut t, f, ROOT, b"g").unwrap();
    let before = t.attr(ROOT).unwrap();
    mv(&mut t, (ROOT, "f"), (ROOT, "g"), RenameHow::Replace).unwrap();
    assert_eq!((ino(&mut t, ROOT, "f"), ino(&mut t, ROOT, "g")), (Some(f), Some(f)));
    assert_eq!(t.attr(ROOT).unwrap(), before);
}

#[test]
fn a_folder_cannot_move_below_itself() {
    let mut t = tree();
    let a = folder(&mut t, ROOT, "a");
    let b = folder(&mut t, a, "b");
    let c = folder(&mut t, b, "c");
    assert_errno(mv(&mut t, (ROOT, "a"), (c, "a"), RenameHow::Replace), Errno::EINVAL);
    assert_errno(mv(&mut t, (ROOT, "a"), (a, "a"), RenameHow::Replace), Errno::EINVAL);
    assert_errno(mv(&mut t, (b, "c"), (ROOT, "a"), RenameHow::Exchange), Errno::EINVAL);
    mv(&mut t, (a, "b"), (ROOT, "b"), RenameHow::Replace).unwrap();
    mv(&mut t, (ROOT, "a"), (c, "a"), RenameHow::Replace).unwrap();
    assert_eq!(t.parent(a).unwrap(), c);
    // A loop of parents, which only corruption can create, is detected.
    t.set_parent(b, a).unwrap();
    folder(&mut t, ROOT, "d");
    assert!(matches!(mv(&mut t, (ROOT, "d"), (a, "d"), RenameHow::Replace), Err(Error::Corrupt(_))));
}

#[test]
fn exchange_swaps_and_whiteout_leaves_a_device() {
    let mut t = tree();
    let d = folder(&mut t, ROOT, "d");
    let e = folder(&mut t, ROOT, "e");
    let f = file(&mut t, d, "f");
    assert_errno(mv(&mut t, (d, "f"), (ROOT, "none"), RenameHow::Exchange), Errno::ENOENT);
    mv(&mut t, (d, "f"), (ROOT, "e"), RenameHow::Exchange).unwrap();
    assert_eq!((ino(&mut t, d, "f"), ino(&mut t, ROOT, "e")), (Some(e), Some(f)));
    assert_eq!((links(&mut t, ROOT), links(&mut t, d)), (3, 3));
    assert_eq!(t.parent(e).unwrap(), d);
    mv(&mut t, (ROOT, "e"), (d, "new"), RenameHow::Whiteout).unwrap();
    let white = lookup(&mut t, ROOT, b"e").unwrap();
    assert_eq!((white.kind, white.rdev, white.perm, white.nlink), (FileKind::CharDevice, 0, 0, 1));
    assert_eq!(ino(&mut t, d, "new"), Some(f));
}

#[test]
fn listings_begin_with_dot_and_continue_at_cookies() {
    let mut t = tree();
    let d = folder(&mut t, ROOT, "d");
    for name in ["a", "b", "c"] {
        file(&mut t, d, name);
    }
    let mut seen = Vec::new();
    let mut cookie = 0;
    loop {
        let before = seen.len();
        read_dir(&mut t, d, cookie, &mut |item| {
            if seen.len() > before {
                return false;
            }
            seen.push((item.name.to_vec(), item.ino));
            cookie = item.next_cookie;
            true
        })
        .unwrap();
        if seen.len() == before {
            break;
        }
    }
    let names: Vec<_> = seen.iter().map(|(name, _)| std::str::from_utf8(name).unwrap()).collect();
    assert_eq!(names, [".", "..", "a", "b", "c"]);
    assert_eq!((seen[0].1, seen[1].1), (d, ROOT));
}

#[test]
fn writes_set_times_and_drop_privileges() {
    let mut t = tree();
    let f = file(&mut t, ROOT, "f");
    chmod(&mut t, f, 0o6755);
    set_xattr(&mut t, &Caller::ROOT, f, CAPABILITY, b"caps", XattrHow::Set).unwrap();
    write(&mut t, f, 3000, b"data", HOW).unwrap();
    let a = t.attr(f).unwrap();
    assert_eq!((a.perm, a.size), (0o6755, 3004));
    assert_eq!(a.mtime, a.ctime);
    assert_errno(xattr(&mut t, f, CAPABILITY), Errno::ENODATA);
    write(&mut t, f, 0, b"x", WriteHow { kill_suidgid: true, ..HOW }).unwrap();
    assert_eq!(t.attr(f).unwrap().perm, 0o755);
    chmod(&mut t, f, 0o2644);
    write(&mut t, f, 0, b"x", WriteHow { kill_suidgid: true, ..HOW }).unwrap();
    assert_eq!(t.attr(f).unwrap().perm, 0o2644);
    let before = t.attr(f).unwrap();
    write(&mut t, f, 0, b"", HOW).unwrap();
    assert_eq!(t.attr(f).unwrap(), before);
    let max = t.size_max(0);
    assert_errno(write(&mut t, f, max, b"x", HOW), Errno::EFBIG);
    // A write across the largest size writes what fits.
    let written = write(&mut t, f, max - 2, b"abc", HOW).unwrap();
    assert_eq!((written.offset, written.len), (max - 2, 2));
    assert_eq!(t.attr(f).unwrap().size, max);
    assert_errno(write(&mut t, f, 0, b"x", WriteHow { append: true, ..HOW }), Errno::EFBIG);
    let whole = Allocate::Reserve { keep_size: true };
    assert_errno(allocate(&mut t, &Caller::ROOT, f, max - 1, 2, whole), Errno::EFBIG);
    let g = file(&mut t, ROOT, "g");
    write(&mut t, g, 0, b"abcd", HOW).unwrap();
    assert_eq!(copy_range(&mut t, (g, 0), (f, max - 3), 4, HOW).unwrap(), 3);
    assert_errno(copy_range(&mut t, (g, 0), (f, max), 4, HOW), Errno::EFBIG);
    assert_errno(write(&mut t, f, u64::MAX, b"x", HOW), Errno::EFBIG);
}

#[test]
fn chown_drops_suid_and_truncate_sets_times() {
    let mut t = tree();
    let f = file(&mut t, ROOT, "f");
    chmod(&mut t, f, 0o6755);
    let chown = SetAttr { uid: Some(5), ..SetAttr::default() };
    assert_eq!(set_attr(&mut t, &Caller::ROOT, f, &chown).unwrap().perm, 0o755);
    let d = folder(&mut t, ROOT, "d");
    chmod(&mut t, d, 0o2755);
    assert_eq!(set_attr(&mut t, &Caller::ROOT, d, &chown).unwrap().perm, 0o2755);
    let before = t.attr(f).unwrap();
    let truncate = SetAttr { size: Some(0), ..SetAttr::default() };
    let after = set_attr(&mut t, &USER, f, &truncate).unwrap();
    assert!(after.mtime > before.mtime && after.ctime == after.mtime);
    assert_errno(set_attr(&mut t, &USER, d, &truncate), Errno::EISDIR);
    let big = SetAttr { size: Some(u64::MAX), ..SetAttr::default() };
    assert_errno(set_attr(&mut t, &USER, f, &big), Errno::EFBIG);
    let time = Timestamp { secs: -5, nanos: 7 };
    let utimens = SetAttr { mtime: Some(TimeChange::To(time)), ..SetAttr::default() };
    let set = set_attr(&mut t, &USER, f, &utimens).unwrap();
    assert_eq!(set.mtime, time);
    assert!(set.ctime > after.ctime && set.atime == after.atime);
    assert_eq!(set_attr(&mut t, &USER, f, &SetAttr::default()).unwrap(), set);
}

#[test]
fn calls_that_would_drop_privileges_fail_on_append_only_files() {
    let mut t = tree();
    let f = file(&mut t, ROOT, "f");
    let append = WriteHow { append: true, kill_suidgid: true, by: USER, is_part: false };
    let reserve = Allocate::Reserve { keep_size: true };
    allocate(&mut t, &Caller::ROOT, f, 0, 4096, reserve).unwrap();
    chmod(&mut t, f, 0o4755);
    allocate(&mut t, &Caller::ROOT, f, 0, 4096, reserve).unwrap();
    assert_eq!(t.attr(f).unwrap().perm, 0o4755);
    allocate(&mut t, &USER, f, 0, 4096, reserve).unwrap();
    assert_eq!(t.attr(f).unwrap().perm, 0o755);
    chmod(&mut t, f, 0o4755);
    let flags = SetAttr { flags: Some(flag::APPEND), ..SetAttr::default() };
    set_attr(&mut t, &Caller::ROOT, f, &flags).unwrap();
    let kill = SetAttr { kill_suidgid: true, ..SetAttr::default() };
    assert_errno(write(&mut t, f, 0, b"x", append), Errno::EPERM);
    assert_errno(allocate(&mut t, &USER, f, 0, 4096, reserve), Errno::EPERM);
    assert_errno(set_attr(&mut t, &USER, f, &kill), Errno::EPERM);
    assert_eq!((t.attr(f).unwrap().perm, t.attr(f).unwrap().size), (0o4755, 0));
    write(&mut t, f, 0, b"x", WriteHow { kill_suidgid: false, ..append }).unwrap();
    allocate(&mut t, &Caller::ROOT, f, 0, 4096, reserve).unwrap();
}

#[test]
fn allocate_copy_and_seek_check_their_ranges() {
    let mut t = tree();
    let (f, g) = (file(&mut t, ROOT, "f"), file(&mut t, ROOT, "g"));
    write(&mut t, f, 0, &[7; 5000], HOW).unwrap();
    assert_eq!(copy_range(&mut t, (f, 4000), (g, 10), 5000, HOW).unwrap(), 1000);
    assert_eq!(t.attr(g).unwrap().size, 1010);
    assert_eq!(copy_range(&mut t, (f, 5000), (g, 0), 10, HOW).unwrap(), 0);
    assert_errno(copy_range(&mut t, (f, 0), (f, 100), 200, HOW), Errno::EINVAL);
    assert_eq!(copy_range(&mut t, (f, 0), (f, 5000), 20_000, HOW).unwrap(), 5000);
    allocate(&mut t, &Caller::ROOT, f, 1024, 2048, Allocate::PunchHole).unwrap();
    assert_eq!(seek(&mut t, f, 0, SeekTo::Hole).unwrap(), 1024);
    assert_eq!(seek(&mut t, f, 1024, SeekTo::Data).unwrap(), 3072);
    assert_errno(seek(&mut t, f, 10_000, SeekTo::Data), Errno::ENXIO);
    assert_errno(allocate(&mut t, &Caller::ROOT, f, 0, 0, Allocate::PunchHole), Errno::EINVAL);
    assert_errno(allocate(&mut t, &Caller::ROOT, f, u64::MAX, 1, Allocate::PunchHole), Errno::EFBIG);
    allocate(&mut t, &Caller::ROOT, g, 0, 4096, Allocate::Reserve { keep_size: false }).unwrap();
    assert_eq!(t.attr(g).unwrap().size, 4096);
}

#[test]
fn attribute_names_are_checked_by_namespace_and_kind() {
    let mut t = tree();
    let f = file(&mut t, ROOT, "f");
    let l = make_symlink(&mut t, &USER, ROOT, b"l", b"f").unwrap().ino;
    let before = t.attr(f).unwrap().ctime;
    set_xattr(&mut t, &Caller::ROOT, f, b"user.a", b"1", XattrHow::Create).unwrap();
    assert!(t.attr(f).unwrap().ctime > before);
    assert_errno(set_xattr(&mut t, &Caller::ROOT, f, b"user.a", b"2", XattrHow::Create), Errno::EEXIST);
    assert_errno(set_xattr(&mut t, &Caller::ROOT, f, b"user.b", b"2", XattrHow::Replace), Errno::ENODATA);
    assert_errno(set_xattr(&mut t, &Caller::ROOT, f, b"user.", b"2", XattrHow::Set), Errno::EINVAL);
    assert_errno(set_xattr(&mut t, &Caller::ROOT, f, b"odd.a", b"2", XattrHow::Set), Errno::EOPNOTSUPP);
    assert_errno(set_xattr(&mut t, &Caller::ROOT, l, b"user.a", b"2", XattrHow::Set), Errno::EPERM);
    assert_errno(xattr(&mut t, l, b"user.a"), Errno::ENODATA);
    set_xattr(&mut t, &Caller::ROOT, l, b"trusted.a", b"2", XattrHow::Set).unwrap();
    assert_eq!(list_xattrs(&mut t, f).unwrap(), [b"user.a".to_vec()]);
    remove_xattr(&mut t, &Caller::ROOT, f, b"user.a").unwrap();
    assert_errno(remove_xattr(&mut t, &Caller::ROOT, f, b"user.a"), Errno::ENODATA);
}

/// An access list: owner rwx, user 5 rw, group r, mask rw, other none.
fn acl() -> Vec<u8> {
    let no = u32::MAX;
    encode_for_test(&[(1, 7, no), (2, 6, 5), (4, 4, no), (0x10, 6, no), (0x20, 0, no)])
}

#[test]
fn access_lists_and_modes_agree_after_each_change() {
    let mut t = tree();
    let f = file(&mut t, ROOT, "f");
    set_xattr(&mut t, &Caller::ROOT, f, ACCESS, &acl(), XattrHow::Set).unwrap();
    assert_eq!(t.attr(f).unwrap().perm, 0o760);
    chmod(&mut t, f, 0o641);
    let no = u32::MAX;
    let expected = encode_for_test(&[(1, 6, no), (2, 6, 5), (4, 4, no), (0x10, 4, no), (0x20, 1, no)]);
    assert_eq!(xattr(&mut t, f, ACCESS).unwrap(), expected);
    // A list that is equivalent to the bits is stored as bits.
    let minimal = encode_for_test(&[(1, 7, no), (4, 5, no), (0x20, 0, no)]);
    set_xattr(&mut t, &Caller::ROOT, f, ACCESS, &minimal, XattrHow::Set).unwrap();
    assert_eq!(t.attr(f).unwrap().perm, 0o750);
    assert_errno(xattr(&mut t, f, ACCESS), Errno::ENODATA);
    assert_errno(set_xattr(&mut t, &Caller::ROOT, f, DEFAULT, &acl(), XattrHow::Set), Errno::EACCES);
    let unmasked = encode_for_test(&[(1, 7, no), (2, 6, 5), (4, 4, no), (0x20, 0, no)]);
    assert_errno(set_xattr(&mut t, &Caller::ROOT, f, ACCESS, &unmasked, XattrHow::Set), Errno::EINVAL);
    assert_errno(
        set_xattr(&mut t, &Caller::ROOT, f, ACCESS, b"\x02\0\0\0short", XattrHow::Set),
        Errno::EINVAL,
    );
}

#[test]
fn a_default_list_is_inherited_instead_of_the_umask() {
    let mut t = tree();
    let d = folder(&mut t, ROOT, "d");
    set_xattr(&mut t, &Caller::ROOT, d, DEFAULT, &acl(), XattrHow::Set).unwrap();
    assert_eq!(t.attr(d).unwrap().perm, 0o755);
    let f = make_node(&mut t, &USER, d, b"f", 0o666, 0).unwrap();
    assert_eq!(f.perm, 0o660, "not masked by 022");
    let no = u32::MAX;
    let expected = encode_for_test(&[(1, 6, no), (2, 6, 5), (4, 4, no), (0x10, 6, no), (0x20, 0, no)]);
    assert_eq!(xattr(&mut t, f.ino, ACCESS).unwrap(), expected);
    assert_errno(xattr(&mut t, f.ino, DEFAULT), Errno::ENODATA);
    let sub = make_dir(&mut t, &USER, d, b"sub", 0o700).unwrap();
    assert_eq!(sub.perm, 0o700);
    assert_eq!(xattr(&mut t, sub.ino, DEFAULT).unwrap(), acl());
}

/// JOJ-4: the owner chooses the data mode of a file, and that of new files in a folder.
#[test]
fn the_data_mode_of_a_file() {
    const MODE: &[u8] = b"user.xact.data";
    const STRANGER: Caller = Caller { uid: 1001, gid: 100, umask: 0o022 };
    let mut t = MemTree::new(4096);
    let f = make_node(&mut t, &USER, Ino::ROOT, b"f", 0o100_666, 0).unwrap().ino;
    let set = |t: &mut MemTree, caller: &Caller, ino, word: &[u8]| {
        set_xattr(t, caller, ino, MODE, word, XattrHow::Set)
    };
    let journaled = |t: &mut MemTree, ino| attr(t, ino).unwrap().flags & flag::JOURNAL_DATA != 0;
    let chosen = |t: &mut MemTree, ino| xattr(t, ino, MODE).ok();
    for word in [&b"none"[..], b"ordered", b"selective", b"adaptive", b"data"] {
        set(&mut t, &USER, f, word).unwrap();
        assert_eq!(chosen(&mut t, f).as_deref(), Some(word));
        // +j means 'data', and both agree.
        assert_eq!(journaled(&mut t, f), word == b"data");
    }
    for bad in [&b""[..], b"fast", b"journal", b"data\n"] {
        assert_errno(set(&mut t, &USER, f, bad), Errno::EINVAL);
    }
    // The right to write is not enough, neither to set it nor to remove it.
    assert_errno(set(&mut t, &STRANGER, f, b"none"), Errno::EPERM);
    assert_errno(remove_xattr(&mut t, &STRANGER, f, MODE), Errno::EPERM);
    remove_xattr(&mut t, &USER, f, MODE).unwrap();
    assert!(chosen(&mut t, f).is_none() && !journaled(&mut t, f));
    set(&mut t, &Caller::ROOT, f, b"ordered").unwrap();

    // chattr is the newer choice.
    let flags = attr(&mut t, f).unwrap().flags;
    chattr(&mut t, f, flags | flag::JOURNAL_DATA);
    assert!(chosen(&mut t, f).is_none() && journaled(&mut t, f));
    set(&mut t, &USER, f, b"data").unwrap();
    chattr(&mut t, f, flags);
    assert!(chosen(&mut t, f).is_none() && !journaled(&mut t, f));
    set(&mut t, &USER, f, b"ordered").unwrap();
    chattr(&mut t, f, flags);
    assert_eq!(chosen(&mut t, f).as_deref(), Some(&b"ordered"[..]));

    // New files and folders inherit the folder's, also those of other users. Other kinds have none.
    let d = make_dir(&mut t, &USER, Ino::ROOT, b"d", 0o777).unwrap().ino;
    set(&mut t, &USER, d, b"data").unwrap();
    let e = make_dir(&mut t, &STRANGER, d, b"e", 0o755).unwrap().ino;
    for dir in [d, e] {
        let file = make_node(&mut t, &STRANGER, dir, b"file", 0o100_644, 0).unwrap().ino;
        assert_eq!(chosen(&mut t, file).as_deref(), Some(&b"data"[..]));
        assert!(journaled(&mut t, file));
    }
    let fifo = make_node(&mut t, &USER, d, b"fifo", 0o010_644, 0).unwrap().ino;
    let link = make_symlink(&mut t, &USER, d, b"link", b"file").unwrap().ino;
    assert!(chosen(&mut t, fifo).is_none() && chosen(&mut t, link).is_none());
    // Without the choice, new files follow the volume.
    remove_xattr(&mut t, &USER, d, MODE).unwrap();
    let file = make_node(&mut t, &USER, d, b"later", 0o100_644, 0).unwrap().ino;
    assert!(chosen(&mut t, file).is_none() && !journaled(&mut t, file));
    // A value that Linux has stored is not inherited if it is invalid.
    t.set_xattr(d, MODE, Some(b"odd")).unwrap();
    let file = make_node(&mut t, &USER, d, b"last", 0o100_644, 0).unwrap().ino;
    assert!(chosen(&mut t, file).is_none());
}
