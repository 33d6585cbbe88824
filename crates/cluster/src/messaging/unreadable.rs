//! Messages that their receiver cannot read: the sender is told why, and so is this node's operator.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::Moment;

use super::wire::Back;
use super::{CodecError, Lost, Messaging, telemetry};
use crate::Node;
use crate::transport::SenderAccount;

impl Messaging {
    /// Tells a node that one of its messages cannot be read, and why.
    pub(super) fn refuse_unreadable(
        self: &Arc<Self>,
        from: &Node,
        account: Option<&SenderAccount>,
        receiver: &str,
        ask: Option<u64>,
        detail: &str,
    ) {
        let why = Lost::Unreadable;
        telemetry::refused(why, 1);
        match (ask, account) {
            (Some(_), _) => {}
            (None, Some(account)) => account.give_back(1),
            (None, None) if self.is_me(from) => {}
            // It was posted: of that nobody hears.
            (None, None) => return,
        }
        let (name, detail) = (receiver.as_bytes(), detail.as_bytes());
        let back = match ask {
            Some(ask) => Back::Refused { ask, why, detail },
            None => Back::Dead { why, count: 1, name, id: &[], detail },
        };
        self.back(from, back);
    }
}

/// What a receiver has logged: each reason once per sender and hour, and not without end.
#[derive(Debug, Default)]
pub(super) struct UnreadableLog {
    seen: HashSet<(Node, String)>,
    /// When it begins again.
    ends: Option<Moment>,
}

impl UnreadableLog {
    /// Logs a message that cannot be read, unless that was logged; says why it cannot, in a line.
    pub(super) fn note(
        &mut self,
        now: Moment,
        receiver: &str,
        from: &Node,
        error: &CodecError,
    ) -> String {
        let why = one_line(&error.to_string());
        if self.ends.is_none_or(|ends| ends <= now) {
            *self = Self { seen: HashSet::new(), ends: Some(now + PERIOD) };
        }
        if self.seen.len() < REASONS && self.seen.insert((from.clone(), why.clone())) {
            tracing::warn!(receiver, %from, "messages cannot be read, and are refused: {why}; \
                more of them are only counted for an hour, in {}", telemetry::REFUSED);
        }
        why
    }
}

/// What a peer is told, or says, of a message: as much as fits a line.
pub(super) fn one_line(text: &str) -> String {
    text.chars().take(DETAIL_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

const DETAIL_MAX: usize = 200;
const PERIOD: Duration = Duration::from_secs(3600);
/// How many reasons are logged in that time.
const REASONS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, Incarnation};

    #[test]
    fn each_reason_is_logged_once_per_sender_and_hour() {
        let node = |incarnation| Node {
            address: Address::new("127.0.0.1:7400").unwrap(),
            incarnation: Incarnation(incarnation),
        };
        let (mut log, now) = (UnreadableLog::default(), Moment::now());
        let mut note = |now, from, error: &str| {
            let before = log.seen.len();
            assert!(!log.note(now, "x", &node(from), &CodecError::new(error)).contains('\n'));
            log.seen.len() != before
        };
        assert!(note(now, 1, "sent\nA@2"));
        assert!(!note(now, 1, "sent\nA@2"));
        assert!(note(now, 1, "sent B@2"));
        assert!(note(now, 2, "sent B@2"));
        for number in 3..REASONS as u64 {
            assert!(note(now, number, "sent B@2"));
        }
        assert!(!note(now + PERIOD / 2, 1000, "sent B@2"), "a stranger does not fill the log");
        note(now + PERIOD, 1000, "sent B@2");
        assert_eq!(log.seen.len(), 1, "a new hour");
    }
}
