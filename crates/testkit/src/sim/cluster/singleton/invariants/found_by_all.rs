//! When nothing is wrong any more, one node hosts the singleton, and every proxy knows which.

use super::super::Singletons;
use super::super::agent::Agent;

pub(in super::super) const NAME: &str = "one host, found by all";

/// Why it does not hold, if so.
pub(in super::super) fn check(singletons: &Singletons) -> Option<String> {
    let agents: Vec<&Agent> = singletons.agents.values().collect();
    let hosts: Vec<&&Agent> = agents.iter().filter(|agent| agent.instance.is_some()).collect();
    let [host] = hosts[..] else {
        let why = |agent: &&Agent| format!("{}: {}", agent.node, agent.manager.why_not());
        let why: Vec<String> = agents.iter().map(why).collect();
        return Some(format!("{} nodes host it\n{}", hosts.len(), why.join("\n")));
    };
    if !host.serves() {
        return Some(format!("{} does not serve: {}", host.node, host.manager.why_not()));
    }
    agents.iter().find_map(|agent| {
        let found = agent.finder.host().map(|found| &found.node);
        (found != Some(&host.node))
            .then(|| format!("{} is the host, and {} knows {found:?}", host.node, agent.node))
    })
}
