//! What the other end of a stream of numbered messages says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_cluster::fuzzing;
use tenure_fuzz::pieces;

fuzz_target!(|input: &[u8]| {
    let Some((&first, rest)) = input.split_first() else { return };
    if first < 128 {
        // Bit by bit, what becomes of a message that was handed out.
        let mut fates = first;
        fuzzing::packets(pieces(rest), || {
            fates = fates.rotate_right(1);
            match fates & 3 {
                0 => None,
                1 => Some(false),
                _ => Some(true),
            }
        });
    } else {
        fuzzing::acks(first - 128, pieces(rest));
    }
});
