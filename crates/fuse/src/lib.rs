//! The FUSE front end: a mount over which every program works on a volume, unchanged.
//!
//! ```text
//!   kernel ── /dev/fuse ── transport   bytes in, bytes out, notifications; workers; mounting
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
//! The reasons for a transport of our own are in docs/adr/fuse-own-transport.md. The layout and
//! permissions of the folder `MNT/.xact` are in docs/adr/fuse-hidden-folder.md.

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
pub use session::{Connection, Ended, Session, Unmounter, serve, serve_device, serve_socket};
pub use transport::mount::{MountOptions, mount_again, unmount};

/// Logs a warning.
pub(crate) fn log(line: std::fmt::Arguments<'_>) {
    // Names and labels in it may come from another user.
    tracing::warn!("{}", xact_types::printable(&line.to_string()));
}

/// Logs an event of a transaction.
pub(crate) fn log_tx(id: u64, line: std::fmt::Arguments<'_>) {
    tracing::info!(transaction = id, "{}", xact_types::printable(&line.to_string()));
}

/// Logs a failure that concerns a transaction.
pub(crate) fn warn_tx(id: u64, line: std::fmt::Arguments<'_>) {
    tracing::warn!(transaction = id, "{}", xact_types::printable(&line.to_string()));
}
