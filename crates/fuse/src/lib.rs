//! The FUSE front end: a mount over which every program works on a volume, unchanged.
//!
//! ```text
//!   kernel ── /dev/fuse ── transport   bytes in, bytes out, notifications; worker threads; mounting
//!                          protocol    bytes -> Operation, values -> bytes, node ids; no I/O
//!                          server      which view a request is for; transactions that are open
//!               by what a request is:
//!                          ops         file operations, as calls of a view
//!                          ioctl       transactions, snapshots, settings, atomic writes
//!                          dotxact     the folder MNT/.xact
//!                          commit      the end of a transaction; what the kernel forgets with it
//!   session: mount, INIT, signals, unmount
//! ```
//!
//! Why the transport is our own: docs/adr/fuse-own-transport.md. What the folder `MNT/.xact`
//! looks like and who may do what there: docs/adr/fuse-hidden-folder.md.

mod commit;
mod dotxact;
mod ioctl;
mod ops;
pub mod protocol;
mod server;
mod session;
mod transport;

pub use ioctl::tx_ioctl::tx_change;
pub use server::user_limits::limit_users;
pub use session::{Connection, Session, Unmounter, serve, serve_socket};
pub use transport::mount::{MountOptions, unmount};

/// A line for whoever looks after the mount: the daemon's standard error is its log.
pub(crate) fn log(line: std::fmt::Arguments<'_>) {
    // Names and labels in it may be another user's.
    eprintln!("xact: {}", xact_types::printable(&line.to_string()));
}
