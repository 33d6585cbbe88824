//! Scenarios as text: one command per line, and under it, indented, what came of it. As the
//! [cluster's](crate::sim::cluster::scenario), with other commands:
//!
//! | command | what it does |
//! |---|---|
//! | `seed 7` | before `nodes`: the seed, 1 if not said |
//! | `setup NAME` | before `nodes`: `gossip`, `lease` or `sessions`; `sessions` if not said |
//! | `shards 12` | before `nodes`: how many, 8 if not said |
//! | `downing off` | before `nodes`: nobody is declared down but by operators |
//! | `nodes 5` | that many, none of them started |
//! | `start [NODES]` | starts these, or all |
//! | `run 10s` | time passes |
//! | `run until served` | until every shard is active in one place; two minutes at most |
//! | `cut A B \| C D`, `heal` | both ways; every link is mended, everybody reaches the store |
//! | `crash`, `restart`, `leave NODES` | each of them |
//! | `give up NODES` | an operator at each declares those down whom it does not reach |
//! | `end NODES` | a shard of each ends by itself |
//! | `trap` | the next coordinator dies that gives away a shard whose stop was confirmed, and where it gives it is cut off |
//! | `pause`, `freeze`, `resume NODES` | stand still, with their clocks too, or go on |
//! | `store away [NODES]`, `store back [NODES]` | these, or all, do not reach the store; do again |
//! | `where` | where each shard is active, and who coordinates |
//! | `send N` | each running node sends so many messages to each shard |
//! | `arrived` | how many of them have arrived |
//! | `tally` | what was counted since `nodes` |

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use tenure_cluster::downing::{LeaseMajority, Mode, Strategy};
use tenure_sharding::{Settings, Setup, Shard};

use super::{Tally, World};
use crate::sim::cluster::SimSettings;
use crate::sim::cluster::scenario::{INDENT, duration};

/// Plays a scenario; what it should print is ignored. Returns it as it is, with what it prints.
pub fn play(text: &str) -> Result<String, String> {
    let mut played = String::new();
    let mut player = Player {
        seed: 1,
        setup: Setup::Sessions,
        shards: 8,
        downing: true,
        world: None,
        sent: Vec::new(),
    };
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
    match player.world {
        Some(world) if !world.violations().is_empty() => Err(format!("{:?}", world.violations())),
        _ => Ok(played),
    }
}

struct Player {
    seed: u64,
    setup: Setup,
    shards: u32,
    downing: bool,
    world: Option<World>,
    sent: Vec<u64>,
}

impl Player {
    fn command(&mut self, line: &str) -> Result<String, String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        match verb {
            "seed" => self.seed = rest.parse().map_err(|_| "seed NUMBER")?,
            "shards" => self.shards = rest.parse().map_err(|_| "shards NUMBER")?,
            "setup" => {
                self.setup = match rest {
                    "gossip" => Setup::Gossip,
                    "lease" => Setup::Lease,
                    "sessions" => Setup::Sessions,
                    _ => return Err("setup gossip, lease or sessions".into()),
                }
            }
            "downing" => match rest {
                "off" => self.downing = false,
                _ => return Err("downing off".into()),
            },
            "nodes" => {
                let nodes = rest.parse().map_err(|_| "nodes NUMBER")?;
                let downing = LeaseMajority { mode: Mode::Always, ..LeaseMajority::default() };
                let cluster = SimSettings {
                    downing: self.downing.then_some(Strategy::LeaseMajority(downing)),
                    rejoin: true,
                    ..SimSettings::nodes(nodes)
                };
                let settings = Settings::new(self.setup, self.shards);
                let lease = tenure_lease::Settings::new(Duration::from_secs(10));
                self.world = Some(World::new(self.seed, cluster, settings, lease, true));
            }
            "send" => {
                let count: u64 = rest.parse().map_err(|_| "send NUMBER")?;
                let world = self.world.as_mut().ok_or(FIRST)?;
                let running: Vec<usize> = world.cluster().running().collect();
                for _ in 0..count {
                    for place in &running {
                        let shards = (0..self.shards).map(Shard);
                        self.sent.extend(shards.filter_map(|shard| world.send(*place, shard)));
                    }
                }
            }
            "arrived" => {
                let world = self.world.as_ref().ok_or(FIRST)?;
                let arrived = self.sent.iter().filter(|it| world.served.contains(it)).count();
                return Ok(format!("{arrived} of {}", self.sent.len()));
            }
            _ => {
                let world = self.world.as_mut().ok_or(FIRST)?;
                let printed = perform(world, verb, rest)?;
                world.look();
                return Ok(printed);
            }
        }
        Ok(String::new())
    }
}

fn perform(world: &mut World, verb: &str, rest: &str) -> Result<String, String> {
    match verb {
        "run" if rest == "until served" => {
            let after = world.run_until(Duration::from_secs(120), World::is_served);
            return Ok(match after {
                Some(after) => format!("after {:.1} s", after.as_secs_f64()),
                None => "they are not".into(),
            });
        }
        "run" => world.run_for(duration(rest)?),
        "heal" => world.heal(),
        "cut" => {
            let (some, others) = rest.split_once('|').ok_or("cut NODES | NODES")?;
            let (some, others) = (nodes(world, some)?, nodes(world, others)?);
            world.cluster().partition(&some, &others);
        }
        "store" => {
            let (word, nodes) = rest.split_once(' ').unwrap_or((rest, ""));
            let reaches = match word {
                "away" => false,
                "back" => true,
                _ => return Err("store away [NODES], or store back [NODES]".into()),
            };
            for node in some_or_all(world, nodes)? {
                world.cluster().reach_store(node, reaches);
            }
        }
        "give" => {
            let some = rest.strip_prefix("up ").ok_or("give up NODES")?;
            for node in nodes(world, some)? {
                world.down_unreachable(node);
            }
        }
        "trap" => world.set_trap(),
        "where" => return Ok(places(world)),
        "tally" => {
            let Tally { active_twice, active_stale, refused, lost_fenced, .. } = world.tally();
            return Ok(format!(
                "active twice: {active_twice}, besides one that stood still: {active_stale}; \
                 writes refused: {refused}, lost: {lost_fenced}"
            ));
        }
        _ => {
            let each: fn(&mut World, usize) = match verb {
                "start" => World::start,
                "crash" => World::crash,
                "restart" => World::restart,
                "pause" => |world, node| world.pause(node, false),
                "freeze" => |world, node| world.pause(node, true),
                "resume" => World::resume,
                "leave" => World::leave,
                "end" => |world, node| {
                    world.end_shard(node);
                },
                _ => return Err("there is no such command".into()),
            };
            for node in some_or_all(world, rest)? {
                each(world, node);
            }
        }
    }
    Ok(String::new())
}

/// Who coordinates, and which shards are active at each place.
fn places(world: &mut World) -> String {
    let coordinators: Vec<String> =
        world.coordinators().into_iter().map(|place| format!("n{place}")).collect();
    let mut lines = vec![match coordinators.is_empty() {
        true => "nobody coordinates".to_owned(),
        false => format!("coordinates: {}", coordinators.join(" ")),
    }];
    let mut active: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for shell in world.shells.values() {
        let shards = shell.entities.keys().map(Shard::to_string);
        active.entry(shell.place).or_default().extend(shards);
    }
    lines.extend(active.iter().map(|(place, shards)| format!("n{place}: {}", shards.join(" "))));
    lines.join("\n")
}

fn some_or_all(world: &World, text: &str) -> Result<Vec<usize>, String> {
    match text.trim() {
        "" => Ok((0..world.sim.places()).collect()),
        text => nodes(world, text),
    }
}

fn nodes(world: &World, text: &str) -> Result<Vec<usize>, String> {
    let node = |name: &str| {
        let number = name.strip_prefix('n').and_then(|number| number.parse().ok());
        let known = number.filter(|number| *number < world.sim.places());
        known.ok_or_else(|| format!("{name:?} is no node; n0 is"))
    };
    text.split_whitespace().map(node).collect()
}

const FIRST: &str = "the first command is `nodes NUMBER`";
