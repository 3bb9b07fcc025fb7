//! The FUSE front end: a mount over which every program works on a volume, unchanged.
//!
//! ```text
//!   kernel ── /dev/fuse ── channel   bytes in, bytes out, notifications
//!                          pool      worker threads
//!                          request   bytes -> Operation          reply   values -> bytes
//!                          server    Operation -> call of a View (names, contents, attributes,
//!                                    listing), the folder MNT/.xact (hidden), its ioctls (xact_control)
//!                          credentials   who calls, where the kernel has not checked it
//!                          change_list   what a control channel shows of a transaction's changes
//!                          opened    the snapshots that somebody looks into
//!                          registry  which views there are       host    the volume behind them
//!                          veil      what a commit is about to change, and who waits for that
//!                          limits    what one user may use up: see also shares (workers) and server/jobs (threads)
//!                          reaper    ends kept transactions whose time has run out
//!   session: mount, INIT, signals, unmount
//! ```
//!
//! Why the transport is our own: docs/adr/fuse-own-transport.md. What the folder `MNT/.xact`
//! looks like and who may do what there: docs/adr/fuse-hidden-folder.md.

pub mod abi;
mod calm;
mod change_list;
mod channel;
mod credentials;
mod followers;
mod host;
mod init;
mod kernel_refs;
mod limits;
mod mount;
mod node;
mod opened;
mod owner;
mod pool;
mod priority;
mod reaper;
mod registry;
mod reply;
pub mod request;
mod served;
mod server;
mod session;
mod shares;
mod signals;
mod veil;

pub use host::{Changes, CommitHow, Host, HostTransaction, Reopened};
pub use mount::{MountOptions, unmount};
pub use served::Served;
pub use server::tx_change;
pub use session::{Connection, Session, Unmounter, serve, serve_socket};

/// A line for whoever looks after the mount: the daemon's standard error is its log.
pub(crate) fn log(line: std::fmt::Arguments<'_>) {
    // Names and labels in it may be another user's.
    eprintln!("xact: {}", xact_types::printable(&line.to_string()));
}
