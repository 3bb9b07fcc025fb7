#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| xact_testkit::fuzz::check::run(data));
