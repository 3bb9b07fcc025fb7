//! A transaction around the calls of a thread: from `fs_tx_begin` to `fs_tx_commit` all of its system calls
//! find the view of the transaction where the volume was, and so do those of the threads and processes that it
//! starts meanwhile (docs/adr/capi-a-namespace-for-a-while.md).
//!
//! In order, at the begin:
//! 1. Look at what lies on the volume already: descriptors, which are opened again in the view, and mappings,
//!    which cannot be.
//! 2. Begin: the control descriptor stands for the transaction, closing it aborts.
//! 3. Enter a mount namespace of this thread's own in which the view lies over every mount of the volume.
//! 4. Put descriptors of the view in the place of those found in 1.
//!
//! At the end, after the commit or abort: back into the namespace that the thread came from, and the original
//! descriptors to their numbers. Where it has committed, what was opened inside is opened again outside, and
//! offsets and the current folder stay; else they are as they were.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use xact_fuse::client::{Channel, Inner};
use xact_fuse::control::COMMIT_RETAIN;
use xact_inside::descriptors::{Moved, Scope, Survey};
use xact_inside::mappings;
use xact_inside::mounts::{self, Mount};
use xact_inside::namespace::{Bound, Home, Namespace};

use crate::transaction::Failed;

/// The transaction around a thread's calls.
struct Around {
    /// A child that was forked inside has a copy of this, and no say in the matter.
    process: u32,
    /// The mount's folder in the view, for savepoints.
    folder: File,
    own: Option<Own>,
    /// Savepoints: of each begin within, and of the outermost one too where it is within `xact run`.
    begins: Vec<u64>,
}

/// What belongs to a transaction of its own.
struct Own {
    id: u64,
    channel: Channel,
    mount: Mount,
    bound: Bound,
    moved: Moved,
    home: Home,
}

thread_local! {
    static AROUND: RefCell<Option<Around>> = const { RefCell::new(None) };
}

/// Begins one, or within one a part of it.
pub fn begin(at: Option<&Path>, flags: u32) -> Result<(), Failed> {
    AROUND.with_borrow_mut(|around| {
        if around.as_ref().is_some_and(|around| around.process != std::process::id()) {
            // What it holds is the parent's to put back.
            std::mem::forget(around.take());
        }
        match around {
            Some(around) => around.begin_within(),
            None => {
                *around = Some(Around::begin(at, flags)?);
                Ok(())
            }
        }
    })
}

/// Ends the innermost one.
pub fn commit(flags: u32) -> Result<(), Failed> {
    end(|around| match around.begins.pop() {
        Some(savepoint) => {
            let done = Inner::again(&around.folder, savepoint).and_then(Inner::release);
            (around.is_over(), done.map_err(|e| Failed::of_io(&e)))
        }
        None => match around.own.take() {
            Some(own) => own.commit(flags, around.folder.as_raw_fd(), &mut around.own),
            None => (true, Err(Failed::none_open())),
        },
    })
}

pub fn abort() -> Result<(), Failed> {
    end(|around| match around.begins.pop() {
        Some(savepoint) => {
            let done = Inner::again(&around.folder, savepoint).and_then(Inner::roll_back);
            (around.is_over(), done.map_err(|e| Failed::of_io(&e)))
        }
        None => {
            let result = around.own.take().map_or_else(|| Err(Failed::none_open()), Own::abort);
            (true, result)
        }
    })
}

/// Does what ends a begin; it says whether all of it is over.
fn end(action: impl FnOnce(&mut Around) -> (bool, Result<(), Failed>)) -> Result<(), Failed> {
    AROUND.with_borrow_mut(|slot| {
        let around = slot.as_mut().ok_or_else(Failed::none_open)?;
        if around.process != std::process::id() {
            return Err(Failed::of_parent());
        }
        let (over, result) = action(around);
        if over {
            *slot = None;
        }
        result
    })
}

/// How many begins are open, and the number of the transaction (0 within `xact run`).
pub fn status() -> (u32, u64) {
    AROUND.with_borrow(|around| match around {
        Some(around) => {
            let id = around.own.as_ref().map_or(0, |own| own.id);
            (around.begins.len() as u32 + u32::from(around.own.is_some()), id)
        }
        None => (0, 0),
    })
}

/// Whether the commit of the transaction is known to be refused; within `xact run` that is its to say.
pub fn is_doomed() -> Result<bool, Failed> {
    AROUND.with_borrow(|around| {
        let around = around.as_ref().ok_or(Failed::of_errno(libc::ESTALE))?;
        let doomed = around.own.as_ref().map_or(Ok(false), |own| own.channel.is_doomed());
        doomed.map_err(|e| Failed::of_io(&e))
    })
}

/// Does something with the folder of the view, for savepoints.
pub fn in_view<R>(action: impl FnOnce(&File) -> io::Result<R>) -> Result<R, Failed> {
    AROUND.with_borrow(|around| {
        let around = around.as_ref().ok_or_else(Failed::none_open)?;
        action(&around.folder).map_err(|e| Failed::of_io(&e))
    })
}

impl Around {
    fn begin(at: Option<&Path>, flags: u32) -> Result<Around, Failed> {
        let mount = mounts::serving(at).map_err(|e| Failed::of_inside(&e))?;
        let process = std::process::id();
        if mount.is_view() {
            let folder = File::open(&mount.point).map_err(|e| Failed::of_io(&e))?;
            let inner = Inner::of(&folder).map_err(|e| Failed::of_io(&e))?;
            return Ok(Around { process, folder, own: None, begins: vec![inner.number()] });
        }
        let (own, folder) = Own::begin(mount, flags)?;
        Ok(Around { process, folder, own: Some(own), begins: Vec::new() })
    }

    fn begin_within(&mut self) -> Result<(), Failed> {
        let inner = Inner::of(&self.folder).map_err(|e| Failed::of_io(&e))?;
        self.begins.push(inner.number());
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.own.is_none() && self.begins.is_empty()
    }
}

impl Own {
    /// With the volume's folder in the view.
    fn begin(mount: Mount, flags: u32) -> Result<(Own, File), Failed> {
        let inside = |e: xact_inside::Error| Failed::of_inside(&e);
        let io = |e: io::Error| Failed::of_io(&e);
        let none = |e: io::Error| Failed::of_channel(&mount.point, &e);
        let before = Survey::of_volume(&mount, Scope::All).map_err(inside)?;
        mappings::check(&mount).map_err(inside)?;
        let channel = Channel::open(&mount.point).map_err(none)?;
        let (id, _) = channel.begin(flags).map_err(none)?;
        let (home, mut namespace) = Namespace::visit(&mount).map_err(inside)?;
        let mut enter = || {
            let bound = namespace.show(id).map_err(inside)?;
            let folder = File::open(&mount.point).map_err(io)?;
            Ok((before.reopen(&bound).map_err(inside)?, bound, folder))
        };
        match enter() {
            Ok((moved, bound, folder)) => Ok((Own { id, channel, mount, bound, moved, home }, folder)),
            Err(failed) => {
                home.go(None).map_err(inside)?;
                Err(failed)
            }
        }
    }

    /// Whether it is over, and what came of it; one that is to be retained goes back to `slot`. `ours`: a
    /// descriptor in the view that the program knows nothing of.
    fn commit(self, flags: u32, ours: RawFd, slot: &mut Option<Own>) -> (bool, Result<(), Failed>) {
        let opened = Survey::of_view(&self.bound).map(|opened| opened.without(&self.moved, ours));
        let folder = self.folder();
        match self.channel.commit(flags) {
            Err(error) if flags & COMMIT_RETAIN != 0 => {
                *slot = Some(self);
                (false, Err(Failed::of(error)))
            }
            Err(error) => {
                // What the commit said is what the caller has to know.
                let _ = self.leave();
                (true, Err(Failed::of(error)))
            }
            Ok(()) => {
                let Own { home, moved, bound, mount, .. } = self;
                let back = home.go(folder.as_deref()).map_err(|e| Failed::of_inside(&e));
                moved.settle(&bound);
                if let Ok(opened) = opened {
                    opened.take_out(&mount);
                }
                (true, back)
            }
        }
    }

    fn abort(self) -> Result<(), Failed> {
        let aborted = self.channel.abort().map_err(|e| Failed::of_io(&e));
        self.leave().and(aborted)
    }

    fn leave(self) -> Result<(), Failed> {
        let back = self.home.go(None).map_err(|e| Failed::of_inside(&e));
        self.moved.restore(&self.bound);
        back
    }

    /// The current folder, where it lies in the view.
    fn folder(&self) -> Option<PathBuf> {
        self.bound.has_current_folder().then(std::env::current_dir)?.ok()
    }
}
