//! Random changes against a model of one entry a block; real volumes, both ways.

mod block_map;
mod model;
mod support;
