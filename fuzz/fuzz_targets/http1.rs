#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omniroute_fuzz::checks::http1::check(data));
