//! Directories in memory against a model and under damage; real volumes, both ways.

mod damage;
mod image;
mod kernel;
mod listing;
mod model;
mod support;

pub(super) use support::{DEFAULT, OWN, Sample};
