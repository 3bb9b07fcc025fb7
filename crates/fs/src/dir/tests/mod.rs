//! Tests of directories: against a model, under damage, and on real volumes together with the
//! kernel.

mod damage;
mod image;
mod kernel;
mod listing;
mod model;
mod support;

pub(super) use support::{DEFAULT, OWN, Sample};
