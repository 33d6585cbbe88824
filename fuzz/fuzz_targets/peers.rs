#![no_main]
libfuzzer_sys::fuzz_target!(|_i: &[u8]| {});
