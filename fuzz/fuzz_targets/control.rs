#![no_main]

#[path = "../../crates/fuse/tests/control/target.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::run(data));
