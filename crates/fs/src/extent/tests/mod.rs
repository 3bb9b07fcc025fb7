//! Tests of extent trees and block maps against models with one entry for each block.

mod block_map;
mod model;
mod support;
