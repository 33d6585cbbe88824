//! What a random schedule is made of.

use std::time::Duration;

use tenure_cluster::MembershipSettings;
use tenure_cluster::downing::{LeaseMajority, Mode, Strategy};

use super::SingletonSettings;
use crate::sim::Random;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// All links between two groups, both ways.
    Cut,
    /// All links from one group to the other.
    CutOneWay,
    /// A single link, one way or both.
    CutLink,
    /// Messages are lost, repeated, late, or held up for long.
    Weather,
    /// A process ends without a word.
    Crash,
    /// A process ends and another one starts at its address, once or twice in a row.
    Restart,
    /// A process stands still; its clock runs on or not.
    Pause,
    /// A process runs twice for a while.
    Clone,
    /// Everything to and from a node takes long.
    Slow,
    /// Clocks run at rates of their own.
    Clocks,
    /// A node does not reach the store.
    Store,
    /// A node that was not there starts.
    Join,
    /// A node leaves.
    Leave,
    /// An operator declares a dead member down, or one that lives.
    Down,
    /// All links between two groups, and one of them does not reach the store either.
    CutFromStore,
    /// The store takes long to answer resolvers.
    SlowStore,
    /// The next process that holds the resolver's lease ends while it does.
    CrashWinner,
    /// A node is started that reaches the store, and that nobody else reaches.
    Outsider,
}

impl Fault {
    /// All that need no resolver, and what they are called.
    pub const ALL: [(&'static str, Self); 14] = [
        ("cut", Self::Cut),
        ("cut-one-way", Self::CutOneWay),
        ("cut-link", Self::CutLink),
        ("weather", Self::Weather),
        ("crash", Self::Crash),
        ("restart", Self::Restart),
        ("pause", Self::Pause),
        ("clone", Self::Clone),
        ("slow", Self::Slow),
        ("clocks", Self::Clocks),
        ("store", Self::Store),
        ("join", Self::Join),
        ("leave", Self::Leave),
        ("down", Self::Down),
    ];

    /// Those that only a resolver notices.
    const OF_RESOLVERS: [Self; 3] = [Self::CutFromStore, Self::SlowStore, Self::CrashWinner];
}

/// What a schedule is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many nodes there are; about two thirds are started at the beginning.
    pub nodes: usize,
    /// What may go wrong.
    pub faults: Vec<Fault>,
    /// For how long.
    pub faults_for: Duration,
    /// The timing of every node.
    pub membership: MembershipSettings,
    /// How splits are settled; if by nothing, an operator declares the dead down.
    pub downing: Option<Strategy>,
    /// The singleton that runs in it, if one does.
    pub singleton: Option<SingletonSettings>,
    /// Whether to write a trace.
    pub trace: bool,
}

impl Plan {
    /// A plan that varies with the seed. In every other one time is short, so that removed
    /// incarnations are forgotten while faults last.
    pub fn of(seed: u64, nodes: usize) -> Self {
        let mut random = Random::new(seed ^ 0x706c_616e);
        let mut membership = MembershipSettings::default();
        if random.percent(50) {
            membership.heartbeat_interval = Duration::from_millis(250);
            membership.acceptable_pause = Duration::from_millis(750);
            membership.gossip_interval = Duration::from_millis(250);
            membership.joining_patience = Duration::from_millis(750);
            membership.leave_timeout = Duration::from_secs(3);
            membership.keep_removed = membership.detection() * 10;
        }
        // A leader that runs twice decides twice; most of what must hold is checked without.
        let clones = random.percent(25);
        let faults = Fault::ALL.iter().map(|(_, fault)| *fault);
        let faults = faults.filter(|fault| clones || *fault != Fault::Clone);
        Self {
            nodes,
            faults: faults.collect(),
            faults_for: Duration::from_secs(random.within(60..121)),
            membership,
            downing: None,
            singleton: None,
            trace: false,
        }
    }

    /// The same with a resolver. Nobody runs twice and no operator interferes; whoever is declared
    /// down starts anew.
    pub fn with_downing(seed: u64, nodes: usize, strategy: Strategy) -> Self {
        let mut plan = Self::of(seed, nodes);
        plan.faults.retain(|fault| !matches!(fault, Fault::Clone | Fault::Down));
        plan.faults.extend(Fault::OF_RESOLVERS);
        plan.downing = Some(strategy);
        plan
    }

    /// The same with nodes that reach the store and nobody else, while leaders come and go.
    pub fn with_outsiders(seed: u64, nodes: usize) -> Self {
        let mut plan = Self::of(seed, nodes);
        plan.faults.retain(|fault| !matches!(fault, Fault::Clone | Fault::Down));
        plan.faults.extend([Fault::Outsider; 3]);
        plan.faults.extend([Fault::Leave, Fault::Leave, Fault::Join, Fault::Join]);
        plan
    }

    /// With a singleton that has a lease; splits are settled by operators, or by a lease that every side
    /// asks for.
    pub fn with_singleton(seed: u64, nodes: usize) -> Self {
        let always = LeaseMajority { mode: Mode::Always, ..LeaseMajority::default() };
        let mut plan = match seed % 3 {
            0 => Self::of(seed, nodes),
            _ => Self::with_downing(seed, nodes, Strategy::LeaseMajority(always)),
        };
        plan.faults.retain(|fault| *fault != Fault::Clone);
        let mut random = Random::new(seed ^ 0x006f_6e65);
        let ttl = Duration::from_secs(*random.pick(&[5, 10, 15]));
        let manager = tenure_singleton::Settings {
            placement: match random.percent(20) {
                true => tenure_singleton::Placement::Spread,
                false => tenure_singleton::Placement::Oldest,
            },
            stable_after: Duration::from_secs(random.within(2..11)),
            restart_backoff: Duration::from_millis(100),
            start_attempts: 3,
            buffer: if random.percent(30) { 10 } else { 1000 },
            ..tenure_singleton::Settings::default()
        };
        plan.singleton = Some(SingletonSettings {
            manager,
            lease: Some(tenure_lease::Settings::new(ttl)),
            store_expires: random.percent(50),
            failures: true,
            ..SingletonSettings::plain(true)
        });
        plan
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}
