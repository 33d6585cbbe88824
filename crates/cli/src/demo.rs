//! `tenure demo`: a cluster of real processes, one worker, and everything that can go wrong.
#![allow(clippy::disallowed_methods, reason = "a demonstration runs in real time")]

mod book;
mod client;
mod counter;
mod history;
mod keys;
mod ledger;
mod map;
mod node;
mod outage;
mod page;
mod places;
mod screen;
mod script;
mod show;
mod stage;
mod wire;
mod writes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tenure_lease::signals::Signals;
use tenure_lease::{Moment, Settings};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::exit::{self, Failure};
use crate::store::StoreArgs;
use crate::{duration, output};
use keys::Keys;
pub(crate) use node::{Args as ProcessArgs, main as process};
use page::{Order, Page};
use screen::{Screen, Title};
use script::{Action, Script, Target};
use show::{Kind, Show};
use stage::{Directory, News, Stage};

/// Watch one worker survive everything, on this machine, in a minute
///
/// Starts nodes as processes of their own, with certificates, on loopback. One of them at a time
/// hosts a worker that appends jobs to a ledger; a client sends it numbered jobs. Then things go
/// wrong, as a script says or as you press: kill -9, SIGSTOP, a cut network, a store that is away.
/// In the end it says how long nobody worked each time, and counts what must not happen.
///
/// With --sharding the nodes also host counters by key, grouped into shards, each in one place; the
/// client sends them numbered writes, and it says how long writes waited for shards that moved.
///
/// Ends with 1 if two worked at once, a stale write was accepted, or a job or write was lost or done
/// twice.
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub(crate) struct Args {
    /// How many nodes there are
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(2..=9))]
    nodes: u8,
    /// The store of the leases; nobody else may use it for a demo [default: a directory of its own]
    #[arg(long = "lease", value_name = "URL")]
    store: Option<String>,
    /// The ttl of the leases; from 15s on, failures are noticed as by default, too
    #[arg(long, value_parser = duration::parse, default_value = "3s", value_name = "DURATION")]
    ttl: Duration,
    /// What happens when; see below [default: a tour of a minute]
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// How long it lasts [default: as long as the script; until the key q once a key broke something]
    #[arg(long = "for", value_parser = duration::parse, value_name = "DURATION")]
    length: Option<Duration>,
    /// Serve a page that shows it, with buttons that break things, at this address of this machine;
    /// without a script nothing else breaks them then
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:7480")]
    page: Option<String>,
    #[command(flatten)]
    load: Load,
    /// Print the figures of the end as JSON, and what happens to stderr
    #[arg(long)]
    json: bool,
}

/// What there is besides the worker.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Load {
    /// Host 300 counters in 64 shards, too, guarded like this; "sessions" if it is not said
    #[arg(long, value_enum, value_name = "GUARD", num_args = 0..=1, require_equals = true,
        default_missing_value = "sessions")]
    sharding: Option<Setup>,
    /// How many writes the client sends to counters in a second
    #[arg(long, default_value_t = 1000, requires = "sharding", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
}

/// What guards the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Setup {
    /// A lease for the coordinator, and a session for each node: a counter is never in two places
    Sessions,
    /// A lease for the coordinator alone: counters go on while the store is away
    Lease,
}

impl Load {
    /// As a process is told.
    fn args(&self) -> Vec<String> {
        let Some(setup) = self.sharding else { return Vec::new() };
        let setup = match setup {
            Setup::Sessions => "sessions",
            Setup::Lease => "lease",
        };
        vec![format!("--sharding={setup}"), "--rate".into(), self.rate.to_string()]
    }
}

const HELP: &str = "\
Scripts: one step per line, the time since the worker began and what to do; # begins a comment.
  5s   cut 1,2 | 3,4,5     the network falls into groups; who is not named goes with the largest;
                           \"holder\" is the worker's node, \"coordinator\" the one that says where
                           shards are, \"rest\" all others, \"client\" who sends jobs
  12s  heal                the network is whole again
  15s  kill holder         kill -9; nodes by number, too: kill 2,3
  20s  pause holder 6s     SIGSTOP, and SIGCONT after 6s
  30s  leave holder        it hands over, leaves and ends
  33s  restart             all that are gone, or those that are named
  34s  program ./tenure2   what is started from now on: another version, to try an upgrade
  35s  store away          the store does not answer; or only these: store away holder
  40s  store back
  50s  end                 when it is over; otherwise 5s after the last step
A step about the holder waits for one until the next step is due; then it is left out.";

pub(crate) fn main(args: Args) -> Result<ExitCode, Failure> {
    // One thread, the process's main one: what it starts ends with it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("cannot start", &error))?;
    let outcome = runtime.block_on(run(args));
    runtime.shutdown_background();
    outcome
}

async fn run(args: Args) -> Result<ExitCode, Failure> {
    let nodes = usize::from(args.nodes);
    let script = match &args.script {
        Some(path) => {
            let wrong = |what: String| Failure::usage(format!("{}: {what}", path.display()));
            let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
            Script::parse(&text, nodes).map_err(wrong)?
        }
        None if args.page.is_some() => Script::empty(),
        None => Script::parse(TOUR, nodes).map_err(Failure::usage)?,
    };
    let mut signals = Signals::catch().map_err(|error| Failure::system("signals", &error))?;
    let directory = Directory::new()?;
    let url = match args.store {
        Some(url) => url,
        None => format!("file:{}", directory.path().join("leases").display()),
    };
    let store = StoreArgs::from(url.as_str()).open().await?;
    let info = store.info();
    let ttl = args.ttl.max(info.ttl_min);
    let timing = Settings::new(ttl);
    timing.check_for(&info)?;
    let (mut stage, news) = Stage::new(directory, url, ttl, args.load, nodes)?;
    stage.managed = args.page.is_some();
    let page = match &args.page {
        Some(listen) => Some(Page::open(listen, nodes, store, ttl).await?),
        None => None,
    };
    let url = page.as_ref().map(Page::url);
    if let Some(url) = &url {
        eprintln!("page: {url}");
    }
    let keys = Keys::new().map_err(|error| Failure::system("the terminal", &error))?;
    let title = Title {
        store: info.kind,
        ttl,
        said: args.length,
        keys: keys.are_there(),
        page: url,
        phase: None,
    };
    let mut play = Play {
        show: Show::new(stage, script, &timing),
        news,
        keys,
        screen: Screen::new(args.json),
        page,
        title,
    };
    // Without a script it lasts until somebody ends it.
    play.show.by_hand = args.page.is_some() && args.script.is_none();
    let stopped = tokio::select! {
        stopped = play.whole() => stopped?,
        signal = signals.next() => Some(signal),
    };
    if let Some(signal) = stopped {
        play.show.end_all();
        return Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX)));
    }
    let Play { mut show, screen, keys, .. } = play;
    drop((screen, keys));
    let summary = show.summary()?;
    match args.json {
        true => output::json(&summary)?,
        false => screen::print(&summary, &show),
    }
    let (clean, finished) = (summary.is_clean(), show.is_finished());
    if !clean || !finished {
        let what = match clean {
            false => "something happened that must not",
            true => "not every job or write was done within a while after all was mended",
        };
        let directory = show.stage.keep().display();
        eprintln!("tenure: {what}; logs and ledger are in {directory}");
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A show, and who looks at it.
struct Play<'a> {
    show: Show,
    news: mpsc::Receiver<News>,
    keys: Keys,
    screen: Screen,
    page: Option<Page>,
    title: Title<'a>,
}

impl Play<'_> {
    /// From the first process to the last; a signal's number if it was a key that means one.
    async fn whole(&mut self) -> Result<Option<i32>, Failure> {
        self.title.phase = Some("starting: the nodes find each other by a lease in the store");
        for number in 0..=self.show.nodes() {
            self.show.stage.start(number).await?;
        }
        if !self.until(STARTING, |show, _| show.is_whole()).await? {
            let directory = self.show.stage.keep().display().to_string();
            return Err(Failure::new(
                exit::SYSTEM,
                format!("no cluster was formed within {STARTING:?}; the logs are in {directory}"),
            ));
        }
        self.show.began = Some(Moment::now());
        self.show.note(Kind::Other, format!("{} nodes are up", self.show.nodes()));
        self.title.phase = None;
        self.until(Duration::MAX, |show, title| {
            title.length(show).is_some_and(|length| show.elapsed(Moment::now()) >= length)
        })
        .await?;
        self.title.phase = Some("mending everything, and waiting for what is not done");
        self.show.settle().await?;
        self.until(SETTLING, |show, _| show.is_finished()).await?;
        self.show.end_all();
        Ok(None)
    }

    /// Goes on until this holds, or for so long; whether it holds. The key `q` makes it hold.
    async fn until(
        &mut self,
        within: Duration,
        holds: impl Fn(&Show, &Title<'_>) -> bool,
    ) -> Result<bool, Failure> {
        let since = Moment::now();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut drawn = 0;
        loop {
            tokio::select! {
                Some(news) = self.news.recv() => self.show.hear(news).await?,
                key = self.keys.next() => {
                    if key == b'q' {
                        return Ok(true);
                    }
                    self.press(key).await?;
                }
                order = pressed(&mut self.page) => self.obey(order).await?,
                _ = ticks.tick() => {
                    if self.show.began.is_some() {
                        self.show.advance(Moment::now()).await?;
                    }
                    drawn += 1;
                    if drawn % DRAW == 0 {
                        self.page.iter_mut().for_each(|page| page.show(&mut self.show));
                        self.screen.draw(&mut self.show, &self.title);
                    }
                }
            }
            if holds(&self.show, &self.title) {
                self.screen.draw(&mut self.show, &self.title);
                return Ok(true);
            }
            if Moment::now().since(since) > within {
                return Ok(false);
            }
        }
    }

    /// Does what a button of the page means.
    async fn obey(&mut self, order: Order) -> Result<(), Failure> {
        let show = &mut self.show;
        if show.began.is_none() {
            order.not_now("it has not begun yet: wait until it says that all nodes are up");
        } else if order.action.misses(&show.named()) {
            order.not_now("nobody is that just now, whom it could be done to");
        } else {
            show.by_hand = true;
            show.act(&order.action).await?;
            order.done();
        }
        Ok(())
    }

    /// Does what a key means. Whoever breaks something takes over from the script.
    async fn press(&mut self, key: u8) -> Result<(), Failure> {
        let show = &mut self.show;
        let whom = vec![show.chosen];
        let nodes = show.nodes();
        let actions = match key {
            b'0' => {
                show.chosen = Target::Holder;
                return Ok(());
            }
            b'1'..=b'9' if usize::from(key - b'0') <= nodes => {
                show.chosen = Target::Node(usize::from(key - b'0'));
                return Ok(());
            }
            b'k' => vec![Action::Kill(whom)],
            b'p' => vec![Action::Pause(whom, PAUSE)],
            b'c' => vec![Action::Cut(vec![whom, vec![Target::Rest]])],
            b'x' => {
                let first = (1..=nodes / 2).map(Target::Node).collect();
                vec![Action::Cut(vec![first, vec![Target::Rest]])]
            }
            b's' => vec![Action::StoreAway(whom)],
            b'a' => vec![Action::StoreAway(Vec::new())],
            b'l' => vec![Action::Leave(whom)],
            b'r' => vec![Action::Restart(Vec::new())],
            b'h' => vec![Action::Heal, Action::StoreBack],
            _ => return Ok(()),
        };
        if show.began.is_none() {
            return Ok(());
        }
        show.by_hand = true;
        for action in actions {
            // With nobody at work there is no holder that it could be done to.
            if !action.misses(&show.named()) {
                show.act(&action).await?;
            }
        }
        Ok(())
    }
}

/// The next button of the page, if there is one.
async fn pressed(page: &mut Option<Page>) -> Order {
    match page {
        Some(page) => page.next().await,
        None => std::future::pending().await,
    }
}

fn name(number: usize) -> String {
    if number == 0 { "client".into() } else { format!("node-{number}") }
}

/// The hidden command that a process of the demonstration is.
pub(crate) const PROCESS: &str = "demo-process";
/// The script of who has none.
const TOUR: &str = include_str!("demo/tour.txt");
const CLUSTER: &str = "demo";
const WORKER: &str = "worker";
const LEASE: &str = "demo.ledger";
/// Of who says where counters are.
const COORDINATOR: &str = "demo.counters";
/// The counters; nodes' sessions are named after them.
const COUNTERS: &str = "counters";
const FORMATION: &str = "demo.formation";
const ARBITRATION: &str = "demo.arbitration";
/// The singleton.
const LEDGER: &str = "ledger";
/// Its database.
const DATABASE: &str = "ledger.db";
const CERTS: &str = "certs";
/// Twice the usual ttl.
const PAUSE: Duration = Duration::from_secs(6);
const STARTING: Duration = Duration::from_secs(30);
const SETTLING: Duration = Duration::from_secs(40);
const TICK: Duration = Duration::from_millis(20);
/// How many ticks for a picture.
const DRAW: u32 = 8;
