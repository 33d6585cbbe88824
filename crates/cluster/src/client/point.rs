//! One contact point, and the connection to it: opened when it is needed, closed when it has been idle,
//! replaced before it is too old.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::ClientSettings;
use crate::Address;
use crate::clients::wire::{self, Answer, Doubt, Outcome, Request, Why};
use crate::transport::{Frames, Outgoing, Refusal, Security, dial_as_client};

#[derive(Debug)]
pub(super) struct Point {
    address: Address,
    settings: Arc<ClientSettings>,
    security: Security,
    /// Whoever opens it keeps the others waiting: one attempt for all.
    open: AsyncMutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    connection: Option<Arc<Connection>>,
    /// Why the last attempt has failed, and when: it is not made again at once.
    refused: Option<(Refusal, Instant)>,
}

/// What came of a request.
#[derive(Debug)]
pub(super) enum Sent {
    /// It never left this process.
    Unsent,
    /// Nor was there time for it.
    Late,
    TooLong {
        len: usize,
        max: usize,
    },
    Done(Vec<u8>),
    NotDone(Why),
    Unknown(Doubt),
}

impl Point {
    pub(super) fn new(address: Address, settings: Arc<ClientSettings>, security: Security) -> Self {
        Self { address, settings, security, open: AsyncMutex::default() }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// The connection; opened if there is none that can be used.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, Refusal> {
        let mut open = self.open.lock().await;
        if let Some(connection) = open.connection.as_ref().filter(|it| it.is_usable()) {
            return Ok(connection.clone());
        }
        open.connection = None;
        if let Some((refusal, at)) = &open.refused
            && at.elapsed() < AGAIN
        {
            return Err(refusal.clone());
        }
        let ClientSettings { cluster, name, transport, .. } = &*self.settings;
        if let Security::Tls(identity) = &self.security {
            // A certificate that was renewed is used from the next connection on.
            let _ = identity.reload();
        }
        match dial_as_client(transport, &self.security, cluster, name, &self.address).await {
            Ok(dialed) => {
                let (requests, requests_out) = mpsc::channel(REQUESTS);
                let (answers, answers_out) = mpsc::channel(REQUESTS);
                let connection = Arc::new(Connection {
                    requests,
                    waiting: Mutex::default(),
                    next: AtomicU64::new(1),
                    retired: AtomicBool::new(false),
                    settled: Notify::new(),
                });
                let (serving, settings) = (connection.clone(), self.settings.clone());
                let address = self.address.clone();
                tokio::spawn(async move {
                    let mut hearing = std::pin::pin!(serving.hear(answers_out));
                    let why = tokio::select! {
                        why = dialed.carry(&settings.transport, requests_out, answers) => {
                            hearing.await; // What has come was said before the end.
                            why
                        }
                        why = &mut hearing => why.into(),
                        () = serving.outlive(&settings) => "it is idle, or old".into(),
                    };
                    serving.end();
                    tracing::debug!(%address, "a client's connection has ended: {why}");
                });
                open.connection = Some(connection.clone());
                open.refused = None;
                Ok(connection)
            }
            Err(refusal) => {
                if open.refused.as_ref().is_none_or(|(before, _)| *before != refusal) {
                    tracing::warn!(address = %self.address, "a client cannot connect: {refusal}");
                }
                open.refused = Some((refusal.clone(), Instant::now()));
                Err(refusal)
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    requests: mpsc::Sender<Outgoing>,
    waiting: Mutex<Waiting>,
    next: AtomicU64,
    /// What comes next goes elsewhere.
    retired: AtomicBool,
    /// Nothing waits any more.
    settled: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: HashMap<u64, (Arc<AtomicBool>, oneshot::Sender<Sent>)>,
    ended: bool,
}

impl Connection {
    fn is_usable(&self) -> bool {
        !self.retired.load(Relaxed) && !self.lock().ended
    }

    /// Sends a request, and waits for what comes of it.
    pub(super) async fn send(
        &self,
        request: &mut Request,
        body: &[u8],
        frame_max: usize,
        deadline: Instant,
    ) -> Sent {
        request.id = self.next.fetch_add(1, Relaxed);
        let frame = wire::pack_request(request, body);
        if frame.len() > frame_max {
            return Sent::TooLong { len: frame.len(), max: frame_max };
        }
        let taken = Arc::<AtomicBool>::default();
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.lock();
            if waiting.ended {
                return Sent::Unsent;
            }
            waiting.requests.insert(request.id, (taken.clone(), tell));
        }
        let waits = Waits { connection: self, id: request.id };
        let outgoing = Outgoing { body: frame, taken: Some(taken.clone()) };
        match timeout_at(deadline, self.requests.send(outgoing)).await {
            Err(_) => return Sent::Late,
            Ok(Err(_)) => return Sent::Unsent,
            Ok(Ok(())) => {}
        }
        let sent = match timeout_at(deadline, told).await {
            Ok(Ok(sent)) => sent,
            // Not reached: whoever takes it out of the table says why.
            Ok(Err(_)) => Sent::Unknown(Doubt::Cut),
            Err(_) => Sent::Unknown(Doubt::NoAnswer),
        };
        drop(waits);
        sent
    }

    /// Takes what the member says, until it says nothing more.
    async fn hear(&self, mut answers: mpsc::Receiver<Frames>) -> &'static str {
        while let Some(frames) = answers.recv().await {
            for frame in frames {
                let Some((Answer { id, outcome }, body)) = wire::read_answer(&frame) else {
                    return "an answer cannot be read";
                };
                let sent = match outcome {
                    Outcome::Done => Sent::Done(body.to_vec()),
                    Outcome::NotDone(why) => Sent::NotDone(why),
                    Outcome::Unknown(doubt) => Sent::Unknown(doubt),
                    Outcome::Goodbye => {
                        self.retired.store(true, Relaxed);
                        self.settled.notify_one();
                        continue;
                    }
                };
                if let Some((_, tell)) = self.lock().requests.remove(&id) {
                    let _ = tell.send(sent); // Nobody may wait any more.
                }
            }
        }
        "nothing more is heard"
    }

    /// Waits until it is not needed any more: it has been idle, or is to be replaced and everything
    /// was answered.
    async fn outlive(&self, settings: &ClientSettings) {
        let old_at = Instant::now() + settings.transport.link_age_max.mul_f64(0.75);
        let mut last = 0;
        loop {
            let idle_at = Instant::now() + settings.transport.idle_timeout;
            tokio::select! {
                () = sleep_until(idle_at.min(old_at)) => {}
                () = self.settled.notified() => {}
            }
            let next = self.next.load(Relaxed);
            let is_idle = next == last && Instant::now() >= idle_at;
            last = next;
            if is_idle || Instant::now() >= old_at {
                self.retired.store(true, Relaxed);
            }
            if self.retired.load(Relaxed) {
                self.settle().await;
                return;
            }
        }
    }

    /// Waits until everything was answered, for as long as anybody waits for it.
    async fn settle(&self) {
        while !self.lock().requests.is_empty() {
            tokio::time::sleep(SETTLE_POLL).await;
        }
    }

    /// It is over: what may have left this process is unknown.
    fn end(&self) {
        let mut waiting = self.lock();
        waiting.ended = true;
        for (_, (taken, tell)) in waiting.requests.drain() {
            let sent = match taken.load(Relaxed) {
                true => Sent::Unknown(Doubt::Cut),
                false => Sent::Unsent,
            };
            let _ = tell.send(sent);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // What is guarded is never left half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody waits for a request.
struct Waits<'a> {
    connection: &'a Connection,
    id: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.connection.lock().requests.remove(&self.id);
    }
}

pub(super) fn random() -> u64 {
    // Only for jitter, and to spread clients over members.
    tenure_lease::world::random_bits().unwrap_or(u64::MAX / 2)
}

/// How many requests wait to be written.
const REQUESTS: usize = 64;
/// How long what a contact point said when it refused is believed.
const AGAIN: Duration = Duration::from_millis(100);
const SETTLE_POLL: Duration = Duration::from_millis(10);
