//! Scenarios as text: one command per line, and under it, indented, what came of it.
//!
//! ```text
//! nodes 3
//! start
//! run until agree
//!   after 0.6 s
//! cut n0 | n1 n2
//! run 6s
//! show
//!   n0: n0 up 1, n1 up 3, n2 up 2; n0 cannot reach n1 n2
//!   n1 n2: n0 up 1, n1 up 3, n2 up 2; n1 cannot reach n0; n2 cannot reach n0
//! ```
//!
//! | command | what it does |
//! |---|---|
//! | `seed 7` | before `nodes`: the seed, 1 if not said |
//! | `downing NAME` | before `nodes`: how splits are settled: `lease-majority`, `lease-majority-always`, `keep-majority`, `keep-oldest`, `static-quorum 3` |
//! | `singleton lease`, `singleton plain` | before `nodes`: a singleton runs in it, with a lease of 10 s or without one; it takes 2 s to stop, or less |
//! | `nodes 5` | that many, none of them started |
//! | `start [NODES]` | starts these, or all |
//! | `run 10s` | time passes |
//! | `run until agree` | until all are up in one cluster and believe the same; a minute at most |
//! | `cut A B \| C D`, `cut A > B C` | both ways, or one way only |
//! | `heal` | every link is mended, everybody reaches the store |
//! | `crash`, `restart`, `pause`, `resume`, `leave NODES` | each of them |
//! | `outsider NODES` | these reach the store and nobody else, until `heal` |
//! | `down NODE at NODE` | an operator at the second declares those down that died at the first |
//! | `host` | which node hosts the singleton, or why not |
//! | `run until hosted` | until one does, and every proxy knows which; two minutes at most |
//! | `store away [NODES]` | these, or all, do not reach the store |
//! | `run until won`, `crash winner` | until somebody holds the resolver's lease; ends that one |
//! | `store back [NODES]` | these, or all, reach the store again |
//! | `record` | what the resolver's lease says |
//! | `show [NODES]` | what these believe, or all that run; who believes the same stands in one line |
//! | `events [NODES]` | what these told since the last time, by the time since `nodes` |
//! | `forget` | forgets what was told so far |
//! | `clusters` | which clusters there are, and who is in them |

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use tenure_cluster::downing::{
    KeepMajority, KeepOldest, LeaseMajority, Mode, StaticQuorum, Strategy,
};

use super::{Sim, SimSettings, SingletonSettings};

/// Plays a scenario; what it should print is ignored. Returns it as it is, with what it prints.
pub fn play(text: &str) -> Result<String, String> {
    let mut played = String::new();
    let mut player = Player { seed: 1, downing: None, singleton: None, sim: None };
    for (index, line) in text.lines().enumerate() {
        if line.starts_with(INDENT) {
            continue;
        }
        played.push_str(line);
        played.push('\n');
        let command = line.split('#').next().unwrap_or_default().trim();
        if command.is_empty() {
            continue;
        }
        let printed = player
            .command(command)
            .map_err(|error| format!("line {}: {command:?}: {error}", index + 1))?;
        for line in printed.lines() {
            let _ = writeln!(played, "{INDENT}{line}"); // Writing to a String cannot fail.
        }
    }
    match player.sim {
        Some(sim) if !sim.violations().is_empty() => Err(format!("{:?}", sim.violations())),
        _ => Ok(played),
    }
}

struct Player {
    seed: u64,
    downing: Option<Strategy>,
    singleton: Option<SingletonSettings>,
    sim: Option<Sim>,
}

impl Player {
    fn command(&mut self, line: &str) -> Result<String, String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        match verb {
            "seed" => self.seed = rest.parse().map_err(|_| "seed NUMBER")?,
            "downing" => self.downing = Some(strategy(rest)?),
            "singleton" => self.singleton = Some(SingletonSettings::plain(rest == "lease")),
            "nodes" => {
                let nodes = rest.parse().map_err(|_| "nodes NUMBER")?;
                let (downing, singleton) = (self.downing.clone(), self.singleton.clone());
                let nodes = SimSettings::nodes(nodes);
                let settings = SimSettings { events: true, downing, singleton, ..nodes };
                self.sim = Some(Sim::new(self.seed, settings));
            }
            _ => {
                let sim = self.sim.as_mut().ok_or("the first command is `nodes NUMBER`")?;
                let printed = perform(sim, verb, rest)?;
                sim.look();
                return Ok(printed);
            }
        }
        Ok(String::new())
    }
}

fn perform(sim: &mut Sim, verb: &str, rest: &str) -> Result<String, String> {
    match verb {
        "run" if rest == "until agree" => {
            let after = sim.run_until(Duration::from_secs(60), Sim::agrees);
            return Ok(match after {
                Some(after) => format!("after {:.1} s", after.as_secs_f64()),
                None => "they do not".into(),
            });
        }
        "run" if rest == "until won" => {
            let began = sim.elapsed();
            // It may be held for some milliseconds only.
            while !sim.somebody_arbitrates() {
                if sim.elapsed() - began > Duration::from_secs(60) {
                    return Ok("nobody does".into());
                }
                sim.run_for(Duration::from_millis(1));
            }
            return Ok(format!("after {:.1} s", (sim.elapsed() - began).as_secs_f64()));
        }
        "run" if rest == "until hosted" => {
            let after = sim.run_until(Duration::from_secs(120), Sim::singleton_is_found);
            return Ok(match after {
                Some(after) => format!("after {:.1} s", after.as_secs_f64()),
                None => "nobody does".into(),
            });
        }
        "run" => sim.run_for(duration(rest)?),
        "crash" if rest == "winner" => sim.crash_arbiter(),
        "host" => return Ok(sim.show_singleton()),
        "record" => return Ok(sim.show_verdict()),
        "heal" => sim.heal(),
        "cut" => cut(sim, rest)?,
        "store" => {
            let (word, nodes) = rest.split_once(' ').unwrap_or((rest, ""));
            let reaches = match word {
                "away" => false,
                "back" => true,
                _ => return Err("store away [NODES], or store back [NODES]".into()),
            };
            for node in some_or_all(sim, nodes)? {
                sim.reach_store(node, reaches);
            }
        }
        "down" => {
            let (node, by) = rest.split_once(" at ").ok_or("down NODE at NODE")?;
            let (node, by) = (self::node(sim, node)?, self::node(sim, by)?);
            sim.down_dead(by, node);
        }
        "show" => return show(sim, rest),
        "events" => return events(sim, rest),
        "forget" => drop(sim.take_events()),
        "clusters" => return Ok(clusters(sim)),
        "start" => {
            for node in some_or_all(sim, rest)? {
                sim.start(node);
            }
        }
        _ => {
            let each: fn(&mut Sim, usize) = match verb {
                "crash" => Sim::crash,
                "restart" => Sim::restart,
                "pause" => |sim, node| sim.pause(node, false),
                "resume" => Sim::resume,
                "leave" => Sim::leave,
                "outsider" => |sim, node| sim.shut_out(node, true),
                _ => return Err("there is no such command".into()),
            };
            for node in some_or_all(sim, rest)? {
                each(sim, node);
            }
        }
    }
    Ok(String::new())
}

fn strategy(text: &str) -> Result<Strategy, String> {
    let lease = |mode| Strategy::LeaseMajority(LeaseMajority { mode, ..LeaseMajority::default() });
    Ok(match text.split_once(' ').unwrap_or((text, "")) {
        ("lease-majority", "") => lease(Mode::Ties),
        ("lease-majority-always", "") => lease(Mode::Always),
        ("keep-majority", "") => Strategy::KeepMajority(KeepMajority::default()),
        ("keep-oldest", "") => Strategy::KeepOldest(KeepOldest::default()),
        ("static-quorum", size) => {
            let size = size.parse().map_err(|_| "static-quorum SIZE")?;
            Strategy::StaticQuorum(StaticQuorum::new(size))
        }
        _ => return Err("there is no such strategy".into()),
    })
}

fn cut(sim: &mut Sim, rest: &str) -> Result<(), String> {
    if let Some((some, others)) = rest.split_once('|') {
        let (some, others) = (nodes(sim, some)?, nodes(sim, others)?);
        sim.partition(&some, &others);
    } else if let Some((from, to)) = rest.split_once('>') {
        let (from, to) = (nodes(sim, from)?, nodes(sim, to)?);
        sim.partition_one_way(&from, &to);
    } else {
        return Err("cut NODES | NODES, or cut NODES > NODES".into());
    }
    Ok(())
}

fn show(sim: &Sim, rest: &str) -> Result<String, String> {
    let nodes = if rest.is_empty() { sim.running().collect() } else { nodes(sim, rest)? };
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for node in nodes {
        let line = sim.show(node);
        match groups.iter_mut().find(|(other, _)| *other == line) {
            Some((_, names)) => names.push(format!("n{node}")),
            None => groups.push((line, vec![format!("n{node}")])),
        }
    }
    Ok(lines(groups.iter().map(|(line, names)| format!("{}: {line}", names.join(" ")))))
}

fn events(sim: &mut Sim, rest: &str) -> Result<String, String> {
    let nodes = some_or_all(sim, rest)?;
    let events = sim.take_events();
    let told = events
        .iter()
        .filter(|(_, place, _)| nodes.contains(place))
        .map(|(at, place, what)| format!("{:.1} s n{place}: {what}", at.as_secs_f64()));
    Ok(lines(told))
}

fn clusters(sim: &Sim) -> String {
    let mut clusters: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for node in sim.running() {
        if let Some(view) = sim.view(node) {
            clusters.entry(view.cluster()).or_default().push(format!("n{node}"));
        }
    }
    lines(clusters.iter().map(|(cluster, nodes)| format!("{cluster}: {}", nodes.join(" "))))
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.collect::<Vec<_>>().join("\n")
}

fn some_or_all(sim: &Sim, text: &str) -> Result<Vec<usize>, String> {
    if text.trim().is_empty() { Ok((0..sim.places.len()).collect()) } else { nodes(sim, text) }
}

fn nodes(sim: &Sim, text: &str) -> Result<Vec<usize>, String> {
    text.split_whitespace().map(|name| node(sim, name)).collect()
}

fn node(sim: &Sim, name: &str) -> Result<usize, String> {
    let number = name.trim().strip_prefix('n').and_then(|number| number.parse().ok());
    let known = number.filter(|number| *number < sim.places.len());
    known.ok_or_else(|| format!("{name:?} is no node; n0 is"))
}

pub(in crate::sim) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s').unwrap_or_default(), 1.0),
    };
    let number: f64 = number.parse().map_err(|_| format!("{text:?} is no duration; 10s is"))?;
    Duration::try_from_secs_f64(number * unit).map_err(|error| error.to_string())
}

/// What a scenario prints stands further in than its commands.
pub(in crate::sim) const INDENT: &str = "  ";
