//! `tenure downing`: what a strategy would do with a split.

mod input;

use std::fmt;
use std::io::{self, BufRead};
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Serialize;
use tenure_cluster::downing::{
    Decision, DownAll, KeepMajority, KeepOldest, KeepReferee, LeaseMajority, Mode, StaticQuorum,
    Strategy,
};

use crate::exit::Failure;
use crate::output;

/// Ask what the split-brain resolver would do
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Decide(DecideArgs),
}

/// Say what the side of a node would do, for each view on stdin
///
/// A view is what one node believes, as JSON; many of them, one after the other, give as many
/// decisions: {"self": "a", "members": [{"node": "a", "status": "up", "up_number": 1, "roles": []},
/// …], "reachability": [{"observer": "a", "subject": "b"}], "seen_by": ["a"]}. Nodes are names, in
/// the order of the alphabet. "reachability" says who cannot reach whom, "seen_by" who believes
/// exactly this. If the membership has changed since all had seen it, "converged" lists what it
/// was, like "members".
#[derive(clap::Args)]
struct DecideArgs {
    /// How to decide
    #[arg(long)]
    strategy: Named,
    /// Count only members with this role
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// How many members a side needs (static-quorum)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    quorum_size: Option<u32>,
    /// Whether an oldest member that is alone makes way for the others (keep-oldest) [default: true]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    down_if_alone: Option<bool>,
    /// Whose side goes on (keep-referee)
    #[arg(long, value_name = "NODE")]
    referee: Option<String>,
    /// End everybody if fewer members are left with the referee (keep-referee) [default: 1]
    #[arg(long, value_name = "COUNT")]
    down_all_if_less_than: Option<u32>,
    /// When to ask the lease (lease-majority) [default: ties]
    #[arg(long)]
    mode: Option<NamedMode>,
    /// Print one line of JSON for each decision
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Named {
    StaticQuorum,
    KeepOldest,
    KeepReferee,
    KeepMajority,
    LeaseMajority,
    DownAll,
}

#[derive(Clone, Copy, ValueEnum)]
enum NamedMode {
    /// Only when sides are equal
    Ties,
    /// In every split
    Always,
}

pub(crate) fn main(args: Args) -> Result<ExitCode, Failure> {
    let Command::Decide(args) = args.command;
    let strategy = args.strategy()?;
    args.warn_of_idle_options();
    decide(&strategy, args.json, io::stdin().lock())?;
    Ok(ExitCode::SUCCESS)
}

fn decide(strategy: &Strategy, json: bool, input: impl BufRead) -> Result<(), Failure> {
    let mut views = input::Views::new(input);
    let mut any = false;
    while let Some(situation) = views.next()? {
        any = true;
        output::print(&Answer::from(strategy.decide(&situation)), json)?;
    }
    if !any {
        return Err(Failure::usage(
            "there is no view on stdin; see 'tenure downing decide --help'",
        ));
    }
    Ok(())
}

impl DecideArgs {
    fn strategy(&self) -> Result<Strategy, Failure> {
        let needs = |option| Failure::usage(format!("{} needs {option}", self.name()));
        let role = self.role.clone();
        Ok(match self.strategy {
            Named::StaticQuorum => {
                let size = self.quorum_size.ok_or_else(|| needs("--quorum-size"))? as usize;
                Strategy::StaticQuorum(StaticQuorum { size, role })
            }
            Named::KeepOldest => {
                let down_if_alone = self.down_if_alone.unwrap_or(true);
                Strategy::KeepOldest(KeepOldest { down_if_alone, role })
            }
            Named::KeepReferee => {
                let address = self.referee.clone().ok_or_else(|| needs("--referee"))?;
                let down_all_if_less_than = self.down_all_if_less_than.unwrap_or(1) as usize;
                Strategy::KeepReferee(KeepReferee { address, down_all_if_less_than })
            }
            Named::KeepMajority => Strategy::KeepMajority(KeepMajority { role }),
            Named::LeaseMajority => {
                let mode = match self.mode {
                    None | Some(NamedMode::Ties) => Mode::Ties,
                    Some(NamedMode::Always) => Mode::Always,
                };
                let defaults = LeaseMajority::default();
                Strategy::LeaseMajority(LeaseMajority { role, mode, ..defaults })
            }
            Named::DownAll => Strategy::DownAll(DownAll),
        })
    }

    /// Options of another strategy are no error, but nobody shall believe that they do something.
    fn warn_of_idle_options(&self) {
        use Named::*;
        let options = [
            ("--role", self.role.is_some(), !matches!(self.strategy, KeepReferee | DownAll)),
            ("--quorum-size", self.quorum_size.is_some(), self.strategy == StaticQuorum),
            ("--down-if-alone", self.down_if_alone.is_some(), self.strategy == KeepOldest),
            ("--referee", self.referee.is_some(), self.strategy == KeepReferee),
            (
                "--down-all-if-less-than",
                self.down_all_if_less_than.is_some(),
                self.strategy == KeepReferee,
            ),
            ("--mode", self.mode.is_some(), self.strategy == LeaseMajority),
        ];
        for (option, given, used) in options {
            if given && !used {
                tracing::warn!("{option} means nothing to {}", self.name());
            }
        }
    }

    fn name(&self) -> String {
        let value = self.strategy.to_possible_value();
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// What `--json` prints; its shape is stable.
#[derive(Serialize)]
struct Answer {
    decision: &'static str,
    /// Who would be declared down; for `ask_lease`: if the lease is won.
    down: Vec<String>,
    reason: String,
    /// For `ask_lease`: how long to wait before the first attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    after_ms: Option<u64>,
    #[serde(skip)]
    sentence: String,
}

impl From<Decision<String>> for Answer {
    fn from(decided: Decision<String>) -> Self {
        let sentence = decided.to_string();
        let (decision, down, reason, after) = match decided {
            Decision::Down { nodes, reason } => ("down", nodes, reason, None),
            Decision::Stay { reason } => ("stay", vec![], reason, None),
            Decision::AskLease { after, down, reason, .. } => {
                ("ask_lease", down, reason, Some(after))
            }
        };
        // A few seconds at most.
        let after_ms = after.map(|after| after.as_millis() as u64);
        Self { decision, down, reason, after_ms, sentence }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}
