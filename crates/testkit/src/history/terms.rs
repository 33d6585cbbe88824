//! Terms strictly rise: each tenure of a lease has a higher token than all that began before it.

use std::collections::BTreeMap;

use super::{Event, History, Violation};
use tenure_lease::{LeaseName, Token};

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut highest: BTreeMap<&LeaseName, Token> = BTreeMap::new();
    for (at, event) in history.events() {
        let Event::Started { lease, token, process } = event else { continue };
        match highest.insert(lease, *token) {
            Some(before) if before >= *token => found.push(Violation {
                invariant: "terms rise",
                at: *at,
                story: format!("{lease}: process {process} started with {token} after {before}"),
            }),
            _ => {}
        }
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
