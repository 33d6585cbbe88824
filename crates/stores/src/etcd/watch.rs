//! Waits until a lease may be free.
#![allow(clippy::disallowed_methods)] // It drives: it waits before it connects again.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tenure_lease::Nonce;
use tenure_lease::backend::{Boxed, Watch};
use tokio::time::Instant;

use super::client::Client;
use super::content::is_renewal;
use super::wire::{Streamed, Watched};

/// A watch on the live key: one streaming request, opened again whenever it ends.
pub(super) struct EtcdWatch {
    client: Arc<Client>,
    key: String,
    stream: Option<Stream>,
    /// How often in a row it could not be opened, or ended before it stood.
    failures: u32,
    /// When to open it, after it failed.
    retry_at: Option<Instant>,
}

struct Stream {
    body: Incoming,
    /// What has come of the next message.
    buffer: BytesMut,
}

impl EtcdWatch {
    pub(super) fn new(client: Arc<Client>, key: String) -> Self {
        Self { client, key, stream: None, failures: 0, retry_at: None }
    }

    /// Whatever it keeps between two awaits is in `self`, so it can be dropped at any of them.
    async fn changed(&mut self) {
        loop {
            if let Some(retry_at) = self.retry_at {
                tokio::time::sleep_until(retry_at).await;
                self.retry_at = None;
            }
            let stream = match &mut self.stream {
                Some(stream) => stream,
                None => match self.client.watch(&self.key).await {
                    Ok(reply) => self
                        .stream
                        .insert(Stream { body: reply.into_body(), buffer: BytesMut::new() }),
                    Err(_) => {
                        self.failed();
                        continue;
                    }
                },
            };
            match stream.message().await {
                Some(message) if message.created => {
                    self.failures = 0;
                    return;
                }
                Some(message) if !message.canceled => {
                    if concerns(message) {
                        return;
                    }
                }
                _ => self.failed(),
            }
        }
    }

    fn failed(&mut self) {
        self.stream = None;
        self.failures += 1;
        let longest = (PAUSE_MIN * 2_u32.saturating_pow(self.failures.min(16))).min(PAUSE_MAX);
        // Between a half and the whole, so that waiters do not come back in step.
        let jitter = Nonce::random().bits() as u32 % 1000;
        let pause = longest / 2 + longest / 2 * jitter / 1000;
        self.retry_at = Some(Instant::now() + pause);
    }
}

impl Watch for EtcdWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(self.changed())
    }
}

impl Stream {
    /// The next message; `None` if there will be none. Messages are lines.
    async fn message(&mut self) -> Option<Watched> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                let message: Streamed<Watched> = serde_json::from_slice(&line).ok()?;
                return message.result;
            }
            if self.buffer.len() > MESSAGE_MAX {
                return None;
            }
            let frame = self.body.frame().await?.ok()?;
            if let Some(data) = frame.data_ref() {
                self.buffer.extend_from_slice(data);
            }
        }
    }
}

/// Whether the lease may be free or changed hands.
fn concerns(message: Watched) -> bool {
    message.events.into_iter().any(|event| match event.put() {
        Some(kv) => !is_renewal(&kv.value),
        None => true,
    })
}

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A message is one small record per event.
const MESSAGE_MAX: usize = 16 * 1024 * 1024;
