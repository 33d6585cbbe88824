//! A manager that was woken at the time it asked for has nothing left to do at that time.
//!
//! Without it: a node that spins.

use tenure_lease::Moment;

use super::super::agent::Agent;

pub(in super::super) const NAME: &str = "time passes";

pub(in super::super) fn check(agent: &Agent, local: Moment) -> Option<String> {
    let due = agent.manager.next_wake();
    (due <= local).then(|| format!("{} was woken at {local:?}, and asks for {due:?}", agent.node))
}
