//! The picture in the terminal, drawn with plain escape sequences; or lines, if there is no terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use tenure_lease::Moment;

use super::counter::{KEYS, SHARDS};
use super::keys::rows;
use super::places::Figures;
use super::script::{Action, Target};
use super::show::{Event, Kind, Show, Summary, called, list, ms, said_sides, said_token};
use super::stage::State;

/// Where it is shown.
pub(super) enum Screen {
    /// A terminal, as it was before when this is dropped.
    Picture,
    /// One line for each event: to stderr if stdout is for JSON.
    Lines { to_stderr: bool },
}

impl Screen {
    pub(super) fn new(json: bool) -> Self {
        if json || !io::stdout().is_terminal() {
            return Self::Lines { to_stderr: json };
        }
        // Another page, without a cursor; what is too long is cut off, not wrapped.
        put("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J");
        Self::Picture
    }

    /// Shows how it is now.
    pub(super) fn draw(&self, show: &mut Show, title: &Title<'_>) {
        match self {
            Self::Picture => {
                show.unprinted.clear();
                put(&picture(show, title, Moment::now(), rows()));
            }
            Self::Lines { to_stderr } => {
                let began = show.began;
                for event in show.unprinted.drain(..) {
                    let line = format!("{}  {}\n", clock(&event, began), event.text);
                    match to_stderr {
                        true => drop(io::stderr().write_all(line.as_bytes())),
                        false => put(&line),
                    }
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Self::Picture = self {
            put("\x1b[?7h\x1b[?25h\x1b[?1049l");
        }
    }
}

/// What stands above and below.
pub(super) struct Title<'a> {
    pub(super) store: &'a str,
    pub(super) ttl: Duration,
    /// How long it lasts, if somebody said.
    pub(super) said: Option<Duration>,
    /// Whether there are keys to press.
    pub(super) keys: bool,
    /// Where the page is.
    pub(super) page: Option<String>,
    /// What it is doing, if it is not just going on.
    pub(super) phase: Option<&'a str>,
}

impl Title<'_> {
    /// How long it lasts: as was said, or as long as the script while nobody took over from it.
    pub(super) fn length(&self, show: &Show) -> Option<Duration> {
        self.said.or((!show.by_hand).then_some(show.script.end))
    }
}

fn picture(show: &Show, title: &Title<'_>, now: Moment, rows: usize) -> String {
    let mut lines = head(show, title, now);
    lines.extend(table(show, now));
    lines.push(String::new());
    lines.extend(figures(show, now));
    lines.push(String::new());
    let foot = foot(show, title, now);
    let room = rows.saturating_sub(lines.len() + foot.len() + 1);
    let skipped = show.events.len().saturating_sub(room);
    let events = show.events.iter().skip(skipped);
    lines.extend(events.map(|event| {
        let colour = match event.kind {
            Kind::Fault => YELLOW,
            Kind::Work => GREEN,
            Kind::Refused => RED,
            Kind::Decision => CYAN,
            Kind::Other => DIM,
        };
        format!("  {DIM}{}{PLAIN}  {colour}{}{PLAIN}", clock(event, show.began), event.text)
    }));
    lines.resize(rows.saturating_sub(foot.len()).max(lines.len()), String::new());
    lines.extend(foot);
    let mut picture = String::from("\x1b[H");
    for (index, line) in lines.iter().take(rows).enumerate() {
        let end = if index == 0 { "" } else { "\r\n" };
        let _ = write!(picture, "{end}{line}\x1b[K");
    }
    picture.push_str("\x1b[J");
    picture
}

fn head(show: &Show, title: &Title<'_>, now: Moment) -> Vec<String> {
    let elapsed = minutes(show.elapsed(now));
    let length = title.length(show).map_or(String::new(), |it| format!(" of {}", minutes(it)));
    let (store, ttl, nodes) = (title.store, title.ttl, show.nodes());
    let counters = match &show.places {
        Some(_) => format!(", {KEYS} counters in {SHARDS} shards"),
        None => String::new(),
    };
    vec![
        format!(
            "  {BOLD}tenure demo{PLAIN}   {nodes} nodes, one worker{counters} · store {store}, ttl {ttl:?}   \
             {BOLD}{elapsed}{PLAIN}{length}"
        ),
        format!(
            "  {DIM}One node at a time writes the client's jobs to a ledger, each job once.{PLAIN}"
        ),
        String::new(),
    ]
}

fn table(show: &Show, now: Moment) -> Vec<String> {
    let mut lines = vec![format!(
        "  {DIM}{:<4} {:<8} {:<18} {:<20} {}{}{PLAIN}",
        "node",
        "pid",
        "member",
        "reachable",
        if show.places.is_some() { "shards   " } else { "" },
        "works with token"
    )];
    for number in 1..=show.nodes() {
        lines.push(row(show, number, now));
    }
    lines
}

fn row(show: &Show, number: usize, now: Moment) -> String {
    let actor = &show.stage.actors[number];
    let pid = show.stage.pid(number).map_or("–".into(), |pid| pid.to_string());
    let (member, colour) = match &actor.state {
        State::Gone(why) => ((*why).to_owned(), RED),
        State::Paused(until) => {
            (format!("stopped, {} s more", until.since(now).as_secs() + 1), YELLOW)
        }
        State::Leaves => ("leaves".into(), YELLOW),
        State::Runs => match show.views.get(&number) {
            Some(view) if view.up => ("up".into(), PLAIN),
            _ => ("not in".into(), YELLOW),
        },
    };
    let missed = missed_by(show, number);
    let (reach, reach_colour) = match (&actor.state, missed.is_empty()) {
        (State::Gone(_), _) => (String::new(), PLAIN),
        (_, true) => ("yes".into(), PLAIN),
        (_, false) => (format!("not from {}", list(&missed)), YELLOW),
    };
    let holds = show.history.holder(now).filter(|work| work.node == number);
    let mut worker = holds.map_or(String::new(), |work| {
        let since = now.since(work.started).as_secs();
        format!("{GREEN}{BOLD}● {}{PLAIN} {DIM}{since} s{PLAIN} ", said_token(work.token))
    });
    if show.stage.without_store.contains(&number) && show.stage.pid(number).is_some() {
        let _ = write!(worker, "{YELLOW}no store{PLAIN}");
    }
    let shards =
        show.places.as_ref().map_or(String::new(), |places| match places.nodes.get(&number) {
            Some(share) => {
                let says = share.coordinates.map_or("    ", |_| "says");
                format!("{:>3} {CYAN}{says}{PLAIN}  ", share.hosted.len())
            }
            None => format!("{:9}", ""),
        });
    let mark = if show.chosen == Target::Node(number) { '›' } else { ' ' };
    format!(
        " {mark}{number:<4} {pid:<8} {colour}{member:<18}{PLAIN} {reach_colour}{reach:<20}{PLAIN} {shards}{worker}"
    )
}

/// Who cannot reach it, as those say that run.
fn missed_by(show: &Show, number: usize) -> std::collections::BTreeSet<usize> {
    let running = |from: &usize| show.stage.actors[*from].state == State::Runs;
    let views = show.views.iter().filter(|(from, _)| running(from));
    let seen = views.flat_map(|(_, view)| &view.members).filter(|seen| seen.number == number);
    seen.flat_map(|seen| seen.missed_by.iter().copied()).collect()
}

fn figures(show: &Show, now: Moment) -> Vec<String> {
    let jobs = show.jobs;
    let failovers = show.history.failovers(now);
    let last = failovers.last().map_or("–".into(), |failover| ms(failover.gap));
    let overlaps = show.history.overlaps(now);
    let network = match &show.stage.sides[..] {
        [] => "whole".into(),
        sides => format!("{YELLOW}cut: {}{PLAIN}", said_sides(sides)),
    };
    let without = &show.stage.without_store;
    let store = if without.is_empty() {
        "answers".into()
    } else if without.len() > show.nodes() {
        format!("{RED}away{PLAIN}")
    } else {
        format!("{YELLOW}away for {}{PLAIN}", list(without))
    };
    let zero = |count: usize| {
        let colour = if count == 0 { GREEN } else { RED };
        format!("{colour}{BOLD}{count}{PLAIN}")
    };
    let mut lines = vec![
        format!("  network  {network}      store  {store}"),
        format!(
            "  jobs     sent {:<8} done {BOLD}{:<8}{PLAIN} waiting {}",
            jobs.sent,
            jobs.acknowledged,
            jobs.sent - jobs.acknowledged.min(jobs.sent)
        ),
        format!(
            "  worker   moved {} times, last gap {last}, two at once {}, stale writes refused {}",
            failovers.len(),
            zero(overlaps),
            show.refused
        ),
    ];
    if let Some(places) = &show.places {
        let (sent, done) = (places.sent, places.acknowledged);
        lines.push(format!(
            "  writes   sent {sent:<8} done {BOLD}{done:<8}{PLAIN} waiting {:<6} shards moved {}",
            sent - done.min(sent),
            places.moved()
        ));
    }
    lines
}

fn foot(show: &Show, title: &Title<'_>, now: Moment) -> Vec<String> {
    let next = match (title.phase, show.script.steps.front()) {
        (Some(phase), _) => phase.to_owned(),
        (None, Some((at, action))) if !show.by_hand => {
            let wait = at.saturating_sub(show.elapsed(now)).as_secs();
            format!("next: {} in {wait} s", said(action))
        }
        _ => String::new(),
    };
    let mut lines = vec![format!("  {BOLD}{next}{PLAIN}")];
    lines.extend(title.page.as_ref().map(|url| format!("  page: {BOLD}{url}{PLAIN}")));
    if title.keys {
        let key = |key: &str, what: &str| format!("{BOLD}{key}{PLAIN} {what}   ");
        let whom = match show.chosen {
            Target::Node(number) => called(number),
            _ => "the worker".into(),
        };
        let one = [
            ("k", "kill -9"),
            ("p", "pause 6 s"),
            ("c", "cut off"),
            ("s", "no store"),
            ("l", "leave"),
        ];
        let all = [
            ("x", "cut in two"),
            ("a", "store away"),
            ("h", "heal"),
            ("r", "restart"),
            ("q", "end, and sum up"),
        ];
        let line =
            |keys: &[(&str, &str)]| keys.iter().map(|(k, what)| key(k, what)).collect::<String>();
        lines.push(format!(
            "  {CYAN}{whom:<12}{PLAIN} {}{DIM}1-{} 0 whom{PLAIN}",
            line(&one),
            show.nodes()
        ));
        lines.push(format!("  {CYAN}{:<12}{PLAIN} {}", "everybody", line(&all)));
    }
    lines
}

/// An action in a few words.
fn said(action: &Action) -> &'static str {
    match action {
        Action::Cut(_) => "the network is cut",
        Action::Heal => "the network heals",
        Action::Kill(_) => "kill -9",
        Action::Pause(..) => "a process is stopped",
        Action::Leave(_) => "a node leaves",
        Action::Program(_) => "another version is started from now on",
        Action::Restart(_) => "those that are gone are started again",
        Action::StoreAway(whom) if whom.is_empty() => "the store goes away",
        Action::StoreAway(_) => "the store goes away for one",
        Action::StoreBack => "the store comes back",
    }
}

/// The end, for people.
pub(super) fn print(summary: &Summary, show: &Show) {
    let now = Moment::now();
    let mut text = String::new();
    for failover in show.history.failovers(now) {
        let (gap, node) = (ms(failover.gap), failover.node);
        let _ = writeln!(text, "  {gap:>9}  {}: node {node} took over", failover.cause);
    }
    let _ = writeln!(
        text,
        "
  failovers             {:<8} gap p50 {} ms, max {} ms
  silence at the client {:<8} max {} ms
  two at once           {}
  stale writes accepted {:<8} refused {}
  jobs acknowledged     {:<8} lost {}, done twice {}",
        summary.failovers,
        summary.gap_ms_p50,
        summary.gap_ms_max,
        format!("p50 {} ms,", summary.silence_ms_p50),
        summary.silence_ms_max,
        summary.overlaps,
        summary.stale_writes_accepted,
        summary.stale_writes_refused,
        summary.jobs_acknowledged,
        summary.jobs_lost,
        summary.jobs_twice,
    );
    summary.counters.iter().for_each(|figures| counters(figures, &mut text));
    put(&text);
}

fn counters(figures: &Figures, text: &mut String) {
    let _ = writeln!(
        text,
        "
  shards moved          {:<8} writes to one waited p50 {} ms, max {} ms; to others {} ms
  counters              {:<8} in two places {}, out of order {}
  stale writes accepted {:<8} refused {}
  writes acknowledged   {:<8} lost {}, done twice {}
  requests to the store {:<8} in a second, at most",
        figures.shards_moved,
        figures.shard_unavailable_ms_p50,
        figures.shard_unavailable_ms_max,
        figures.others_unavailable_ms_max,
        figures.keys,
        figures.key_overlaps,
        figures.key_out_of_order,
        figures.key_stale_writes_accepted,
        figures.key_stale_writes_refused,
        figures.writes_acknowledged,
        figures.writes_lost,
        figures.writes_twice,
        figures.store_requests_per_second_max,
    );
}

fn put(text: &str) {
    let mut out = io::stdout().lock();
    // Whoever looked is gone; what is shown is said again in the exit status.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn clock(event: &Event, began: Option<Moment>) -> String {
    match began {
        Some(began) if event.at >= began => {
            format!("{:>6.2} s", event.at.since(began).as_secs_f64())
        }
        _ => "  before".into(),
    }
}

fn minutes(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

const PLAIN: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const CYAN: &str = "\x1b[36m";
