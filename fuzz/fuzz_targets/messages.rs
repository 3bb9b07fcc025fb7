#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| xact_fuse::protocol::request::fuzz(data));
