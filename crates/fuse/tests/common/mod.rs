//! A volume in memory and its mount, for tests of what lies between kernel and view.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use xact::{AbortHistory, CommitObserver, Difference, Isolation, LostAttempt, Side, Volume, VolumeOptions};
use xact_fs::inode_ops::mem::MemTree;
use xact_fs::*;
use xact_fuse::{
    Changes, CommitHow, Host, HostTransaction, MountOptions, Reopened, Served, Session, Unmounter, serve,
};
use xact_types::{Error, Ino, Result, unix_seconds};
use zerocopy::FromZeros;

/// Tests that hold on any volume: over the view in memory, which tells apart what is the mount's
/// fault, and over a real one.
#[allow(unused_macros)] // a test program may have tests of one kind only
macro_rules! on_both {
    ($($name:ident)*) => {
        mod in_memory {
            $(#[test] fn $name() { super::$name(super::Mounted::in_memory()) })*
        }
        mod on_a_volume {
            $(#[test] fn $name() { super::$name(super::Mounted::on_a_volume()) })*
        }
    };
}

/// A view over a tree in memory, which can be told to misbehave.
pub struct MemView {
    tree: Mutex<MemTree>,
    ended: AtomicBool,
    /// While true, reads and writes of a file named "slow" wait.
    stuck: Mutex<bool>,
    unstuck: Condvar,
    pub syncs: AtomicU64,
}

impl MemView {
    pub fn with(tree: MemTree) -> Arc<MemView> {
        Arc::new(MemView {
            tree: Mutex::new(tree),
            ended: AtomicBool::new(false),
            stuck: Mutex::new(false),
            unstuck: Condvar::new(),
            syncs: AtomicU64::new(0),
        })
    }

    /// The tree as it is now.
    pub fn tree(&self) -> MemTree {
        self.tree.lock().clone()
    }

    fn run<T>(&self, operation: impl FnOnce(&mut MemTree) -> Result<T>) -> Result<T> {
        if self.ended.load(Ordering::Acquire) {
            return Err(Error::Ended);
        }
        let mut tree = self.tree.lock();
        tree.set_clock(unix_seconds());
        operation(&mut tree)
    }

    fn wait_if_slow(&self, ino: Ino) {
        let slow = self.run(|t| posix::lookup(t, Ino::ROOT, b"slow")).is_ok_and(|a| a.ino == ino);
        if slow {
            let mut stuck = self.stuck.lock();
            while *stuck {
                self.unstuck.wait(&mut stuck);
            }
        }
    }

    pub fn set_stuck(&self, stuck: bool) {
        *self.stuck.lock() = stuck;
        self.unstuck.notify_all();
    }
}

impl View for MemView {
    fn lookup(&self, dir: Ino, name: &Name) -> Result<Attr> {
        self.run(|t| posix::lookup(t, dir, name))
    }
    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.run(|t| posix::attr(t, ino))
    }
    fn set_attr(&self, caller: &Caller, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.run(|t| posix::set_attr(t, caller, ino, change))
    }
    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.run(|t| posix::read_link(t, ino))
    }
    fn make_node(&self, caller: &Caller, dir: Ino, name: &Name, mode: u16, rdev: u64) -> Result<Attr> {
        assert_ne!(name, b"panic", "a test wants to see a panic");
        self.run(|t| posix::make_node(t, caller, dir, name, mode, rdev))
    }
    fn make_dir(&self, caller: &Caller, dir: Ino, name: &Name, perm: u16) -> Result<Attr> {
        self.run(|t| posix::make_dir(t, caller, dir, name, perm))
    }
    fn make_symlink(&self, caller: &Caller, dir: Ino, name: &Name, target: &[u8]) -> Result<Attr> {
        self.run(|t| posix::make_symlink(t, caller, dir, name, target))
    }
    fn make_unnamed(&self, caller: &Caller, dir: Ino, perm: u16) -> Result<Attr> {
        self.run(|t| posix::make_unnamed(t, caller, dir, perm))
    }
    fn link(&self, _: &Caller, ino: Ino, dir: Ino, name: &Name) -> Result<Attr> {
        self.run(|t| posix::link(t, ino, dir, name))
    }
    fn unlink(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.run(|t| posix::unlink(t, dir, name))
    }
    fn remove_dir(&self, _: &Caller, dir: Ino, name: &Name) -> Result<()> {
        self.run(|t| posix::remove_dir(t, dir, name))
    }
    fn rename(&self, caller: &Caller, from: (Ino, &Name), to: (Ino, &Name), how: RenameHow) -> Result<()> {
        self.run(|t| posix::rename(t, caller, from, to, how))
    }
    fn read_dir(&self, dir: Ino, cookie: u64, each: &mut dyn FnMut(DirItem<'_>) -> bool) -> Result<()> {
        self.run(|t| posix::read_dir(t, dir, cookie, each))
    }
    fn hold(&self, ino: Ino) -> Result<()> {
        self.run(|t| t.hold(ino))
    }
    fn release(&self, ino: Ino, count: u64) {
        // A commit may have replaced the tree by one in which the inode is gone.
        let _ = self.run(|t| {
            if t.node(ino).is_ok_and(|node| node.holds >= count) {
                t.release(ino, count);
            }
            Ok(())
        });
    }
    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.wait_if_slow(ino);
        self.run(|t| posix::read(t, ino, offset, len, out))
    }
    fn write(&self, ino: Ino, offset: u64, data: &[u8], how: WriteHow) -> Result<u64> {
        self.wait_if_slow(ino);
        self.run(|t| posix::write(t, ino, offset, data, how))
    }
    fn allocate(&self, caller: &Caller, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.run(|t| posix::allocate(t, caller, ino, offset, len, how))
    }
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64, how: WriteHow) -> Result<u64> {
        self.run(|t| posix::copy_range(t, from, to, len, how))
    }
    fn seek(&self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        self.run(|t| posix::seek(t, ino, offset, to))
    }
    fn sync_file(&self, _: Ino, _: bool) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
    fn sync_all(&self) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.run(|t| posix::xattr(t, ino, name))
    }
    fn list_xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.run(|t| posix::list_xattrs(t, ino))
    }
    fn set_xattr(&self, _: &Caller, ino: Ino, name: &[u8], value: &[u8], how: XattrHow) -> Result<()> {
        self.run(|t| posix::set_xattr(t, ino, name, value, how))
    }
    fn remove_xattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.run(|t| posix::remove_xattr(t, ino, name))
    }
    fn space(&self) -> Result<VolumeSpace> {
        let (blocks, inodes) = (1 << 20, 1 << 16);
        Ok(VolumeSpace {
            block_size: 4096,
            blocks,
            free_blocks: blocks / 2,
            available_blocks: blocks / 4,
            inodes,
            free_inodes: inodes - 11,
        })
    }
}

/// A volume whose transactions are copies of its tree; one that commits puts its copy in place,
/// unless the base has changed since.
pub struct MemHost {
    pub base: Arc<MemView>,
    last_id: AtomicU64,
    pub aborts: Arc<AtomicU64>,
    pub poisoned: Mutex<Option<String>>,
    accounts: xact::Accounts,
}

impl MemHost {
    pub fn new() -> Arc<MemHost> {
        Arc::new(MemHost {
            base: MemView::with(MemTree::new(4096)),
            last_id: AtomicU64::new(6),
            aborts: Arc::default(),
            poisoned: Mutex::default(),
            accounts: xact::Accounts::default(),
        })
    }
}

impl Host for MemHost {
    fn accounts(&self) -> &xact::Accounts {
        &self.accounts
    }

    fn holds(&self, ino: Ino) -> u64 {
        self.base.tree.lock().node(ino).map_or(0, |node| node.holds)
    }

    fn hold_reserved(&self, ino: Ino) {
        self.base.hold(ino).unwrap();
    }

    fn counters(&self) -> xact_fuse::control::Counters {
        Default::default()
    }

    fn latencies(&self) -> xact_fuse::control::Latencies {
        xact_fuse::control::Latencies::new_zeroed()
    }

    fn modes(&self) -> xact::Modes {
        xact::Modes::default()
    }

    fn pool(&self) -> Result<xact_fuse::control::Pool> {
        Ok(xact_fuse::control::Pool::default())
    }

    fn is_pool_full(&self) -> bool {
        false
    }

    fn reopen_kept(&self) -> Result<Vec<(u64, Result<Reopened>)>> {
        Ok(Vec::new())
    }

    fn mode_options(&self) -> xact::ModeChoice {
        xact::ModeChoice::default()
    }

    fn stored_modes(&self) -> Result<xact::ModeChoice> {
        Ok(xact::ModeChoice::default())
    }

    fn store_modes(&self, _: xact::ModeChoice) -> Result<()> {
        Err(Error::Unsupported("modes".into()))
    }

    fn base(&self) -> Arc<dyn View> {
        self.base.clone()
    }

    fn begin(&self, _uid: u32, _: Isolation, _: &AbortHistory) -> Result<Arc<dyn HostTransaction>> {
        let start = self.base.tree.lock().clone();
        Ok(Arc::new(MemTransaction {
            id: self.last_id.fetch_add(1, Ordering::AcqRel) + 1,
            base: self.base.clone(),
            view: MemView::with(start.clone()),
            start: Mutex::new(start),
            aborts: self.aborts.clone(),
        }))
    }

    fn create_snapshot(&self, _: &str) -> Result<()> {
        Err(Error::Unsupported("snapshots".into()))
    }

    fn create_snapshot_of(&self, _: &str, _: &[Vec<u8>]) -> Result<()> {
        Err(Error::Unsupported("snapshots".into()))
    }

    fn snapshot_paths(&self, _: &str) -> Result<Vec<Vec<u8>>> {
        Err(Error::Unsupported("snapshots".into()))
    }

    fn delete_snapshot(&self, _: &str) -> Result<()> {
        Err(Error::Unsupported("snapshots".into()))
    }

    fn snapshots(&self) -> Result<Vec<xact::SnapshotInfo>> {
        Err(Error::Unsupported("snapshots".into()))
    }

    fn diff_snapshots(&self, _: &str, _: Option<&str>) -> Result<Vec<xact::Difference>> {
        Err(Error::Unsupported("snapshots".into()))
    }

    fn watch_snapshots(&self, _: xact::SnapshotWatcher) {}

    fn snapshot_names(&self) -> Result<Vec<String>> {
        Err(Error::Unsupported("snapshots".into()))
    }

    fn open_snapshot(&self, _: &str) -> Result<xact::Snapshot> {
        Err(Error::Unsupported("snapshots".into()))
    }

    fn poison(&self, why: &str) {
        *self.poisoned.lock() = Some(why.to_owned());
    }
}

struct MemTransaction {
    id: u64,
    base: Arc<MemView>,
    view: Arc<MemView>,
    start: Mutex<MemTree>,
    aborts: Arc<AtomicU64>,
}

/// Inodes that two trees do not have in common, and names, with the times left out (the base's
/// clock goes on) and with the holds, which are the kernel's.
fn differences(a: &MemTree, b: &MemTree) -> Changes {
    let mut changes = Changes::default();
    let inodes = |t: &MemTree| t.inodes().map(|(&ino, _)| ino).collect::<std::collections::BTreeSet<_>>();
    for &ino in inodes(a).union(&inodes(b)) {
        let (old, new) = (a.node(ino).ok(), b.node(ino).ok());
        let what = |n: Option<&xact_fs::inode_ops::mem::MemNode>| {
            n.map(|n| (n.names.clone(), n.target.clone(), n.blocks.clone(), n.xattrs.clone(), n.attr))
        };
        if what(old) == what(new) {
            continue;
        }
        changes.inodes.push(ino);
        if new.or(old).is_some_and(|node| node.attr.kind == FileKind::Regular) {
            changes.files.push(ino);
        }
        let names =
            |n: Option<&xact_fs::inode_ops::mem::MemNode>| n.map(|n| n.names.clone()).unwrap_or_default();
        let (old, new) = (names(old), names(new));
        for name in old.keys().chain(new.keys()) {
            if old.get(name) != new.get(name) {
                changes.names.push((ino, name.clone()));
            }
        }
    }
    changes
}

impl MemTransaction {
    fn apply(&self) -> Result<()> {
        let mut base = self.base.tree.lock();
        let others = differences(&self.start.lock(), &base);
        if let Some((_, name)) = others.names.first() {
            let path = format!("/{}", String::from_utf8_lossy(name));
            return Err(Error::Conflict { path, why: "changed by others", conflicting_tx: None });
        }
        if let Some(ino) = others.inodes.first() {
            return Err(Error::Conflict {
                path: ino.to_string(),
                why: "written by others",
                conflicting_tx: None,
            });
        }
        let mut new = self.view.tree.lock().clone();
        // The kernel goes on holding inodes of the base.
        let numbers: Vec<Ino> = base.inodes().map(|(&ino, _)| ino).collect();
        for ino in numbers {
            let held = base.node(ino)?.holds;
            for _ in new.node(ino).map_or(held, |node| node.holds)..held {
                // Gone in the view: MemTree frees at once, where the real base keeps orphans.
                let _ = new.hold(ino);
            }
        }
        *base = new;
        drop(base);
        self.view.ended.store(true, Ordering::Release);
        Ok(())
    }
}

impl HostTransaction for MemTransaction {
    fn id(&self) -> u64 {
        self.id
    }

    fn view(&self) -> Arc<dyn View> {
        self.view.clone()
    }

    fn goes_first(&self) -> bool {
        false
    }

    fn written_files(&self) -> Vec<Ino> {
        differences(&self.start.lock(), &self.view.tree.lock()).files
    }

    /// Its commits put a tree in the place of another, with all inodes in it.
    fn will_make(&self, _: Ino) -> bool {
        false
    }

    fn is_open(&self) -> bool {
        !self.view.ended.load(Ordering::Acquire)
    }

    fn is_doomed(&self) -> bool {
        false
    }

    fn take_lost(&self) -> Option<LostAttempt> {
        None
    }

    fn commit(&self, how: &CommitHow, audience: &mut dyn CommitObserver) -> Result<()> {
        assert!(how.only.is_none(), "parts are a matter of real volumes");
        self.view.ended.store(!how.retain, Ordering::Release);
        audience.before(&differences(&self.start.lock(), &self.view.tree.lock()));
        let result = self.apply();
        audience.after();
        result
    }

    fn abort(&self) {
        self.view.ended.store(true, Ordering::Release);
        self.aborts.fetch_add(1, Ordering::AcqRel);
    }

    fn drop_all(&self) -> Result<()> {
        self.abort();
        Ok(())
    }

    // What people decide by is a matter of real volumes.
    fn keep(&self, _: xact::PersistedInfo) -> Result<()> {
        Err(xact_types::Errno::EOPNOTSUPP.into())
    }
    fn kept_info(&self) -> Option<xact::PersistedInfo> {
        None
    }
    fn keep_up(&self) -> Result<()> {
        Ok(())
    }
    fn drop_only(&self, _: &[Vec<u8>]) -> Result<()> {
        Err(xact_types::Errno::EOPNOTSUPP.into())
    }
    fn savepoint(&self) -> Result<u64> {
        Err(xact_types::Errno::EOPNOTSUPP.into())
    }
    fn roll_back(&self, _: u64) -> Result<Changes> {
        Err(xact_types::Errno::EOPNOTSUPP.into())
    }
    fn release_savepoint(&self, _: u64) -> Result<()> {
        Err(xact_types::Errno::EOPNOTSUPP.into())
    }
    fn diff(&self) -> Result<Vec<Difference>> {
        Err(xact_types::Errno::EOPNOTSUPP.into())
    }
    fn diff_by_file(&self, _: &xact::Credentials) -> Result<Vec<Difference>> {
        Err(xact_types::Errno::EOPNOTSUPP.into())
    }
    fn read_side(
        &self,
        _: &xact::Reader<'_>,
        _: Side,
        _: Ino,
        _: u64,
        _: usize,
        _: &mut Vec<u8>,
    ) -> Result<()> {
        Err(xact_types::Errno::EOPNOTSUPP.into())
    }
}

/// What is behind a mount.
enum Behind {
    Memory(Arc<MemHost>),
    /// With the image it is on.
    Volume(Arc<Volume>, PathBuf),
}

/// A mount in a folder of its own, unmounted at the end of a test, however it ends. A volume's
/// image must then please e2fsck.
pub struct Mounted {
    behind: Behind,
    session: Option<Session>,
    unmounter: Unmounter,
    dir: tempfile::TempDir,
}

impl Mounted {
    pub fn in_memory() -> Mounted {
        Mounted::in_memory_with(|_| {})
    }

    pub fn in_memory_with(change: impl FnOnce(&mut MountOptions)) -> Mounted {
        let mut options = MountOptions::new(Path::new("/images/a test.img"));
        change(&mut options);
        let host = MemHost::new();
        Mounted::mount(Mounted::dir(), host.clone(), Behind::Memory(host), &options)
    }

    /// A volume of 1 GiB as mke2fs makes it.
    pub fn on_a_volume() -> Mounted {
        let dir = Mounted::dir();
        let image = dir.path().join("volume.img");
        sh(dir.path(), "truncate -s 1G volume.img && mke2fs -q -t ext4 volume.img");
        let volume = Volume::open_path(&image, &VolumeOptions::default()).unwrap();
        let options = MountOptions::new(&image);
        let host = Arc::new(Served::new(volume.clone()));
        Mounted::mount(dir, host, Behind::Volume(volume, image), &options)
    }

    fn dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        // Other users have to get there.
        set_mode(dir.path(), 0o755);
        dir
    }

    fn mount(dir: tempfile::TempDir, host: Arc<dyn Host>, behind: Behind, options: &MountOptions) -> Mounted {
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        let session = serve(host, &dir.path().join("mnt"), options).unwrap();
        let unmounter = session.unmounter();
        Mounted { behind, session: Some(session), unmounter, dir }
    }

    /// The volume in memory.
    pub fn host(&self) -> &MemHost {
        match &self.behind {
            Behind::Memory(host) => host,
            Behind::Volume(..) => panic!("this is a real volume"),
        }
    }

    pub fn is_a_volume(&self) -> bool {
        matches!(self.behind, Behind::Volume(..))
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// A folder beside the mount.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    pub fn session(&mut self) -> &mut Session {
        self.session.as_mut().unwrap()
    }

    /// Returns when the session has ended.
    pub fn wait(&mut self) {
        self.session.take().unwrap().wait();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Behind::Memory(host) = &self.behind {
            host.base.set_stuck(false);
        }
        let _ = self.unmounter.unmount();
        if std::thread::panicking() {
            return;
        }
        if let Some(session) = self.session.take() {
            session.wait();
        }
        if let Behind::Volume(volume, image) = &self.behind {
            volume.health().unwrap();
            volume.close().unwrap();
            sh(
                self.dir.path(),
                &format!("e2fsck -fn {0} > out 2>&1 || {{ cat out; exit 1; }}", image.display()),
            );
        }
    }
}

pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs a shell script in `dir`; panics with its output unless it succeeds. Returns what it said.
pub fn sh(dir: &Path, script: &str) -> String {
    let output = Command::new("bash")
        .args(["-euc", script])
        .current_dir(dir)
        .env("HOME", dir)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .expect("bash is needed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{}: {said}{errors}", output.status);
    said
}
