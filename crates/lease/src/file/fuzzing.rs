//! What a directory's names and files may say, checked for what must hold of all of them.

use super::content::{Content, Undecodable, checksum};
use super::head::{Head, alive_claim};
use crate::record::FORMAT;

/// A file's name is a head only if it is what that head would be called.
pub fn head_name(name: &str) {
    if let Ok(head) = Head::parse(name) {
        assert_eq!(head.to_string(), name);
        let renewed = head.renewed(head.nonce, head.expires);
        assert!(renewed.number >= head.number);
        assert_eq!(Head::parse(&renewed.to_string()), Ok(renewed));
    }
    let _ = alive_claim(name);
}

/// A file that is read as a record is one that could have been written.
pub fn record_file(bytes: &[u8]) {
    match Content::decode(bytes) {
        Ok(content) => assert_eq!(Content::decode(&content.encode()), Ok(content)),
        Err(Undecodable::Newer(format)) => assert!(format > FORMAT),
        Err(Undecodable::Damaged(_)) => {}
    }
}

/// The same with a first line that fits, which chance would never find.
pub fn record_json(json: &[u8]) {
    let mut bytes = format!("tenure-lease {FORMAT} {:016x}\n", checksum(json)).into_bytes();
    bytes.extend_from_slice(json);
    record_file(&bytes);
}
