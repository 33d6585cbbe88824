//! What a peer sends on the data lane.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tenure_cluster::fuzzing;
use tenure_cluster::transport::frame;
use tenure_fuzz::{pieces, room};

const MAX: usize = 1 << 10;

fuzz_target!(|input: &[u8]| {
    let mut stream = Vec::new();
    for body in pieces(input).filter(|body| !body.is_empty()) {
        frame::append(&mut stream, MAX, |out| out.extend_from_slice(body)).expect("short enough");
    }
    let mut read = BytesMut::from(&stream[..]);
    let frames = frame::take(&mut read, MAX).expect("whole frames");
    room::within(room::for_input(input), || fuzzing::data_frames(frames));
});
