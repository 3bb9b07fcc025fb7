//! Transactions and savepoints of the library: their ends, and the attempts after conflicts.

use std::io::Write;
use std::sync::Arc;

use xact::mkfs::{MkfsOptions, mkfs};
use xact::{Durability, Errno, Error, MemoryDevice, PathExt, PersistedInfo, Volume, VolumeOptions};

fn volume() -> Arc<Volume> {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    Volume::open(device, &VolumeOptions::default()).unwrap()
}

/// A commit happens, a drop and an abort do not, and a file that is still open then has ended.
#[test]
fn a_transaction_ends_with_its_handle() {
    let volume = volume();
    let transaction = volume.begin(Default::default());
    let mut file = transaction.create("/f").unwrap();
    file.write_all(b"never").unwrap();
    drop(transaction);
    assert!(!volume.exists("/f").unwrap());
    assert_eq!(file.metadata().unwrap_err().errno(), Errno::ESTALE);
    assert_eq!(file.write(b"x").unwrap_err().kind(), std::io::ErrorKind::StaleNetworkFileHandle);
    let transaction = volume.begin(Default::default());
    transaction.write("/f", "never").unwrap();
    transaction.abort();
    assert!(!volume.exists("/f").unwrap());
    let transaction = volume.begin(Default::default());
    transaction.write("/f", "once").unwrap();
    transaction.commit().unwrap();
    assert_eq!(volume.read("/f").unwrap(), b"once");
    // A shared one ends with its last reference.
    let shared = volume.begin(Default::default()).into_shared();
    let paths = xact::Paths::of(shared.clone());
    paths.write("/f", "twice").unwrap();
    shared.commit().unwrap();
    assert_eq!(volume.read("/f").unwrap(), b"twice");
    drop((file, paths));
    volume.close().unwrap();
}

/// Two transactions may write different files of a folder. One that both write is a conflict, which
/// names it.
#[test]
fn a_conflict_names_the_path() {
    let volume = volume();
    volume.create_dir_all("/mail/box").unwrap();
    volume.write("/mail/box/index", b"0").unwrap();
    let [one, two, three] = [(); 3].map(|()| volume.begin(Default::default()));
    one.write("/mail/box/1", b"one").unwrap();
    two.write("/mail/box/2", b"two").unwrap();
    two.write("/mail/box/index", b"2").unwrap();
    let index = three.read("/mail/box/index").unwrap();
    three.write("/mail/box/3", &index).unwrap();
    one.commit().unwrap();
    two.commit().unwrap();
    match three.commit() {
        Err(Error::Conflict { path, .. }) => assert_eq!(path, "/mail/box/index"),
        other => panic!("{other:?}"),
    }
    assert!(!volume.exists("/mail/box/3").unwrap());
    volume.close().unwrap();
}

#[test]
fn a_refused_transaction_comes_back() {
    let volume = volume();
    volume.write("/a", "0").unwrap();
    let transaction = volume.begin(Default::default());
    let id = transaction.id();
    transaction.write("/b", transaction.read("/a").unwrap()).unwrap();
    volume.write("/a", "1").unwrap();
    let refused = transaction.try_commit(Durability::Durable).unwrap_err();
    assert!(matches!(&refused.error, Error::Conflict { path, .. } if path == "/a"));
    assert_eq!((refused.transaction.id(), refused.transaction.read("/b").unwrap()), (id, b"0".to_vec()));
    let paths = refused.transaction.diff().unwrap().into_iter().map(|one| one.path).collect::<Vec<_>>();
    assert_eq!(paths, [b"/b"]);
    drop(refused);
    assert!(!volume.exists("/b").unwrap());
    volume.close().unwrap();
}

#[test]
fn parts_are_committed_and_aborted_alone() {
    let volume = volume();
    let mut transaction = volume.begin(Default::default());
    for path in ["/a", "/b", "/c"] {
        transaction.write(path, "x").unwrap();
    }
    transaction.commit_only(&["/a"], Durability::Durable).unwrap();
    assert!(volume.exists("/a").unwrap() && !volume.exists("/b").unwrap());
    transaction.abort_only(&["/b"]).unwrap();
    transaction.commit_with(Durability::Ordered).unwrap();
    assert!(!volume.exists("/b").unwrap() && volume.exists("/c").unwrap());
    volume.close().unwrap();
}

#[test]
fn savepoints_undo_unless_they_are_released() {
    let volume = volume();
    let mut transaction = volume.begin(Default::default());
    transaction.write("/a", "outer").unwrap();
    let mut outer = transaction.savepoint().unwrap();
    outer.write("/b", "kept").unwrap();
    let inner = outer.savepoint().unwrap();
    inner.write("/a", "undone").unwrap();
    inner.remove_file("/b").unwrap();
    inner.roll_back().unwrap();
    let inner = outer.savepoint().unwrap();
    inner.write("/c", "kept").unwrap();
    inner.release().unwrap();
    outer.release().unwrap();
    let undone = transaction.savepoint().unwrap();
    undone.remove_file("/c").unwrap();
    drop(undone);
    transaction.commit().unwrap();
    let read = |path| volume.read_to_string(path).unwrap();
    assert_eq!([read("/a"), read("/b"), read("/c")], ["outer", "kept", "kept"]);
    volume.close().unwrap();
}

#[test]
fn a_lost_attempt_is_made_again() {
    let volume = volume();
    volume.write("/f", "0").unwrap();
    let mut attempts = 0;
    let result = volume.retry(4, |transaction| {
        attempts += 1;
        let seen = transaction.read_to_string("/f")?;
        if attempts < 3 {
            volume.write("/f", attempts.to_string())?;
        }
        transaction.write("/g", &seen)?;
        Ok(seen)
    });
    assert_eq!((attempts, result.unwrap().as_str()), (3, "2"));
    assert_eq!(volume.read("/g").unwrap(), b"2");
    // The number of attempts is limited, and other errors are returned at once.
    let mut attempts = 0;
    let lost = volume.retry(2, |transaction| {
        attempts += 1;
        volume.write("/f", attempts.to_string())?;
        transaction.write("/f", "mine")
    });
    assert!(matches!(lost, Err(Error::Conflict { .. })), "{lost:?}");
    assert_eq!(attempts, 2);
    // A failure in a doomed transaction is a conflict, whatever the action makes of it.
    let mut attempts = 0;
    let done = volume.retry(3, |transaction| {
        attempts += 1;
        if attempts < 3 {
            volume.write("/f", attempts.to_string())?;
        }
        transaction.write("/f", "mine").map_err(|_| Error::Usage("failed".into()))
    });
    assert!(done.is_ok(), "{done:?}");
    assert_eq!((attempts, volume.read("/f").unwrap()), (3, b"mine".to_vec()));
    let mut attempts = 0;
    let failed = volume.retry(5, |transaction| {
        attempts += 1;
        transaction.write("/h", "x")?;
        transaction.read("/none")
    });
    assert_eq!((failed.unwrap_err().errno(), attempts), (Errno::ENOENT, 1));
    assert!(!volume.exists("/h").unwrap());
    volume.close().unwrap();
}

#[test]
fn a_persisted_transaction_is_opened_again() {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    let volume = Volume::open(device.clone(), &VolumeOptions::default()).unwrap();
    let transaction = volume.begin(Default::default());
    transaction.write("/f", "kept").unwrap();
    transaction.persist(PersistedInfo::default()).unwrap();
    let id = transaction.id();
    drop(transaction);
    volume.close().unwrap();
    let volume = Volume::open(device, &VolumeOptions::default()).unwrap();
    assert_eq!(volume.persisted_transactions().unwrap(), [id]);
    let transaction = volume.reopen_transaction(id).unwrap();
    assert_eq!(transaction.read("/f").unwrap(), b"kept");
    assert!(!volume.exists("/f").unwrap());
    transaction.commit().unwrap();
    assert_eq!(volume.read("/f").unwrap(), b"kept");
    assert!(volume.persisted_transactions().unwrap().is_empty());
    volume.close().unwrap();
}
