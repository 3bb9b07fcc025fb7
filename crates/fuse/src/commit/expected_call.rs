//! The child process whose calls report events of commits, and the call that it makes next (see
//! `watchers`).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

use parking_lot::Mutex;
use xact_fs::FileKind;
use xact_types::Ino;

use crate::protocol::abi::{self, EntryOut};
use crate::protocol::node::Node;
use crate::protocol::reply::VALID_SECS;
use crate::transport::event_caller::EventCaller;

/// The call that the child makes next, by folder and name.
pub(crate) enum Expected {
    Make(Ino, Vec<u8>, FileKind),
    Remove(Ino, Vec<u8>, FileKind),
    Rename((Node, Vec<u8>), (Ino, Vec<u8>), FileKind),
}

/// The child that makes calls for programs that watch, if commits report events.
#[derive(Default)]
pub(crate) struct Watchers {
    /// Whether commits report events.
    served: AtomicBool,
    /// The child; 0 also for the kernel's own requests.
    pid: AtomicU32,
    pub expected: Mutex<Option<Expected>>,
    stand_ins: AtomicU32,
    pub child: Mutex<Option<Child>>,
}

pub(crate) struct Child {
    pub caller: EventCaller,
    /// The mount's device number.
    pub device: u64,
}

impl Watchers {
    /// Starts the child, which makes the calls on the mount with this device number.
    pub fn serve(&self, device: Option<(u32, u32)>) {
        let Some((major, minor)) = device else { return };
        match EventCaller::start() {
            Ok(caller) => {
                self.pid.store(caller.pid(), Relaxed);
                *self.child.lock() = Some(Child { caller, device: libc::makedev(major, minor) });
                self.served.store(true, Relaxed);
            }
            Err(e) => crate::log(format_args!("watchers get no events of commits: {e}")),
        }
    }

    /// Called when the connection is closed.
    pub fn stop(&self) {
        self.served.store(false, Relaxed);
        self.pid.store(0, Relaxed);
        *self.child.lock() = None;
    }

    pub fn are_served(&self) -> bool {
        self.served.load(Relaxed)
    }

    /// Whether a request with this process number is one of the child.
    pub fn is_call(&self, pid: u32) -> bool {
        pid != 0 && pid == self.pid.load(Relaxed)
    }

    /// Whether the child is about to remove or rename this name. The kernel must then not remember
    /// that it does not exist.
    pub fn is_removed(&self, dir: Ino, name: &[u8]) -> bool {
        self.are_served()
            && match &*self.expected.lock() {
                Some(Expected::Remove(folder, old, _)) => *folder == dir && old == name,
                Some(Expected::Rename((folder, old), ..)) => *folder == Node::Live(dir) && old == name,
                _ => false,
            }
    }

    /// An entry that stands for a name of this type, without a lifetime.
    pub fn stand_in(&self, kind: FileKind) -> EntryOut {
        let node = Node::StandIn(self.stand_ins.fetch_add(1, Relaxed) | 1 << 31);
        // SAFETY: geteuid cannot fail and takes no memory.
        let uid = unsafe { libc::geteuid() };
        let mode = u32::from(kind.mode_bits()) | 0o700;
        let attr = abi::Attr { ino: node.id(), mode, nlink: 1, uid, ..Default::default() };
        // Its attributes do have a lifetime: only the child's call looks at them.
        EntryOut { nodeid: node.id(), attr_valid: VALID_SECS, attr, ..Default::default() }
    }
}
