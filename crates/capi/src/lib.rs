//! The C library `libxact` (include/xact.h, libxact(3)): transactions on a mounted volume, from any
//! language that can call C. It talks to the daemon over the control ioctls.
//!
//! ```text
//!   exports        the C functions
//!   thread_tx      the transaction around the calls of a thread
//!   transaction    a transaction with a handle
//!   mount_path     the mount point above a path
//!   failure        errno, and the last failure of each thread
//! ```
//!
//! Inside a transaction (`xact run`) a begin is a savepoint in it, so that a program that uses
//! transactions works there as outside.
//!
//! Every function may be called from any thread, but one handle from one thread at a time.

mod exports;
mod failure;
mod mount_path;
mod thread_tx;
mod transaction;
