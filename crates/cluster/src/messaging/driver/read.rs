//! What a node sends, on its way to mailboxes.

use std::sync::Arc;

use super::{
    Entry, Frames, Head, Lost, Mailbox, Messaging, Node, Refused, mpsc, put, telemetry, wire,
};

pub(super) async fn read(
    messaging: Arc<Messaging>,
    from: Node,
    mut batches: mpsc::Receiver<Frames>,
) {
    let mut reader = Reader { messaging, from, last: None };
    while let Some(mut frames) = batches.recv().await {
        while let Some(first) = frames.first() {
            match wire::head(first) {
                Head::To { kind, name } => {
                    let found = reader.receiver(name);
                    let run =
                        frames.take_same(|first, other| wire::head(first) == wire::head(other));
                    reader.deliver(kind, found, run).await;
                }
                Head::Back(back) => {
                    reader.messaging.returned(&reader.from, back);
                    frames.read_next(|_| ());
                }
                Head::Other => {
                    telemetry::ignored();
                    frames.read_next(|_| ());
                }
            }
        }
    }
}

struct Reader {
    messaging: Arc<Messaging>,
    from: Node,
    /// Most messages go where the one before went.
    last: Option<Arc<Mailbox>>,
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

    async fn deliver(&self, kind: u8, found: Result<Arc<Mailbox>, Arc<str>>, run: Frames) {
        let entry = Entry::Frames { from: self.from.clone(), frames: run.compact() };
        let mailbox = match found {
            Ok(mailbox) => mailbox,
            Err(name) => return self.messaging.refuse_entry(&name, entry, Lost::NoSuchReceiver),
        };
        let put = match kind {
            wire::TELL => put(&mailbox, entry).await,
            _ => mailbox.try_put(entry),
        };
        if let Err(Refused { entry, why }) = put {
            self.messaging.refuse_entry(&mailbox.name, entry, why.into());
        }
    }
}
