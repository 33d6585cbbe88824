//! What the fuzz targets share.

pub mod planted;
pub mod room;
pub mod world;

use arbitrary::Unstructured;
use tenure_cluster::{Address, Incarnation, Node};

/// Cuts input into pieces: a length of one byte, then that many.
pub fn pieces(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (&len, rest) = input.split_first()?;
        let (piece, rest) = rest.split_at(rest.len().min(len.into()));
        input = rest;
        Some(piece)
    })
}

/// The node at the address with this number.
pub fn node(place: usize, incarnation: u64) -> Node {
    let address = Address::new(&format!("n{place}:7400")).expect("an address");
    Node { address, incarnation: Incarnation(incarnation) }
}

/// A number below `end`; the lowest when the input is used up.
pub fn below(input: &mut Unstructured<'_>, end: usize) -> usize {
    input.int_in_range(0..=end.saturating_sub(1)).unwrap_or(0)
}
