//! A transaction around the calls of a thread: from `xact_tx_thread_begin` to
//! `xact_tx_thread_commit` all of its system calls find the view of the transaction in place of the
//! volume, and so do those of the threads and processes that it starts in it
//! (docs/adr/capi-a-namespace-for-a-while.md).
//!
//! In order, at the begin:
//! 1. Find what is open on the volume. With one thread: descriptors, which are opened again in the
//!    view, and mappings, which cannot be. With several, no descriptor number may be moved, because
//!    another thread may close it and reuse the number: the begin is refused for descriptors that
//!    stay open (`xact_namespace::staying`).
//! 2. Begin: the control descriptor stands for the transaction, and closing it aborts.
//! 3. Enter a new mount namespace of this thread in which the view covers every mount of the
//!    volume.
//! 4. With one thread: replace the descriptors found in step 1 by descriptors of the view.
//!
//! At the end the thread first returns to the namespace that it came from. If that fails, the
//! transaction is open as before. Then it commits or aborts. With one thread the original
//! descriptors get their numbers back, and after a commit the files that were opened inside are
//! opened again outside. With several, descriptors are left alone, and the daemon makes them refer
//! to the committed files (`COMMIT_FOLLOW`).

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use xact_control::abi::{BEGIN_OWN_INODES, COMMIT_FOLLOW, COMMIT_RETAIN};
use xact_control::client::{Channel, SavepointHandle};
use xact_namespace::descriptors::{Moved, Scope, Survey};
use xact_namespace::long_path;
use xact_namespace::mappings;
use xact_namespace::mount::Mount;
use xact_namespace::mounts;
use xact_namespace::namespace::{Bound, Home, Namespace, UserNamespace};
use xact_namespace::staying;

use crate::failure::Failed;
use crate::transaction::check_commit_flags;

/// Flags of a begin that the library evaluates, not the daemon; the same numbers as in `xact.h`.
const BEGIN_LEAVE_OUTSIDE: u32 = 0x1_0000;
const BEGIN_USER_NAMESPACE: u32 = 0x2_0000;
const BEGIN_OURS: u32 = BEGIN_LEAVE_OUTSIDE | BEGIN_USER_NAMESPACE;

/// The transaction around a thread's calls.
struct ThreadTx {
    /// The process that began it. A child that was forked inside has a copy of this struct, and may
    /// not end the transaction.
    process: u32,
    /// The mount's folder in the view, for savepoints.
    folder: File,
    own: Option<Own>,
    /// Savepoints: one for each inner begin, and one for the outermost begin under `xact run`.
    begins: Vec<u64>,
}

/// The state of a transaction that is not part of another one.
struct Own {
    id: u64,
    channel: Channel,
    mount: Mount,
    moved: Moved,
    home: Home,
    bound: Bound,
}

thread_local! {
    static THREAD_TX: RefCell<Option<ThreadTx>> = const { RefCell::new(None) };
}

/// Begins a transaction, or a part of the open one.
pub fn begin(at: Option<&Path>, flags: u32) -> Result<(), Failed> {
    THREAD_TX.with_borrow_mut(|tx| {
        if tx.as_ref().is_some_and(|tx| tx.process != std::process::id()) {
            // The parent restores its descriptors and namespace, so nothing is dropped here.
            std::mem::forget(tx.take());
        }
        match tx {
            Some(tx) => tx.begin_within(),
            None => {
                *tx = Some(ThreadTx::begin(at, flags)?);
                Ok(())
            }
        }
    })
}

/// Commits the innermost begin.
pub fn commit(flags: u32) -> Result<(), Failed> {
    check_commit_flags(flags)?;
    end(|tx| match tx.begins.pop() {
        Some(savepoint) => {
            let done = SavepointHandle::with_number(&tx.folder, savepoint).and_then(SavepointHandle::release);
            (tx.is_over(), done.map_err(|e| Failed::of_io(&e)))
        }
        None => match tx.own.take() {
            Some(own) => own.commit(flags, tx.folder.as_raw_fd(), &mut tx.own),
            None => (true, Err(Failed::none_open())),
        },
    })
}

/// Aborts the innermost begin.
pub fn abort() -> Result<(), Failed> {
    end(|tx| match tx.begins.pop() {
        Some(savepoint) => {
            let done =
                SavepointHandle::with_number(&tx.folder, savepoint).and_then(SavepointHandle::roll_back);
            (tx.is_over(), done.map_err(|e| Failed::of_io(&e)))
        }
        None => match tx.own.take() {
            Some(own) => own.abort(&mut tx.own),
            None => (true, Err(Failed::none_open())),
        },
    })
}

/// Runs an action that ends a begin. The action returns whether the whole transaction has ended.
fn end(action: impl FnOnce(&mut ThreadTx) -> (bool, Result<(), Failed>)) -> Result<(), Failed> {
    THREAD_TX.with_borrow_mut(|slot| {
        let tx = slot.as_mut().ok_or_else(Failed::none_open)?;
        if tx.process != std::process::id() {
            return Err(Failed::of_parent());
        }
        let (over, result) = action(tx);
        if over {
            *slot = None;
        }
        result
    })
}

/// How many begins are open, and the number of the transaction (0 within `xact run`).
pub fn status() -> (u32, u64) {
    THREAD_TX.with_borrow(|tx| match tx {
        Some(tx) => {
            let id = tx.own.as_ref().map_or(0, |own| own.id);
            (tx.begins.len() as u32 + u32::from(tx.own.is_some()), id)
        }
        None => (0, 0),
    })
}

/// Whether the commit of the transaction is known to be refused. Under `xact run`, that command
/// reports it.
pub fn is_doomed() -> Result<bool, Failed> {
    THREAD_TX.with_borrow(|tx| {
        let tx = tx.as_ref().ok_or_else(Failed::none_open)?;
        let doomed = tx.own.as_ref().map_or(Ok(false), |own| own.channel.is_doomed());
        doomed.map_err(|e| Failed::of_io(&e))
    })
}

/// Runs an action on the folder of the view, for savepoints.
pub fn in_view<R>(action: impl FnOnce(&File) -> io::Result<R>) -> Result<R, Failed> {
    THREAD_TX.with_borrow(|tx| {
        let tx = tx.as_ref().ok_or_else(Failed::none_open)?;
        action(&tx.folder).map_err(|e| Failed::of_io(&e))
    })
}

impl ThreadTx {
    fn begin(at: Option<&Path>, flags: u32) -> Result<ThreadTx, Failed> {
        let mount = mounts::serving(at).map_err(|e| Failed::of_namespace(&e))?;
        let process = std::process::id();
        if mount.is_view() {
            let folder = File::open(&mount.point).map_err(|e| Failed::of_io(&e))?;
            let inner = SavepointHandle::of(&folder).map_err(|e| Failed::of_io(&e))?;
            return Ok(ThreadTx { process, folder, own: None, begins: vec![inner.number()] });
        }
        let (own, folder) = Own::begin(mount, flags)?;
        Ok(ThreadTx { process, folder, own: Some(own), begins: Vec::new() })
    }

    fn begin_within(&mut self) -> Result<(), Failed> {
        let inner = SavepointHandle::of(&self.folder).map_err(|e| Failed::of_io(&e))?;
        self.begins.push(inner.number());
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.own.is_none() && self.begins.is_empty()
    }
}

impl Own {
    /// Also returns the volume's folder in the view.
    fn begin(mount: Mount, flags: u32) -> Result<(Own, File), Failed> {
        let inside = |e: xact_namespace::Error| Failed::of_namespace(&e);
        let io = |e: io::Error| Failed::of_io(&e);
        let none = |e: io::Error| Failed::of_channel(&mount.point, &e);
        let user = match flags & BEGIN_USER_NAMESPACE {
            0 => UserNamespace::Refused,
            _ => UserNamespace::Accepted,
        };
        let several = staying::threads() > 1;
        let mut before = Survey::none();
        if flags & BEGIN_LEAVE_OUTSIDE == 0 {
            if several {
                staying::check(&mount).map_err(inside)?;
            } else {
                before = Survey::of_volume(&mount, Scope::All).map_err(inside)?;
                mappings::check(&mount).map_err(inside)?;
            }
        }
        let channel = Channel::open(&mount.point).map_err(none)?;
        let own_inodes = if several { BEGIN_OWN_INODES } else { 0 };
        let (id, _) = channel.begin(flags & !BEGIN_OURS | own_inodes).map_err(none)?;
        let (home, mut namespace) = Namespace::visit(&mount, user).map_err(inside)?;
        let mut enter = || {
            let bound = namespace.show(id).map_err(inside)?;
            let folder = File::open(&mount.point).map_err(io)?;
            Ok((before.reopen(&bound).map_err(inside)?, bound, folder))
        };
        match enter() {
            Ok((moved, bound, folder)) => Ok((Own { id, channel, mount, moved, home, bound }, folder)),
            Err(failed) => {
                home.go().map_err(inside)?;
                Err(failed)
            }
        }
    }

    /// Refuses to end if a descriptor number would have to be moved while other threads run.
    fn check_end(&self) -> Result<(), Failed> {
        match self.moved.first() {
            Some(first) if staying::threads() > 1 => {
                let message = format!(
                    "threads that were started in the transaction still run, and {first} was opened before it and \
                     has to be put back: join them first. The transaction is open as before"
                );
                Err(Failed::new(libc::EBUSY, message))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the transaction has ended, and the result. If it stays open, it is put back
    /// into `slot`. `ours`: a descriptor in the view that belongs to the library.
    ///
    /// Leaves the namespace first, which can be undone, and then commits, which cannot.
    fn commit(self, flags: u32, ours: RawFd, slot: &mut Option<Own>) -> (bool, Result<(), Failed>) {
        let several = staying::threads() > 1;
        // With one thread they are opened again outside; with several the daemon redirects them.
        let opened = if several { Survey::none() } else { self.opened(ours) };
        let folder = self.folder();
        let inside = match self.check_end().and_then(|()| self.go_home()) {
            Ok(inside) => inside,
            Err(failed) => {
                *slot = Some(self);
                return (false, Err(failed));
            }
        };
        let follow = if several { COMMIT_FOLLOW } else { 0 };
        match self.channel.commit(flags | follow) {
            Err(error) if flags & COMMIT_RETAIN != 0 => match inside.go() {
                Ok(()) => {
                    *slot = Some(self);
                    (false, Err(Failed::of(error)))
                }
                // The channel aborts when it is closed.
                Err(back) => {
                    self.put_back();
                    let message = format!("{}; and it could not be retained: {back}", error.why);
                    (true, Err(Failed { message, ..Failed::of(error) }))
                }
            },
            Err(error) => {
                self.put_back();
                (true, Err(Failed::of(error)))
            }
            Ok(()) => {
                if let Some(folder) = folder {
                    // If the folder no longer exists, the thread stays in the folder of the begin.
                    let _ = long_path::enter(&folder);
                }
                let Own { moved, bound, mount, .. } = self;
                moved.settle(&bound);
                opened.take_out(&mount);
                (true, Ok(()))
            }
        }
    }

    /// Leaves the namespace first, as `commit` does.
    fn abort(self, slot: &mut Option<Own>) -> (bool, Result<(), Failed>) {
        if let Err(failed) = self.check_end().and_then(|()| self.go_home()) {
            *slot = Some(self);
            return (false, Err(failed));
        }
        let aborted = self.channel.abort().map_err(|e| Failed::of_io(&e));
        self.put_back();
        (true, aborted)
    }

    /// Restores the descriptors that were opened before, after an end without changes.
    fn put_back(self) {
        let Own { moved, bound, .. } = self;
        moved.restore(&bound);
    }

    /// The descriptors that were opened in the view.
    fn opened(&self, ours: RawFd) -> Survey {
        Survey::of_view(&self.bound)
            .map_or_else(|_| Survey::none(), |opened| opened.without(&self.moved, ours))
    }

    /// Leaves the namespace of the transaction; returns the way back into it.
    fn go_home(&self) -> Result<Home, Failed> {
        let inside = |e: xact_namespace::Error| Failed::of_namespace(&e);
        let here = Home::here().map_err(inside)?;
        self.home.go().map_err(inside)?;
        Ok(here)
    }

    /// The current folder, if it is in the view.
    fn folder(&self) -> Option<PathBuf> {
        self.bound.has_current_folder().then(std::env::current_dir)?.ok()
    }
}
