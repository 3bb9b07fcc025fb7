#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| xact_testkit::fuzz::replay::run(data));
