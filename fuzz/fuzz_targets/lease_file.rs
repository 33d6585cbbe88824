//! The names and the files in the directory of the store `file:`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_fuzz::room;
use tenure_lease::fuzzing::{head_name, record_file, record_json};

fuzz_target!(|input: &[u8]| {
    room::within(room::for_input(input), || {
        if let Ok(name) = std::str::from_utf8(input) {
            head_name(name);
        }
        record_file(input);
        record_json(input);
    });
});
