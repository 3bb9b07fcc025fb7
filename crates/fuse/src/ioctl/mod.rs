//! Requests by ioctl: transactions, snapshots, settings of the volume, atomic writes.

pub mod absent_pages;
pub mod answer;
pub mod atomic_write;
pub mod batch;
pub mod change_list;
pub mod dispatch;
pub mod keep_ioctl;
pub mod modes;
pub mod mount_info;
pub mod savepoints;
pub mod sections;
pub mod snapshots;
pub mod tx_ioctl;
pub mod usage;
pub mod volume_ioctls;
pub mod write_batch;
