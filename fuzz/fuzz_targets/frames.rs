//! Whatever a peer sends, in whatever pieces it arrives: the same frames, none longer than agreed,
//! and no room made for what was merely announced.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tenure_cluster::transport::frame::{self, FrameError, HEADER};
use tenure_fuzz::{planted, room};

/// Small, so that frames beyond it are within reach.
const MAX: usize = 96;

fuzz_target!(|input: &[u8]| {
    let Some((&step, stream)) = input.split_first() else { return };
    let whole = room::within(room::for_input(input), || read(stream, stream.len().max(1)));
    assert_eq!(whole, read(stream, usize::from(step).max(1)), "in pieces of {step}");

    let (bodies, refused, rest) = whole;
    let mut again = Vec::new();
    for body in &bodies {
        assert!((1..=MAX).contains(&body.len()), "a frame of {} bytes", body.len());
        frame::append(&mut again, MAX, |out| out.extend_from_slice(body)).expect("it was one");
    }
    assert!(stream.starts_with(&again), "the frames are what was sent");
    if refused.is_none() {
        assert!(rest < HEADER + MAX, "{rest} bytes are held back");
        assert_eq!(again.len() + rest, stream.len());
        assert_eq!(frame::end(&stream[again.len()..]).is_ok(), rest == 0);
    }
});

/// The bodies, why the rest was refused, and how many bytes wait for more.
fn read(stream: &[u8], step: usize) -> (Vec<Vec<u8>>, Option<FrameError>, usize) {
    let (mut read, mut bodies) = (BytesMut::new(), Vec::new());
    for piece in stream.chunks(step) {
        read.extend_from_slice(piece);
        loop {
            match planted::take(&mut read, MAX) {
                Ok(frames) if frames.is_empty() => break,
                Ok(frames) => {
                    let (count, before) = (frames.len(), bodies.len());
                    bodies.extend(frames.map(|body| body.to_vec()));
                    assert_eq!(bodies.len() - before, count);
                }
                Err(error) => return (bodies, Some(error), 0),
            }
        }
    }
    (bodies, None, read.len())
}
