//! A host that is cut off from the store, and from nothing else, does not leave the slot empty: another
//! node hosts it within a ttl and a little.

use std::time::Duration;

pub(in super::super) const NAME: &str = "the slot is filled";

pub(in super::super) fn check(filled: Option<Duration>, within: Duration) -> Option<String> {
    filled
        .is_none()
        .then(|| format!("the host lost the store {within:?} ago, and nobody else hosts"))
}
