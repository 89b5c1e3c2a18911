#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| omniroute_fuzz::checks::sse::check(data));
