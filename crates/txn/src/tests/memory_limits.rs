//! A transaction stays within its user's memory limit, and coarsens its read set before it fails.

use std::sync::Arc;

use xact_fs::{Caller, RenameHow, View, WriteHow, XattrHow};
use xact_types::{Errno, Error, Ino};

use crate::account::Accounts;
use crate::mem_fs::MemFs;
use crate::validation::read_set::ReadSet;
use crate::{Account, Limits, Resource, Transaction, TxOptions};

const USER: u32 = 1000;

/// An account with this limit of memory.
fn account(bytes: u64) -> Arc<Account> {
    let accounts = Accounts::default();
    accounts.limit(Limits::new(100, bytes), 1, |_| ());
    accounts.of(USER)
}

fn begin(base: &Arc<MemFs>, account: &Arc<Account>) -> Transaction<MemFs> {
    Transaction::begin(base, TxOptions { owner: USER, ..TxOptions::default() }).charged_to(account)
}

fn make(view: &dyn View, name: &[u8]) -> Result<Ino, Error> {
    Ok(view.make_node(&Caller::ROOT, Ino::ROOT, name, 0o100644, 0)?.ino)
}

fn is_short<R>(result: Result<R, Error>) -> bool {
    result.is_err_and(|error| error.errno() == Errno::ENOMEM)
}

/// Look-ups of a million names stay within the limit, and a name that was added concurrently is a
/// conflict on the folder, though not on each name.
#[test]
fn absent_names_become_a_listing_where_memory_is_short() {
    let base = MemFs::new(1024);
    let account = account(1 << 20);
    let tx = begin(&base, &account);
    for n in 0..100_000_u32 {
        let asked = tx.lookup(Ino::ROOT, format!("{n:0200}").as_bytes());
        assert!(matches!(asked, Err(Error::Posix(Errno::ENOENT))), "{asked:?}");
    }
    assert!(account.used(Resource::Memory) <= 1 << 20);
    make(&tx, b"own").unwrap();
    make(&*base, format!("{:0200}", 17).as_bytes()).unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    drop(tx);
    assert_eq!(account.used(Resource::Memory), 0, "an ended transaction has no charge");
    base.assert_idle();
}

/// The same without a concurrent change commits.
#[test]
fn a_coarser_read_set_alone_is_not_a_conflict() {
    let base = MemFs::new(1024);
    let other = base.make_dir(&Caller::ROOT, Ino::ROOT, b"other", 0o755).unwrap().ino;
    let tx = begin(&base, &account(1 << 20));
    for n in 0..20_000_u32 {
        let _ = tx.lookup(Ino::ROOT, format!("{n:0200}").as_bytes());
    }
    base.make_node(&Caller::ROOT, other, b"elsewhere", 0o100644, 0).unwrap();
    make(&tx, b"own").unwrap();
    tx.commit().unwrap();
}

/// Blocks of a file with holes between them become one range.
#[test]
fn single_blocks_become_a_range_where_memory_is_short() {
    for (written, conflicts) in [(0, false), (1, true), (3, true), (9_999, false)] {
        let base = MemFs::new(1024);
        let file = make(&*base, b"file").unwrap();
        base.write(file, 0, &vec![1; 10_000 << 10], WriteHow::default()).unwrap();
        let account = account(256 << 10);
        let tx = begin(&base, &account);
        let mut out = Vec::new();
        for at in (1..9_990).step_by(2) {
            tx.read(file, at << 10, 1 << 10, &mut out).unwrap();
            out.clear();
        }
        assert!(account.used(Resource::Memory) <= 256 << 10);
        make(&tx, b"own").unwrap();
        base.write(file, written << 10, &[2; 1 << 10], WriteHow::default()).unwrap();
        assert_eq!(tx.commit().is_err(), conflicts, "block {written}");
    }
}

/// If nothing can be coarsened, calls fail before they do anything; earlier changes stay, and
/// commit.
#[test]
fn changes_beyond_the_limit_fail_and_those_before_commit() {
    let base = MemFs::new(1024);
    let account = account(256 << 10);
    let tx = begin(&base, &account);
    let made = (0..10_000_u32).find(|n| is_short(make(&tx, format!("{n:0100}").as_bytes()))).unwrap();
    assert!((50..1000).contains(&made), "{made} files in 256 KiB");
    assert!(is_short(tx.lookup(Ino::ROOT, b"another")) && is_short(tx.savepoint()));
    assert!(account.used(Resource::Memory) <= 256 << 10 && account.refused() > 0);
    // Other transactions of the same user have no memory left either; those of other users have.
    let second = begin(&base, &account);
    let _ = make(&second, b"second");
    assert!(is_short(make(&second, b"third")));
    drop(second);
    tx.commit().unwrap();
    for n in 0..made {
        base.lookup(Ino::ROOT, format!("{n:0100}").as_bytes()).unwrap();
    }
    begin(&base, &account).lookup(Ino::ROOT, b"another").unwrap_err();
    assert!(
        !is_short(make(&begin(&base, &account), b"fourth")),
        "the memory of an ended transaction is given back"
    );
}

/// Each savepoint has a copy of the changes, which is charged.
#[test]
fn savepoints_are_counted_and_their_copies_charged() {
    let base = MemFs::new(1024);
    let account = account(1 << 20);
    let tx = begin(&base, &account);
    for n in 0..100_u32 {
        make(&tx, n.to_string().as_bytes()).unwrap();
    }
    let open = std::iter::from_fn(|| tx.savepoint().ok()).count();
    assert!((3..50).contains(&open), "{open} copies of 100 files in a MiB");
    assert_eq!(account.used(Resource::Savepoints), open as u64);
    tx.roll_back(2).unwrap();
    assert_eq!(account.used(Resource::Savepoints), 1);
    tx.savepoint().unwrap();
    // Small ones are limited by their number.
    let many = begin(&base, &self::account(1 << 30));
    let open = std::iter::from_fn(|| many.savepoint().ok()).count();
    assert_eq!(open, 1000);
    assert_eq!(many.savepoint().unwrap_err().errno(), Errno::EMFILE);
    assert!(make(&many, b"continues").is_ok());
}

/// The counters agree with a recount after any sequence of operations.
#[test]
fn counters_agree_with_a_recount() {
    let base = MemFs::new(1024);
    let kept = make(&*base, b"kept").unwrap();
    base.set_xattr(&Caller::ROOT, kept, b"user.a", b"1", XattrHow::Set).unwrap();
    let tx = begin(&base, &account(1 << 30));
    let check = |when: &str| {
        tx.with_overlay(|overlay| {
            let mut again = overlay.clone();
            again.recount();
            assert_eq!(overlay.bytes, again.bytes, "{when}");
        });
        let mut again: ReadSet = tx.reads.lock().clone();
        again.recount();
        assert_eq!(tx.reads.lock().bytes(), again.bytes(), "{when}");
    };
    let dir = tx.make_dir(&Caller::ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let file = tx.make_node(&Caller::ROOT, dir, b"file", 0o100644, 0).unwrap().ino;
    check("made");
    tx.write(file, 0, &[1; 10_000], WriteHow::default()).unwrap();
    tx.write(kept, 5000, &[1; 100], WriteHow::default()).unwrap();
    check("written");
    let savepoint = tx.savepoint().unwrap();
    tx.rename(&Caller::ROOT, (dir, b"file"), (Ino::ROOT, b"kept"), RenameHow::Replace).unwrap();
    tx.make_symlink(&Caller::ROOT, dir, b"link", b"target").unwrap();
    tx.set_xattr(&Caller::ROOT, file, b"user.b", &[7; 100], XattrHow::Set).unwrap();
    check("renamed over");
    tx.roll_back(savepoint).unwrap();
    check("rolled back");
    tx.remove_xattr(&Caller::ROOT, kept, b"user.a").unwrap();
    tx.unlink(&Caller::ROOT, Ino::ROOT, b"kept").unwrap();
    tx.unlink(&Caller::ROOT, dir, b"file").unwrap();
    tx.remove_dir(&Caller::ROOT, Ino::ROOT, b"dir").unwrap();
    check("removed");
    tx.make_node(&Caller::ROOT, Ino::ROOT, b"one", 0o100644, 0).unwrap();
    tx.make_node(&Caller::ROOT, Ino::ROOT, b"two", 0o100644, 0).unwrap();
    tx.commit_only(&["/one"], Default::default(), &mut ()).unwrap();
    check("committed in part");
    tx.abort_only(&["/two"]).unwrap();
    check("dropped in part");
}

/// In a chain of folders each path is built once, and a folder deeper than any call accepts is
/// shown by number. It is selected by the known part of its path.
#[test]
fn differences_of_deep_folders_take_linear_time() {
    const DEPTH: usize = 20_000;
    let base = MemFs::new(1024);
    let account = account(256 << 20);
    let tx = begin(&base, &account);
    let top = tx.make_dir(&Caller::ROOT, Ino::ROOT, b"top", 0o755).unwrap().ino;
    let mut dir = top;
    for _ in 0..DEPTH {
        dir = tx.make_dir(&Caller::ROOT, dir, b"d", 0o755).unwrap().ino;
    }
    let all = tx.diff().unwrap();
    assert_eq!(all.len(), DEPTH + 1);
    assert!(all.iter().all(|difference| difference.path.len() <= 4096));
    let exact = all.iter().filter(|difference| difference.path.starts_with(b"/top")).count();
    assert_eq!(exact, 1 + (4096 - 4) / 2);
    let bytes: usize = all.iter().map(crate::Difference::bytes).sum();
    assert!(bytes < 20 << 20, "{bytes} bytes");
    assert!(matches!(tx.abort_only(&["/elsewhere"]), Err(Error::Usage(_))));
    tx.abort_only(&["/top"]).unwrap();
    assert!(tx.diff().unwrap().is_empty());
    // A list that exceeds the limit is refused, and the transaction continues.
    let small = begin(&base, &self::account(1 << 20));
    for n in 0..600_u32 {
        make(&small, format!("{n:0200}").as_bytes()).unwrap();
    }
    assert!(is_short(small.diff()) && is_short(small.diff_by_file(None)));
    small.commit().unwrap();
}
