//! Two nodes whose digests are equal believe the same, in every detail.
//!
//! Without it: nodes think that they agree and never tell each other how they differ.

use super::super::truth::Truth;
use super::Looked;

pub(super) fn check(truth: &Truth, looked: &[Looked<'_>]) -> Option<String> {
    if truth.twins_decided {
        return None;
    }
    let mut kinds: Vec<&Looked<'_>> = Vec::new();
    for one in looked {
        let Some(same) = kinds.iter().find(|other| other.view.digest() == one.view.digest()) else {
            kinds.push(one);
            continue;
        };
        if !same.view.says_the_same(one.view) {
            return Some(format!(
                "{} and {} have one digest: {:?} {:?}",
                same.who, one.who, same.view, one.view
            ));
        }
    }
    None
}
