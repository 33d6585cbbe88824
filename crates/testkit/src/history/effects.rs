//! No stale effect: once a tenure has read or written a resource, none with a lower token does.

use std::collections::BTreeMap;

use super::{Event, History, Violation};
use tenure_lease::{LeaseName, Token};

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut highest: BTreeMap<&LeaseName, Token> = BTreeMap::new();
    for (at, event) in history.events() {
        let Event::Effect { resource, token } = event else { continue };
        let seen = highest.entry(resource).or_default();
        if *token < *seen {
            found.push(Violation {
                invariant: "no stale effect",
                at: *at,
                story: format!("{resource}: an effect of {token} was accepted after one of {seen}"),
            });
        }
        *seen = (*seen).max(*token);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_lease::Moment;

    #[test]
    fn a_lower_token_after_a_higher_one_is_found() {
        let mut history = History::default();
        for (at, term) in [(1, 2), (2, 2), (3, 1)] {
            let resource = LeaseName::new("a").unwrap();
            let effect = Event::Effect { resource, token: Token::new(term, 0) };
            history.push(Moment::from_nanos(at), effect);
        }
        assert_eq!(check(&history).len(), 1);
    }
}
