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
