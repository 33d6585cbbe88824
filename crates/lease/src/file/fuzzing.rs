//! What a directory's names and files may say, checked for what must hold of all of them.

use std::time::Duration;

use super::content::{Alive, Content, Undecodable, checksum};
use super::domain::Domain;
use super::head::{Head, alive_claim, alive_name};
use crate::Moment;
use crate::record::{FORMAT, Nonce, Owner};

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

/// Names and files as they really are, to begin with.
pub fn samples() -> [Vec<u8>; 4] {
    let (claim, id) = (Nonce::from_bits(1), Nonce::from_bits(2));
    let expires = Moment::from_nanos(77);
    let head = Head { number: 42, held: true, claim, record: id, nonce: id, expires };
    let content = Content {
        term: 7,
        claim,
        owner: Owner { name: "shop-0".into(), incarnation: 9 },
        ttl: Duration::from_secs(15),
        session: None,
        domain: Domain { boot: "boot".into(), time: "time:[1]".into() },
        alive: Some(Alive { id, device: 3, inode: 4 }),
        note: b"note".to_vec(),
    };
    let file = content.encode();
    let json = file.iter().skip_while(|byte| **byte != b'\n').skip(1).copied().collect();
    [head.to_string().into(), alive_name(claim, id).into(), file, json]
}
