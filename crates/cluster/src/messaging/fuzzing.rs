//! What a peer may send on the data lane, checked for what must hold of all of it.

use super::wire::{self, Head};
use crate::transport::Frames;

/// Takes frames apart as the reader does, whatever is in them.
pub fn data_frames(mut frames: Frames) {
    let mut out = Vec::new();
    while let Some(first) = frames.first() {
        let left = frames.len();
        match wire::head(first) {
            Head::To { kind, name } => {
                assert!(name.len() <= wire::NAME_MAX);
                let name = name.to_vec();
                let same = |a: &[u8], b: &[u8]| wire::head(a) == wire::head(b);
                let mut run = frames.take_same(same).compact();
                assert!(!run.is_empty(), "a run holds its first frame");
                while run.read_next(|frame| again(frame, kind, &name, &mut out)).is_some() {}
                assert_eq!((run.len(), run.bytes()), (0, 0));
            }
            Head::Back(back) => {
                out.clear();
                wire::put_back(&mut out, back);
                assert_eq!(wire::head(&out), Head::Back(back));
                assert!(out.len() <= first.len(), "what was not understood is left out");
                frames.read_next(|_| ());
            }
            Head::Hold(name) | Head::Release(name) => {
                assert!(name.len() <= wire::NAME_MAX);
                frames.read_next(|_| ());
            }
            Head::Other => {
                frames.read_next(|_| ());
            }
        }
        assert!(frames.len() < left, "every turn takes a frame");
    }
    assert_eq!((frames.len(), frames.bytes()), (0, 0));
}

/// A frame to a receiver is read, and written again byte by byte.
fn again(frame: &[u8], kind: u8, name: &[u8], out: &mut Vec<u8>) {
    let delivered = wire::delivered(frame).expect("its head said that it is to a receiver");
    assert_eq!(delivered.ask.is_some(), kind == wire::ASK);
    out.clear();
    match delivered.ask {
        Some(ask) => wire::put_ask(out, name, ask),
        None => wire::put_to(out, kind, name),
    }
    out.extend_from_slice(delivered.body);
    assert_eq!(out, frame);
}
