//! What stores have in common that keep a record as text: who holds it, and a release that is newer
//! than this one.

use std::fmt::Display;

use tenure_lease::backend::{StoreError, StoreErrorKind};
use tenure_lease::record::{FORMAT, Holder};
use tenure_lease::{LeaseName, Owner};

/// Who is named there; one that is not ours is a name alone.
pub(crate) fn owner(text: &str) -> Owner {
    text.parse().unwrap_or_else(|()| Owner { name: text.to_owned(), incarnation: 0 })
}

/// A holder that knows nothing of us: a name, as far as we can tell from what it wrote.
pub(crate) fn foreign(written: &[u8]) -> Holder {
    let text = String::from_utf8_lossy(written);
    let name: String = text.trim().chars().take(FOREIGN_NAME_MAX).collect();
    let name = if name.is_empty() { "unknown".to_owned() } else { name };
    Holder { owner: Owner { name, incarnation: 0 }, claim: None, nonce: None, session: None }
}

/// A record that is left as it is.
pub(crate) fn newer(name: &LeaseName, format: impl Display) -> StoreError {
    StoreError::new(
        StoreErrorKind::NewerFormat,
        format!(
            "a newer release wrote the record of {name}: its format is {format}, this release \
             knows {FORMAT}; upgrade it"
        ),
    )
}

const FOREIGN_NAME_MAX: usize = 253;

#[cfg(test)]
pub(crate) mod samples {
    //! The record of which every store keeps a sample, held and released: all of its fields are set.

    use std::path::Path;
    use std::time::Duration;

    use tenure_lease::backend::{Acquire, StoreError};
    use tenure_lease::record::{Expiry, SessionRef, Version};
    use tenure_lease::{LeaseName, Nonce, Owner, Record, Token};
    use tenure_wire::samples;

    use super::Holder;

    pub(crate) const TERM: u64 = 500;
    /// What the last renewal wrote.
    pub(crate) const NONCE: Nonce = Nonce::from_bits(8);

    pub(crate) fn request() -> Acquire {
        Acquire {
            name: name(),
            claim: Nonce::from_bits(u128::MAX),
            owner: Owner { name: "pöd#1".into(), incarnation: u64::MAX },
            ttl: Duration::from_secs(30),
            session: Some(SessionRef { name: "node-1".parse().unwrap(), term: 1 << 60 }),
            note: Some(note()),
            create: true,
            takeover: None,
            expected: None,
            above: 0,
            unattended: false,
        }
    }

    pub(crate) fn name() -> LeaseName {
        "nightly".parse().unwrap()
    }

    pub(crate) fn note() -> Vec<u8> {
        vec![0, b'\n', 0xff]
    }

    pub(crate) fn held(version: &str) -> Record {
        let Acquire { claim, owner, ttl, session, .. } = request();
        Record {
            version: Version(version.to_owned()),
            token: Token::new(TERM, 0),
            holder: Some(Holder { owner, claim: Some(claim), nonce: Some(NONCE), session }),
            ttl,
            expiry: Expiry::ByObservation,
            note: note(),
        }
    }

    pub(crate) fn released(version: &str) -> Record {
        Record { holder: None, ..held(version) }
    }

    /// Checks that `written` is a sample, and that all samples of this name are `expected`.
    pub(crate) fn check(
        name: &str,
        written: Vec<u8>,
        expected: &Record,
        read: impl Fn(&[u8]) -> Result<Option<Record>, StoreError>,
    ) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/records.txt");
        samples::check_bytes(&file, name, vec![(name.to_owned(), written)], |bytes| {
            match read(bytes) {
                Ok(Some(record)) if record == *expected => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }

    /// The same for JSON, which may have fields that a later release adds.
    pub(crate) fn check_json(
        name: &str,
        written: Vec<u8>,
        expected: &Record,
        read: impl Fn(&[u8]) -> Result<Option<Record>, StoreError>,
    ) {
        let mut later = Vec::new();
        for (at, byte) in written.iter().enumerate() {
            later.push(*byte);
            // An object in an annotation is itself in a string.
            for quote in ["\"", "\\\""] {
                if *byte == b'{' && written[at + 1..].starts_with(quote.as_bytes()) {
                    later.extend(format!("{quote}added{quote}:{quote}later{quote},").bytes());
                }
            }
        }
        assert!(later.len() > written.len());
        assert_eq!(read(&later).as_ref(), Ok(&Some(expected.clone())), "with a field more");
        check(name, written, expected, read);
    }
}
