//! File data: cached pages, their changes, and their write-back.

pub(super) mod data_mode;
mod effective_mode;
pub(super) mod fallocate;
pub(super) mod inline;
pub(super) mod page_cache;
pub(super) mod pages;
pub(super) mod read;
pub(super) mod remove;
pub(super) mod write;
pub(super) mod writeback;
