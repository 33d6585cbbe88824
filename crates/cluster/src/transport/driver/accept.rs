//! The listening socket: who may come in, and how many may try at once.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_lease::Moment;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::carrier::{Carrier, Listening};
use super::greet::Answered;
use super::{Shared, clients, greet, incoming, lock};
use crate::transport::{Lane, Refusal, telemetry};

pub(super) async fn run(shared: Arc<Shared>, listener: Listening) {
    shared.ending.unless(accept(&shared, listener)).await;
}

async fn accept(shared: &Arc<Shared>, listener: Listening) {
    let unknown = Arc::new(Mutex::new(Unknown::default()));
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut since, mut burst) = (Moment::now(), 0);
    loop {
        // Handshakes cost time that heartbeats need: whoever comes on top of that waits in line.
        if Moment::now().since(since) >= PAUSE {
            (since, burst) = (Moment::now(), 0);
        } else if burst == PER_PAUSE {
            sleep(PAUSE).await;
            continue;
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = sweep.tick() => {
                lock(&shared.incoming).sweep(Moment::now(), shared.settings.idle_timeout);
                continue;
            }
        };
        let (tcp, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: the next attempt would fail as well.
                tracing::error!("cannot accept a connection: {error}");
                sleep(TROUBLE).await;
                continue;
            }
        };
        burst += 1;
        match Visitor::admit(shared, &unknown, from.ip()) {
            Ok(visitor) => {
                let control = &shared.handles.control;
                shared.spawn(control, welcome(shared.clone(), tcp, from, visitor));
            }
            Err(refusal) => shared.refuse(from.ip(), refusal),
        }
    }
}

async fn welcome(shared: Arc<Shared>, tcp: Carrier, from: SocketAddr, visitor: Visitor) {
    let within = shared.settings.handshake_timeout;
    let answering = timeout(within, greet::answer(&shared, tcp, from));
    let answered = match shared.ending.unless(answering).await {
        Some(Ok(answered)) => answered,
        Some(Err(_)) => Err(Refusal::Slow(within)),
        None => return,
    };
    drop(visitor);
    match answered {
        Err(refusal) => shared.refuse(from.ip(), refusal),
        Ok(Answered::Client(client)) => clients::begin(&shared, client, from.ip()),
        Ok(Answered::Node(greeted, Lane::Control, admission)) => {
            incoming::run(shared, greeted, Lane::Control, admission).await;
        }
        Ok(Answered::Node(mut greeted, Lane::Data, admission)) => {
            let data = &shared.handles.data;
            match greeted.stream.carry_data_on(data) {
                Ok(()) => {
                    let task = incoming::run(shared.clone(), greeted, Lane::Data, admission);
                    shared.spawn(data, task);
                }
                Err(error) => shared.refuse(from.ip(), Refusal::Cut(error.to_string())),
            }
        }
    }
}

/// Those that have not yet said who they are.
#[derive(Debug, Default)]
struct Unknown {
    all: usize,
    by_ip: HashMap<IpAddr, usize>,
}

/// One of them; no longer, when dropped.
struct Visitor {
    unknown: Arc<Mutex<Unknown>>,
    ip: IpAddr,
}

impl Visitor {
    fn admit(shared: &Shared, unknown: &Arc<Mutex<Unknown>>, ip: IpAddr) -> Result<Self, Refusal> {
        let settings = &shared.settings;
        if lock(&shared.incoming).len() >= settings.connections_max {
            return Err(Refusal::TooMany("connections (connections_max)"));
        }
        let mut counts = lock(unknown);
        if counts.all >= settings.handshakes_max {
            return Err(Refusal::TooMany("unfinished handshakes (handshakes_max)"));
        }
        let of_ip = counts.by_ip.entry(ip).or_default();
        if *of_ip >= settings.handshakes_per_ip_max {
            return Err(Refusal::TooMany(
                "unfinished handshakes from its address (handshakes_per_ip_max)",
            ));
        }
        *of_ip += 1;
        counts.all += 1;
        telemetry::handshakes(counts.all);
        drop(counts);
        Ok(Self { unknown: unknown.clone(), ip })
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let mut counts = lock(&self.unknown);
        counts.all -= 1;
        telemetry::handshakes(counts.all);
        if let Some(of_ip) = counts.by_ip.get_mut(&self.ip) {
            *of_ip -= 1;
            if *of_ip == 0 {
                counts.by_ip.remove(&self.ip);
            }
        }
    }
}

const SWEEP: Duration = Duration::from_secs(5);
const TROUBLE: Duration = Duration::from_secs(1);
/// A thousand connections in a second: a handshake takes a fraction of a millisecond.
const PAUSE: Duration = Duration::from_millis(20);
const PER_PAUSE: u32 = 20;
