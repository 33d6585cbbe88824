//! Every message between nodes, of this version and as the next may write it: what is read is what was meant.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_fuzz::room;

fuzz_target!(|input: &[u8]| {
    room::within(room::for_input(input) * 8, || {
        tenure_cluster::fuzzing::wire(input);
        tenure_sharding::fuzzing::wire(input);
        tenure_singleton::fuzzing::wire(input);
    });
});
