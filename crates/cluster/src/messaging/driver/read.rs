//! What a node sends, on its way to mailboxes.

use std::sync::Arc;
use std::time::Duration;

use super::overflow::Overflows;
use super::{
    Entry, Frames, Head, Lost, Mailbox, Messaging, Node, Refused, SenderAccount, State, mpsc,
    telemetry, timeout, wire,
};

pub(super) async fn read(
    messaging: Arc<Messaging>,
    account: Arc<SenderAccount>,
    mut batches: mpsc::Receiver<Frames>,
) {
    let from = account.node().clone();
    if !await_member(&messaging, &from).await {
        let mut messages = 0;
        while let Ok(frames) = batches.try_recv() {
            messages += frames.len() as u64;
        }
        account.give_back(messages);
        telemetry::refused(Lost::Refused, messages);
        tracing::debug!(%from, messages, "messages of somebody who is no member were dropped");
        return;
    }
    let overflows = Overflows::new(&messaging, from);
    let mut reader = Reader { messaging, account, last: None, overflows };
    while let Some(mut frames) = batches.recv().await {
        while let Some(first) = frames.first() {
            match wire::head(first) {
                Head::To { kind, name } => {
                    let found = reader.receiver(name);
                    let run =
                        frames.take_same(|first, other| wire::head(first) == wire::head(other));
                    reader.deliver(kind, found, run);
                }
                Head::Back(back) => {
                    reader.messaging.returned(reader.account.node(), back);
                    reader.account.settle(1);
                    frames.read_next(|_| ());
                }
                // Those are posted.
                Head::Hold(_) | Head::Release(_) | Head::Other => {
                    telemetry::ignored();
                    reader.account.settle(1);
                    frames.read_next(|_| ());
                }
            }
        }
    }
}

/// Waits until the sender is a member, in this node's view: who has just been let in may speak before
/// this node has heard of it. Others who have a certificate have nothing to say.
async fn await_member(messaging: &Messaging, from: &Node) -> bool {
    let mut state = messaging.state.clone();
    let is_member = |state: &State| match &state.view {
        Some(view) => view.member(from).is_some(),
        None => false,
    };
    matches!(timeout(NEWCOMER, state.wait_for(is_member)).await, Ok(Ok(_)))
}

/// How long it may take until this node has heard of a newcomer that speaks to it.
const NEWCOMER: Duration = Duration::from_secs(10);

struct Reader {
    messaging: Arc<Messaging>,
    account: Arc<SenderAccount>,
    /// Most messages go where the one before went.
    last: Option<Arc<Mailbox>>,
    overflows: Overflows,
}

impl Reader {
    fn receiver(&mut self, name: &[u8]) -> Result<Arc<Mailbox>, Arc<str>> {
        if let Some(last) = &self.last
            && last.name.as_bytes() == name
            && !last.is_closed()
        {
            return Ok(last.clone());
        }
        self.last = self.messaging.receiver(name);
        self.last.clone().ok_or_else(|| String::from_utf8_lossy(name).into())
    }

    /// Never waits: everything else that the node sends, answers included, comes after this.
    fn deliver(&mut self, kind: u8, found: Result<Arc<Mailbox>, Arc<str>>, run: Frames) {
        let entry = match kind {
            // Whoever asks learns of everything by itself.
            wire::ASK => {
                self.account.settle(run.len() as u64);
                Entry::frames(self.account.node().clone(), run.compact())
            }
            _ => Entry::told(&self.account, run.compact()),
        };
        let mailbox = match found {
            Ok(mailbox) => mailbox,
            Err(name) => return self.messaging.refuse_entry(&name, entry, Lost::NoSuchReceiver),
        };
        let put = match kind {
            wire::TELL => {
                let put = mailbox.put_told(entry, |bytes| self.overflows.add(&mailbox.name, bytes));
                self.overflows.hold_if_high(&mailbox);
                put
            }
            _ => mailbox.try_put(entry),
        };
        if let Err(Refused { entry, why }) = put {
            self.messaging.refuse_entry(&mailbox.name, entry, why.into());
        }
    }
}
