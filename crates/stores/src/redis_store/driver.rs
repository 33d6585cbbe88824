//! Watching: one subscription for all leases of a client, and a look now and then behind it.
//!
//! A message is a hint that is heard at most once, and not at all by who is not connected; an
//! operator's tool sends none. So each watch also looks at its record every second.
#![allow(clippy::disallowed_methods)] // It waits, and starts tasks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::Value;
use futures_util::StreamExt as _;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinHandle;

use tenure_lease::backend::{Boxed, Watch};
use tenure_lease::{LeaseName, Nonce};

use super::link::Link;
use super::{Keys, tenant};

/// Hears what is published, and tells all watches.
pub(super) struct Hub {
    link: Arc<Link>,
    channel: String,
    heard: broadcast::Sender<Heard>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// What was heard.
#[derive(Clone, Debug)]
enum Heard {
    /// This lease has changed.
    Name(Arc<str>),
    /// The subscription stands (again); something may have been missed before.
    Anew,
}

impl Hub {
    pub(super) fn new(link: Arc<Link>, channel: String) -> Self {
        let (heard, _) = broadcast::channel(QUEUE);
        Self { link, channel, heard, task: Mutex::default() }
    }

    /// A new pair of ears; the subscription is made if there is none.
    fn listen(self: &Arc<Self>) -> broadcast::Receiver<Heard> {
        let receiver = self.heard.subscribe();
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            let (link, channel) = (Arc::clone(&self.link), self.channel.clone());
            *task = Some(tokio::spawn(relay(link, channel, self.heard.clone())));
        }
        receiver
    }
}

/// Passes messages on for as long as anybody listens.
async fn relay(link: Arc<Link>, channel: String, heard: broadcast::Sender<Heard>) {
    let mut failures = 0;
    while heard.receiver_count() > 0 {
        let subscribed = tokio::time::timeout(SUBSCRIBE_TIMEOUT, link.subscribe(&channel)).await;
        if let Ok(Ok(messages)) = subscribed {
            failures = 0;
            let (mut sink, mut stream) = messages.split();
            // Nobody may be listening any more: that is seen below.
            let _ = heard.send(Heard::Anew);
            loop {
                match tokio::time::timeout(PROBE, stream.next()).await {
                    Ok(Some(message)) => {
                        let name = String::from_utf8_lossy(message.get_payload_bytes());
                        let _ = heard.send(Heard::Name(name.into()));
                    }
                    Ok(None) => break,
                    // Silence: is anybody there, on either side?
                    Err(_) if heard.receiver_count() == 0 => return,
                    Err(_) => {
                        let ping = tokio::time::timeout(PROBE, sink.ping::<()>()).await;
                        if !matches!(ping, Ok(Ok(()))) {
                            break;
                        }
                    }
                }
            }
        }
        failures = (failures + 1).min(6);
        tokio::time::sleep(jittered(BACKOFF * 2_u32.pow(failures))).await;
    }
}

/// A watch on one lease.
pub(super) struct RedisWatch {
    pub(super) hub: Arc<Hub>,
    pub(super) name: LeaseName,
    pub(super) keys: Keys,
    pub(super) ears: Option<Ears>,
    /// Who held it when the watch last woke; `None`: it is not established.
    pub(super) seen: Option<Vec<Value>>,
    pub(super) failures: u32,
}

pub(super) struct Ears(broadcast::Receiver<Heard>);

impl Watch for RedisWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(async {
            loop {
                let Self { hub, name, keys, ears, seen, failures } = &mut *self;
                let Ears(ears) = ears.get_or_insert_with(|| Ears(hub.listen()));
                if seen.is_some()
                    && tokio::time::timeout(jittered(LOOK), heard_of(ears, name)).await.is_err()
                {
                    // The subscription may have ended with the runtime that it was made on.
                    drop(hub.listen());
                }
                match tokio::time::timeout(LOOK_TIMEOUT, tenant(&hub.link, keys)).await {
                    Ok(Ok(now)) => {
                        *failures = 0;
                        if seen.as_ref() != Some(&now) {
                            *seen = Some(now);
                            return;
                        }
                    }
                    Ok(Err(_)) | Err(_) => {
                        *seen = None;
                        *failures = (*failures + 1).min(6);
                        tokio::time::sleep(jittered(BACKOFF * 2_u32.pow(*failures))).await;
                    }
                }
            }
        })
    }
}

/// Waits until this lease may have changed. Claims never recur, so a look tells whether it has.
async fn heard_of(ears: &mut broadcast::Receiver<Heard>, name: &LeaseName) {
    loop {
        match ears.recv().await {
            Ok(Heard::Name(of)) if *of != *name.as_str() => {}
            Ok(Heard::Name(_) | Heard::Anew) | Err(RecvError::Lagged(_)) => return,
            // The hub keeps a sender for as long as there is a watch.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Between three quarters and five quarters of it.
fn jittered(pause: Duration) -> Duration {
    let part = (Nonce::random().bits() % 1024) as u32;
    pause * 3 / 4 + pause / 2 * part / 1024
}

/// So many messages wait for a slow watch; one that missed some looks for itself.
const QUEUE: usize = 1024;
/// How often a watch looks without having heard anything.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(10);
/// After so long a silence the subscription is probed.
const PROBE: Duration = Duration::from_secs(10);
const BACKOFF: Duration = Duration::from_millis(50);
