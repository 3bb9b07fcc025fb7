//! The transport: mounting, descriptors of `/dev/fuse`, and the threads that answer requests.

mod background;
pub mod channel;
pub mod cpu_pin;
pub mod cpu_set;
pub mod event_caller;
mod idle_threads;
pub mod loop_device;
pub mod mount;
pub mod open_guard;
pub mod parked_request;
pub mod priority;
pub mod signals;
pub mod single_caller;
pub mod thread_pool;
pub mod user_shares;
pub mod worker_pool;
