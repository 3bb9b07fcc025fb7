//! What a transaction's commit does to the volume: validation, size, new contents.

pub(super) mod install;
pub(super) mod size;
pub(super) mod validation;
