//! `xact sync`: makes all completed changes on a mount durable.

use crate::args::Sync;
use crate::exit::Result;
use crate::{control, mounts};

pub fn sync(args: &Sync) -> Result<()> {
    control::sync(&mounts::containing(&args.at)?.point)
}
