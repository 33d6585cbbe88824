//! One at a time: the activity of two tenures of a lease never overlaps, unless one of them is of a
//! process that stood still, or whose clock ran wrong, beyond the margin.

use std::collections::BTreeMap;

use super::{Event, History, Violation};
use tenure_lease::{LeaseName, Token};

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    // What is active, by lease; the flag says that its process was impaired since it started.
    let mut active: BTreeMap<&LeaseName, Vec<(Token, u32, bool)>> = BTreeMap::new();
    for (at, event) in history.events() {
        match event {
            Event::Started { lease, token, process } => {
                let others = active.entry(lease).or_default();
                for (other, other_process, impaired) in others.iter() {
                    if !impaired {
                        found.push(Violation {
                            invariant: "one at a time",
                            at: *at,
                            story: format!(
                                "{lease}: process {process} started with token {token} while \
                                 process {other_process} was active with token {other}"
                            ),
                        });
                    }
                }
                others.push((*token, *process, false));
            }
            Event::Ended { lease, token, process } => {
                let others = active.entry(lease).or_default();
                others
                    .retain(|(other, other_process, _)| (other, other_process) != (token, process));
            }
            Event::Impaired { process } => {
                for (_, _, impaired) in
                    active.values_mut().flatten().filter(|(_, other, _)| other == process)
                {
                    *impaired = true;
                }
            }
            Event::Granted { .. } | Event::Effect { .. } => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_lease::Moment;

    fn history(events: &[(u64, &str, u64, u32)]) -> History {
        let mut history = History::default();
        for (at, what, term, process) in events {
            let (process, token) = (*process, Token::new(*term, 0));
            let lease = LeaseName::new("a").unwrap();
            let event = match *what {
                "start" => Event::Started { lease, token, process },
                "end" => Event::Ended { lease, token, process },
                _ => Event::Impaired { process },
            };
            history.push(Moment::from_nanos(*at), event);
        }
        history
    }

    #[test]
    fn overlap_is_found() {
        assert_eq!(check(&history(&[(1, "start", 1, 1), (2, "start", 2, 2)])).len(), 1);
    }

    #[test]
    fn one_after_the_other_is_fine() {
        let events = [(1, "start", 1, 1), (2, "end", 1, 1), (2, "start", 2, 2)];
        assert_eq!(check(&history(&events)), []);
    }

    #[test]
    fn an_impaired_process_is_excused_but_its_successor_is_not() {
        let events = [(1, "start", 1, 1), (2, "stop", 0, 1), (3, "start", 2, 2)];
        assert_eq!(check(&history(&events)), []);
        let events = [(1, "start", 1, 1), (2, "stop", 0, 2), (3, "start", 2, 2)];
        assert_eq!(check(&history(&events)).len(), 1);
    }
}
