//! Terms strictly rise: each tenure of a lease has a higher token than all that were granted, and
//! all that began, before it. Only a process that stood still between the grant and the start may
//! begin late.

use std::collections::{BTreeMap, BTreeSet};

use super::{Event, History, Violation};
use tenure_lease::{LeaseName, Token};

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut granted: BTreeMap<&LeaseName, Token> = BTreeMap::new();
    let mut started: BTreeMap<&LeaseName, Token> = BTreeMap::new();
    let mut impaired = BTreeSet::new();
    for (at, event) in history.events() {
        let (highest, lease, token, excused) = match event {
            Event::Granted { lease, token } => (&mut granted, lease, *token, false),
            Event::Started { lease, token, process } => {
                (&mut started, lease, *token, impaired.remove(process))
            }
            Event::Impaired { process } => {
                impaired.insert(*process);
                continue;
            }
            Event::Ended { .. } | Event::Effect { .. } => continue,
        };
        let before = highest.entry(lease).or_default();
        if token <= *before && !excused {
            found.push(Violation {
                invariant: "terms rise",
                at: *at,
                story: format!("{lease}: a tenure with token {token} came after one with {before}"),
            });
        }
        *before = (*before).max(token);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_lease::Moment;

    #[test]
    fn a_repeated_or_lower_term_is_found() {
        for (first, second, violations) in [(1, 2, 0), (2, 2, 1), (2, 1, 1)] {
            let mut history = History::default();
            for (at, term) in [(1, first), (2, second)] {
                let lease = LeaseName::new("a").unwrap();
                let token = Token::new(term, 0);
                history.push(Moment::from_nanos(at), Event::Started { lease, token, process: 0 });
            }
            assert_eq!(check(&history).len(), violations);
        }
    }
}
