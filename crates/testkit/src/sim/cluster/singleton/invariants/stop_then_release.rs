//! The lease is given back only after the instance has ended.
//!
//! Without it: one that takes two seconds to stop meets its successor.

use super::super::agent::Agent;

pub(in super::super) const NAME: &str = "stop, then release";

pub(in super::super) fn check(agent: &Agent) -> Option<String> {
    let instance = agent.instance.as_ref()?;
    Some(format!("{} gives the lease back while {} is active", agent.node, instance.token))
}
