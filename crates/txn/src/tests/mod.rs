//! Transactions over a base in memory.

mod conflicts;
mod history;
mod large;
mod ops;
mod parts;
mod random;
mod real;
mod savepoints;
mod shapes;
