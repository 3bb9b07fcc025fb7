//! Runs operations by path on a view, and records each in the model's history.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xact::{Durability, PersistedInfo, SharedTransaction, TxOptions, Volume};
use xact_fs::{Allocate, Caller, RenameHow, SetAttr, View, WriteHow, XattrHow};
use xact_types::{Errno, Error, Ino};

use xact_layout::inode::flag;

use crate::device::SimDevice;
use crate::generations::SNAPSHOT_MARK;
use crate::model::{Op, ThreadHistory};
use crate::tree::Tree;

/// The reason why a workload ends early.
#[derive(Debug)]
pub enum Stop {
    /// The device was made to fail, and the volume reported it, as a fault workload expects.
    Failed(Error),
    /// xact and the model disagree, without any crash.
    Wrong(String),
}

impl From<String> for Stop {
    fn from(text: String) -> Stop {
        Stop::Wrong(text)
    }
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stop::Failed(e) => write!(f, "{e}"),
            Stop::Wrong(text) => f.write_str(text),
        }
    }
}

pub type Done = Result<(), Stop>;

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Commit,
    /// Visible at once, durable with later changes.
    CommitOrdered,
    Abort,
}

/// The decision about a persisted transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Commit,
    CommitOrdered,
    /// One part of it, and then the rest.
    InParts,
    Drop,
}

/// Drives one thread's operations on a volume.
pub struct Driver {
    volume: Arc<Volume>,
    base: Arc<dyn View>,
    clock: Arc<SimDevice>,
    thread: ThreadHistory,
    generation: u32,
    /// Calls are durable when they return.
    is_synced: bool,
}

/// Operations by path, outside or inside a transaction.
pub trait FileOps {
    fn run(&mut self, op: Op) -> Done;
    /// A number for the next write.
    fn generation(&mut self) -> u32;
    /// Size of a file according to the model.
    fn size(&self, path: &str) -> u64;

    fn create(&mut self, path: &str) -> Done {
        self.run(Op::Create { path: path.into(), perm: 0o644 })
    }
    fn mkdir(&mut self, path: &str) -> Done {
        self.run(Op::Mkdir { path: path.into(), perm: 0o755 })
    }
    fn symlink(&mut self, target: &str, path: &str) -> Done {
        self.run(Op::Symlink { path: path.into(), target: target.into() })
    }
    fn link(&mut self, from: &str, to: &str) -> Done {
        self.run(Op::Link { from: from.into(), to: to.into() })
    }
    fn unlink(&mut self, path: &str) -> Done {
        self.run(Op::Unlink { path: path.into() })
    }
    fn rmdir(&mut self, path: &str) -> Done {
        self.run(Op::Rmdir { path: path.into() })
    }
    fn rename(&mut self, from: &str, to: &str) -> Done {
        self.run(Op::Rename { from: from.into(), to: to.into(), how: RenameHow::Replace })
    }
    fn exchange(&mut self, from: &str, to: &str) -> Done {
        self.run(Op::Rename { from: from.into(), to: to.into(), how: RenameHow::Exchange })
    }
    fn chmod(&mut self, path: &str, perm: u16) -> Done {
        self.run(Op::Chmod { path: path.into(), perm })
    }
    fn set_xattr(&mut self, path: &str, name: &str, value: &[u8]) -> Done {
        self.run(Op::SetXattr { path: path.into(), name: name.into(), value: value.to_vec() })
    }
    fn truncate(&mut self, path: &str, size: u64) -> Done {
        self.run(Op::Truncate { path: path.into(), size })
    }
    fn write(&mut self, path: &str, offset: u64, len: u64) -> Done {
        let generation = self.generation();
        self.run(Op::Write { path: path.into(), offset, len, generation })
    }
    fn append(&mut self, path: &str, len: u64) -> Done {
        self.write(path, self.size(path), len)
    }
    /// As `chattr +j` and `-j`.
    fn set_journaled(&mut self, path: &str, on: bool) -> Done {
        self.run(Op::Journal { path: path.into(), on })
    }
    fn punch(&mut self, path: &str, offset: u64, len: u64) -> Done {
        self.run(Op::Punch { path: path.into(), offset, len })
    }
    fn fsync(&mut self, path: &str) -> Done {
        self.run(Op::Fsync { path: path.into() })
    }
    fn fdatasync(&mut self, path: &str) -> Done {
        self.run(Op::Fdatasync { path: path.into() })
    }
    fn sync(&mut self) -> Done {
        self.run(Op::Sync)
    }
}

impl Driver {
    /// A driver whose paths are below `prefix` ("" for the whole volume), which is empty. Files get
    /// numbers of the model from `first_id` on.
    pub fn new(volume: &Arc<Volume>, clock: Arc<SimDevice>, prefix: &str, first_id: u32) -> Driver {
        Driver {
            volume: volume.clone(),
            base: volume.base(),
            clock,
            thread: ThreadHistory::new(prefix, first_id),
            generation: 0,
            is_synced: false,
        }
    }

    /// From now on, a successful call must be durable when it returns: the volume is opened with
    /// the option `sync`.
    pub fn expect_synced(&mut self) {
        self.is_synced = true;
    }

    /// Gives a path flags of chattr.
    pub fn set_flags(&mut self, path: &str, flags: u32) -> Done {
        let ino = self.ino(path)?;
        let old = self.base.attr(ino).map_err(Stop::Failed)?.flags;
        let change = SetAttr { flags: Some(old | flags), ..SetAttr::default() };
        self.base.set_attr(&Caller::ROOT, ino, &change).map(drop).map_err(Stop::Failed)
    }

    /// Records that all calls until now are durable.
    pub fn note_durable(&mut self) -> Done {
        let (began, ended) = (self.clock.tick(), self.clock.tick());
        self.note(Op::Sync, began, ended, Ok(()))
    }

    /// Begins with the existing files of the volume.
    pub fn adopt(&mut self) -> Done {
        let tree = Tree::of_view(&*self.base)?;
        self.thread.begin_with(&tree);
        Ok(())
    }

    /// Continues after the volume was closed and opened again.
    pub fn reopened(&mut self, volume: &Arc<Volume>) {
        self.volume = volume.clone();
        self.base = volume.base();
    }

    pub fn finish(self) -> ThreadHistory {
        self.thread
    }

    /// Inode of a path.
    pub fn ino(&self, path: &str) -> Result<Ino, Stop> {
        resolve(&*self.base, &self.thread.prefix, path).map_err(|e| Stop::Wrong(format!("{path}: {e}")))
    }

    /// Keeps a file open while its name may be removed.
    pub fn hold(&self, path: &str) -> Result<Ino, Stop> {
        let ino = self.ino(path)?;
        self.base.hold(ino).map_err(Stop::Failed)?;
        Ok(ino)
    }

    pub fn release(&self, ino: Ino) {
        self.base.release(ino, 1);
    }

    /// Creates a snapshot under a name that has the digest of its tree. A file named after the
    /// snapshot, created afterwards, says that the snapshot must exist.
    pub fn snapshot(&mut self, number: u64) -> Result<String, Stop> {
        self.sync()?;
        let tree = Tree::of_view(&*self.base)?;
        let name = format!("{number}-{:016x}", tree.digest());
        self.clock.tag(Some("creating a snapshot"));
        self.volume.create_snapshot(&name).map_err(Stop::Failed)?;
        self.create(&format!("/{SNAPSHOT_MARK}{name}"))?;
        self.sync()?;
        Ok(name)
    }

    /// As [`Driver::snapshot`], of some paths of the whole volume.
    pub fn snapshot_of(&mut self, number: u64, paths: &[&str]) -> Result<String, Stop> {
        self.sync()?;
        let tree = Tree::of_view(&*self.base)?.cut_down(paths);
        let name = format!("{number}-{:016x}", tree.digest());
        self.clock.tag(Some("creating a snapshot of paths"));
        let paths: Vec<Vec<u8>> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        self.volume.create_snapshot_of(&name, &paths).map_err(Stop::Failed)?;
        self.create(&format!("/{SNAPSHOT_MARK}{name}"))?;
        self.sync()?;
        Ok(name)
    }

    pub fn delete_snapshot(&mut self, name: &str) -> Done {
        self.unlink(&format!("/{SNAPSHOT_MARK}{name}"))?;
        self.sync()?;
        self.clock.tag(Some("deleting a snapshot"));
        self.volume.delete_snapshot(name).map_err(Stop::Failed)
    }

    /// One append that arrives in two parts, with a `sync` between them that says nothing about it
    /// (on a mount, the kernel splits a write at the end of its first page).
    pub fn append_in_parts(&mut self, path: &str, first: u64, rest: u64) -> Done {
        let (ino, offset) = (self.ino(path)?, self.size(path));
        let file = self.thread.now().resolve(path).unwrap_or(0);
        let generation = self.generation();
        let bytes = crate::model::stamp::bytes(file, generation, offset, first + rest);
        let op = Op::Write { path: path.into(), offset, len: first + rest, generation };
        self.clock.tag(Some(&op.to_string()));
        let began = self.clock.tick();
        let (part, next) = bytes.split_at(first as usize);
        let how = WriteHow { is_part: true, ..WriteHow::default() };
        let result = self.base.write(ino, offset, part, how).and_then(|_| {
            let base = self.base.clone();
            let sync = std::thread::spawn(move || base.sync_all());
            // A sync that does not wait for the rest is over by then.
            let end = Instant::now() + Duration::from_millis(20);
            while !sync.is_finished() && Instant::now() < end {
                std::thread::yield_now();
            }
            let written = self.base.write(ino, offset + first, next, WriteHow::default());
            sync.join().expect("no panic")?;
            written.map(drop)
        });
        let ended = self.clock.tick();
        self.note(op, began, ended, result)
    }

    /// A transaction that ends as `work` decides.
    pub fn transaction(&mut self, work: impl FnOnce(&mut InTransaction<'_>) -> Result<End, Stop>) -> Done {
        let open = self.volume.begin(TxOptions::default()).into_shared();
        let mut inside = self.inside(&open);
        let end = work(&mut inside)?;
        let ops = inside.ops;
        self.end(&open, ops, end)
    }

    fn inside<'a>(&'a mut self, open: &'a SharedTransaction) -> InTransaction<'a> {
        InTransaction {
            view: open,
            prefix: &self.thread.prefix,
            state: self.thread.now().clone(),
            generation: &mut self.generation,
            ops: Vec::new(),
        }
    }

    /// A transaction of two parts. The first, everything at and below `paths`, is committed
    /// separately (`xact tx commit --only`), and the rest as `end` says.
    pub fn transaction_in_parts(
        &mut self,
        paths: &[&str],
        part: impl FnOnce(&mut InTransaction<'_>) -> Done,
        rest: impl FnOnce(&mut InTransaction<'_>) -> Done,
        end: End,
    ) -> Done {
        let open = self.volume.begin(TxOptions::default()).into_shared();
        let mut inside = self.inside(&open);
        part(&mut inside)?;
        let first = std::mem::take(&mut inside.ops);
        rest(&mut inside)?;
        let second = inside.ops;
        let prefixed: Vec<String> =
            paths.iter().map(|path| format!("{}{path}", self.thread.prefix)).collect();
        self.clock.tag(Some("commit of a part of a transaction"));
        let began = self.clock.tick();
        let result = open.commit_only(&prefixed, Durability::Durable, &mut ()).map(drop);
        let ended = self.clock.tick();
        self.note(Op::Commit { ops: first, durable: true }, began, ended, result)?;
        self.end(&open, second, end)
    }

    /// A transaction that is persisted on the volume (`xact run --leave-open --persist`), opened
    /// from there again, and decided after `meanwhile`, which creates no file. Its part creates
    /// `/one/part-ID`, its rest `/two/done-ID`. Outside, a file is named after its state:
    /// `/keeping-ID` before it is persisted, then `/kept-ID`; `/dropping-ID` before it is dropped,
    /// then `/dropped-ID`.
    pub fn kept_transaction(
        &mut self,
        part: impl FnOnce(&mut InTransaction<'_>) -> Done,
        rest: impl FnOnce(&mut InTransaction<'_>) -> Done,
        meanwhile: impl FnOnce(&mut Driver) -> Done,
        decision: Decision,
    ) -> Done {
        let open = self.volume.begin(TxOptions::default()).into_shared();
        let id = open.options().id;
        let stands = |what: &str| format!("/{what}-{id}");
        self.create(&stands("keeping"))?;
        let mut inside = self.inside(&open);
        part(&mut inside)?;
        inside.create(&format!("/one/part-{id}"))?;
        let mut first = std::mem::take(&mut inside.ops);
        rest(&mut inside)?;
        inside.create(&format!("/two/done-{id}"))?;
        let second = inside.ops;
        self.clock.tag(Some("keeping a transaction"));
        open.persist(PersistedInfo::default()).map_err(Stop::Failed)?;
        self.rename(&stands("keeping"), &stands("kept"))?;
        drop(open);
        let open = self.volume.reopen_transaction(id).map_err(Stop::Failed)?.into_shared();
        meanwhile(self)?;
        if decision == Decision::Drop {
            self.rename(&stands("kept"), &stands("dropping"))?;
            self.sync()?;
            self.clock.tag(Some("dropping a kept transaction"));
            open.abort_persisted().map_err(Stop::Failed)?;
            return self.rename(&stands("dropping"), &stands("dropped"));
        }
        if decision == Decision::InParts {
            self.clock.tag(Some("commit of a part of a kept transaction"));
            let began = self.clock.tick();
            let result = open.commit_only(&["/one"], Durability::Durable, &mut ()).map(drop);
            let ended = self.clock.tick();
            self.note(Op::Commit { ops: first, durable: true }, began, ended, result)?;
            return self.end(&open, second, End::Commit);
        }
        first.extend(second);
        let end = if decision == Decision::Commit { End::Commit } else { End::CommitOrdered };
        self.end(&open, first, end)
    }

    /// A transaction that fails because `outside` changes what it has written. It leaves no change.
    pub fn transaction_overtaken(
        &mut self,
        inside: impl FnOnce(&mut InTransaction<'_>) -> Done,
        outside: impl FnOnce(&mut Driver) -> Done,
    ) -> Done {
        let open = self.volume.begin(TxOptions::default()).into_shared();
        inside(&mut self.inside(&open))?;
        outside(self)?;
        self.clock.tag(Some("commit of a transaction with a conflict"));
        match open.commit_with(Durability::Durable) {
            Err(Error::Conflict { .. }) => Ok(()),
            other => Err(Stop::Wrong(format!("a transaction that should conflict: {other:?}"))),
        }
    }

    fn end(&mut self, open: &SharedTransaction, ops: Vec<Op>, end: End) -> Done {
        let durability = match end {
            End::Abort => {
                open.abort();
                return Ok(());
            }
            End::Commit => Durability::Durable,
            End::CommitOrdered => Durability::Ordered,
        };
        let op = Op::Commit { ops, durable: end == End::Commit };
        self.clock.tag(Some("commit of a transaction"));
        let began = self.clock.tick();
        let result = open.commit_with(durability);
        let ended = self.clock.tick();
        self.note(op, began, ended, result)
    }

    /// Records the outcome of `op`, which must be the model's.
    fn note(&mut self, op: Op, began: u64, ended: u64, result: xact_types::Result<()>) -> Done {
        let shown = op.to_string();
        match result {
            Ok(()) => self
                .thread
                .push(op, began, Some(ended))
                .map_err(|e| Stop::Wrong(format!("{shown} succeeded, the model says: {e}"))),
            // For an operation that is wrong in two ways, pjdfstest checks the choice of errno.
            Err(Error::Posix(errno)) => match self.thread.now().clone().apply(&op) {
                Err(_) => Ok(()),
                Ok(_) => Err(Stop::Wrong(format!("{shown} gave {errno}, the model sees no reason"))),
            },
            // Refused cleanly for lack of space: nothing happened.
            Err(Error::NoSpace | Error::DoesNotFit(_)) => Ok(()),
            Err(error @ (Error::Conflict { .. } | Error::TooLarge { .. } | Error::Corrupt(_))) => {
                Err(Stop::Wrong(format!("{shown}: {error}")))
            }
            Err(error) => {
                let _ = self.thread.push(op, began, None);
                Err(Stop::Failed(error))
            }
        }
    }
}

impl FileOps for Driver {
    fn run(&mut self, op: Op) -> Done {
        self.clock.tag(Some(&op.to_string()));
        let file = |path: &str| self.thread.now().resolve(path).unwrap_or(0);
        let began = self.clock.tick();
        let result = perform(&*self.base, &self.thread.prefix, &op, &file);
        let ended = self.clock.tick();
        let done = result.is_ok();
        self.note(op, began, ended, result)?;
        if done && self.is_synced { self.note_durable() } else { Ok(()) }
    }

    fn generation(&mut self) -> u32 {
        self.generation += 1;
        self.generation
    }

    fn size(&self, path: &str) -> u64 {
        size(self.thread.now(), path)
    }
}

fn size(state: &crate::model::State, path: &str) -> u64 {
    let file = state.resolve(path).ok().and_then(|id| state.node(id)).and_then(|n| n.file());
    file.map_or(0, |bytes| bytes.len() as u64)
}

/// The inside of a transaction.
pub struct InTransaction<'a> {
    view: &'a SharedTransaction,
    prefix: &'a str,
    state: crate::model::State,
    generation: &'a mut u32,
    ops: Vec<Op>,
}

impl InTransaction<'_> {
    /// A part that is undone completely, unless `work` returns true.
    pub fn savepoint(&mut self, work: impl FnOnce(&mut Self) -> Result<bool, Stop>) -> Done {
        let savepoint = self.view.savepoint().map_err(Stop::Failed)?;
        let (state, done) = (self.state.clone(), self.ops.len());
        if work(self)? {
            return self.view.release_savepoint(savepoint).map_err(Stop::Failed);
        }
        self.view.roll_back(savepoint).map_err(Stop::Failed)?;
        self.state = state;
        self.ops.truncate(done);
        Ok(())
    }
}

impl FileOps for InTransaction<'_> {
    fn run(&mut self, op: Op) -> Done {
        let file = |path: &str| self.state.resolve(path).unwrap_or(0);
        let result = perform(self.view, self.prefix, &op, &file);
        match (result, self.state.apply(&op)) {
            (Ok(()), Ok(_)) => {
                if !op.is_sync() {
                    self.ops.push(op);
                }
                Ok(())
            }
            (Err(Error::Posix(_)), Err(_)) => Ok(()),
            // Refused cleanly for lack of space: nothing happened.
            (Err(Error::NoSpace | Error::DoesNotFit(_)), _) => Ok(()),
            (Err(error @ (Error::Io { .. } | Error::Poisoned(_))), _) => Err(Stop::Failed(error)),
            (ours, model) => Err(Stop::Wrong(format!(
                "{op} gave {ours:?}, the model says {model:?}; in a transaction, after {}",
                self.ops.iter().map(|op| op.to_string()).collect::<Vec<_>>().join("; ")
            ))),
        }
    }

    fn generation(&mut self) -> u32 {
        *self.generation += 1;
        *self.generation
    }

    fn size(&self, path: &str) -> u64 {
        size(&self.state, path)
    }
}

fn resolve(view: &dyn View, prefix: &str, path: &str) -> xact_types::Result<Ino> {
    let mut ino = Ino::ROOT;
    for name in prefix.split('/').chain(path.split('/')).filter(|n| !n.is_empty()) {
        ino = view.lookup(ino, name.as_bytes())?.ino;
    }
    Ok(ino)
}

/// Does `op` on `view`. `file` returns the model's number of a file, for its stamps.
fn perform(view: &dyn View, prefix: &str, op: &Op, file: &dyn Fn(&str) -> u32) -> xact_types::Result<()> {
    let caller = &Caller::ROOT;
    let at = |path: &str| resolve(view, prefix, path);
    let place = |path: &'_ str| -> xact_types::Result<(Ino, Vec<u8>)> {
        let (dir, name) = path.rsplit_once('/').ok_or(Error::Posix(Errno::EINVAL))?;
        Ok((at(dir)?, name.as_bytes().to_vec()))
    };
    match op {
        Op::Create { path, perm } => {
            let (dir, name) = place(path)?;
            view.make_node(caller, dir, &name, xact_fs::FileKind::Regular.mode_bits() | perm, 0).map(drop)
        }
        Op::Mkdir { path, perm } => {
            let (dir, name) = place(path)?;
            view.make_dir(caller, dir, &name, *perm).map(drop)
        }
        Op::Symlink { path, target } => {
            let (dir, name) = place(path)?;
            view.make_symlink(caller, dir, &name, target.as_bytes()).map(drop)
        }
        Op::Link { from, to } => {
            let (dir, name) = place(to)?;
            view.link(caller, at(from)?, dir, &name).map(drop)
        }
        Op::Unlink { path } => {
            let (dir, name) = place(path)?;
            view.unlink(caller, dir, &name)
        }
        Op::Rmdir { path } => {
            let (dir, name) = place(path)?;
            view.remove_dir(caller, dir, &name)
        }
        Op::Rename { from, to, how } => {
            let (from, to) = (place(from)?, place(to)?);
            view.rename(caller, (from.0, &from.1), (to.0, &to.1), *how)
        }
        Op::Chmod { path, perm } => {
            let change = SetAttr { perm: Some(*perm), ..SetAttr::default() };
            view.set_attr(caller, at(path)?, &change).map(drop)
        }
        Op::Chown { path, uid, gid } => {
            let change = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
            view.set_attr(caller, at(path)?, &change).map(drop)
        }
        Op::SetXattr { path, name, value } => {
            view.set_xattr(caller, at(path)?, name.as_bytes(), value, XattrHow::Set)
        }
        Op::RemoveXattr { path, name } => view.remove_xattr(caller, at(path)?, name.as_bytes()),
        Op::Truncate { path, size } => {
            let change = SetAttr { size: Some(*size), ..SetAttr::default() };
            view.set_attr(caller, at(path)?, &change).map(drop)
        }
        Op::Write { path, offset, len, generation } => {
            let bytes = crate::model::stamp::bytes(file(path), *generation, *offset, *len);
            view.write(at(path)?, *offset, &bytes, WriteHow::default()).map(drop)
        }
        Op::Punch { path, offset, len } => {
            view.allocate(&Caller::ROOT, at(path)?, *offset, *len, Allocate::PunchHole)
        }
        Op::ZeroRange { path, offset, len, keep_size } => view.allocate(
            &Caller::ROOT,
            at(path)?,
            *offset,
            *len,
            Allocate::ZeroRange { keep_size: *keep_size },
        ),
        Op::Journal { path, on } => {
            let ino = at(path)?;
            let old = view.attr(ino)?.flags;
            let flags = if *on { old | flag::JOURNAL_DATA } else { old & !flag::JOURNAL_DATA };
            let change = SetAttr { flags: Some(flags), ..SetAttr::default() };
            view.set_attr(caller, ino, &change).map(drop)
        }
        Op::Reserve { path, offset, len, keep_size } => view.allocate(
            &Caller::ROOT,
            at(path)?,
            *offset,
            *len,
            Allocate::Reserve { keep_size: *keep_size },
        ),
        Op::Fsync { path } => view.sync_file(at(path)?, false),
        Op::Fdatasync { path } => view.sync_file(at(path)?, true),
        Op::Sync => view.sync_all(),
        Op::Commit { .. } => unreachable!("commits go through Session::transaction"),
    }
}
