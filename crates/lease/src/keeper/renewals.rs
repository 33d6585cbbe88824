//! The renewals of one tenure, several of which may be under way at once.
//!
//! A store that has stopped answering on one connection may answer on another, so a renewal without
//! an answer is followed by the next one while it is still under way: it is *hedged*. Renewals are
//! numbered in the order of their sends. A renewal is applied only if the record carries a nonce
//! that was known when it was sent, so a record that carries nonce *k* is never changed again by a
//! renewal before *k*. Two rules follow:
//!
//! * Once *k* is confirmed, the record carries *k* or the nonce of a later renewal. A new renewal
//!   therefore names *k* and all later ones as known.
//! * The refusal of a renewal *j* may show the nonce of any later renewal, also of one before *k*.
//!   So a nonce is remembered until every renewal before it has an answer: a refusal that shows one
//!   of them says only that two of our own renewals met.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;
use crate::record::{Nonce, Record, Token};

/// The claim of a tenure, and the nonces that its record may carry.
pub(super) struct Renewals {
    claim: Nonce,
    /// In the order of their sends. Never empty: it begins with the claim, which is the first nonce.
    sent: VecDeque<SentRenewal>,
    /// The position of the latest confirmed renewal in `sent`.
    confirmed: usize,
    /// How long confirmed renewals took lately; `None` before the first.
    usual_latency: Option<Duration>,
}

/// One renewal, or the acquisition that the tenure began with.
#[derive(Clone, Copy)]
struct SentRenewal {
    nonce: Nonce,
    at: Moment,
    /// The number of the note that it carries.
    note: Option<u64>,
    /// Whether its answer may still come.
    under_way: bool,
}

/// A renewal that the store has confirmed, and that is the latest one so far.
pub(super) struct Confirmed {
    /// When it was sent.
    pub(super) sent: Moment,
    /// The number of the note that stands in the record now, if it carried one.
    pub(super) note: Option<u64>,
}

/// What a refusal says.
pub(super) enum Refusal {
    /// The record carries the refused renewal itself: a layer below has sent it twice.
    Applied,
    /// Another renewal of this tenure was applied before it.
    Overtaken,
    /// The record is not this tenure's, or a clone of this process has renewed it.
    Final,
}

impl Renewals {
    /// After the acquisition that was sent at this moment.
    pub(super) fn new(claim: Nonce, sent: Moment) -> Self {
        let first = SentRenewal { nonce: claim, at: sent, note: None, under_way: false };
        Self { claim, sent: VecDeque::from([first]), confirmed: 0, usual_latency: None }
    }

    pub(super) fn claim(&self) -> Nonce {
        self.claim
    }

    /// The nonces that the record may carry now.
    pub(super) fn known(&self) -> Vec<Nonce> {
        self.sent.iter().skip(self.confirmed).map(|renewal| renewal.nonce).collect()
    }

    /// How many renewals were sent since the latest confirmed one.
    pub(super) fn unconfirmed(&self) -> usize {
        self.sent.len() - 1 - self.confirmed
    }

    /// Since when a renewal waits for its answer: the first after the latest confirmed one.
    pub(super) fn unconfirmed_since(&self) -> Option<Moment> {
        self.sent.get(self.confirmed + 1).map(|renewal| renewal.at)
    }

    /// When the last renewal was sent.
    pub(super) fn last_sent(&self) -> Moment {
        self.sent.back().map_or(Moment::ZERO, |renewal| renewal.at)
    }

    pub(super) fn usual_latency(&self) -> Option<Duration> {
        self.usual_latency
    }

    /// A renewal goes out now.
    pub(super) fn send(&mut self, now: Moment, nonce: Nonce, note: Option<u64>) {
        if self.sent.len() == NONCES_MAX {
            self.forget_one();
        }
        self.sent.push_back(SentRenewal { nonce, at: now, note, under_way: true });
    }

    /// Makes room: what is confirmed stays. The worst that forgetting a nonce can do is to end the
    /// tenure early.
    fn forget_one(&mut self) {
        let oldest = usize::from(self.confirmed == 0);
        self.sent.remove(oldest);
        self.confirmed = self.confirmed.saturating_sub(1);
    }

    /// What must never be done: see [`Rule::KnowUnanswered`](crate::settings::Rule).
    pub(super) fn forget_unconfirmed(&mut self) {
        self.sent.truncate(self.confirmed + 1);
    }

    /// The number by which the driver brings the answer to the renewal with this nonce.
    pub(super) fn flight(nonce: Nonce) -> u64 {
        nonce.bits() as u64
    }

    /// The nonce of the renewal under way with this number.
    pub(super) fn under_way(&self, flight: u64) -> Option<Nonce> {
        let renewal = self.sent.iter().find(|sent| Self::flight(sent.nonce) == flight)?;
        renewal.under_way.then_some(renewal.nonce)
    }

    /// The store has confirmed it. `None`: a later one was confirmed before, so this is no news.
    pub(super) fn confirm(&mut self, now: Moment, nonce: Nonce) -> Option<Confirmed> {
        let index = self.answered(nonce)?;
        let SentRenewal { at: sent, note, .. } = self.sent[index];
        let is_news = index > self.confirmed;
        if is_news {
            self.confirmed = index;
            let latency = now.since(sent);
            let usual = self.usual_latency.unwrap_or(latency);
            self.usual_latency = Some((usual * 7 + latency) / 8);
        }
        self.forget_answered();
        is_news.then_some(Confirmed { sent, note })
    }

    /// It has no answer, and will have none.
    pub(super) fn fail(&mut self, nonce: Nonce) {
        self.answered(nonce);
        self.forget_answered();
    }

    /// What the refusal of a renewal says: `record` is what the store has shown.
    pub(super) fn judge(&self, refused: Nonce, token: Token, record: Option<&Record>) -> Refusal {
        let shown = record.filter(|record| record.token == token).and_then(|record| {
            let holder = record.holder.as_ref()?;
            if holder.claim == Some(self.claim) { holder.nonce } else { None }
        });
        match shown {
            Some(nonce) if nonce == refused => Refusal::Applied,
            Some(nonce) if self.sent.iter().any(|sent| sent.nonce == nonce) => Refusal::Overtaken,
            Some(_) | None => Refusal::Final,
        }
    }

    fn answered(&mut self, nonce: Nonce) -> Option<usize> {
        let index = self.sent.iter().position(|sent| sent.nonce == nonce)?;
        self.sent[index].under_way = false;
        Some(index)
    }

    /// Forgets what comes before the latest confirmed one, up to the first that is under way.
    fn forget_answered(&mut self) {
        while self.confirmed > 0 && !self.sent[0].under_way {
            self.sent.pop_front();
            self.confirmed -= 1;
        }
    }
}

/// How many nonces are remembered. At the pace of [`Pace::hedge_pause`](super::pace::Pace) fewer
/// renewals are sent between a confirmation and the deadline, for every ttl up to ten minutes.
pub(super) const NONCES_MAX: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Expiry, Holder, Owner, Version};

    fn nonce(bits: u128) -> Nonce {
        Nonce::from_bits(bits)
    }

    fn at(millis: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(millis)
    }

    fn shown(claim: u128, carried: u128) -> Record {
        Record {
            token: Token::new(5, 0),
            holder: Some(Holder {
                owner: Owner { name: "me".into(), incarnation: 7 },
                claim: Some(nonce(claim)),
                nonce: Some(nonce(carried)),
                session: None,
            }),
            ttl: Duration::from_secs(10),
            expiry: Expiry::ByObservation,
            version: Version("v".into()),
            note: vec![],
        }
    }

    fn three_under_way() -> Renewals {
        let mut renewals = Renewals::new(nonce(1), at(0));
        for number in 2..=4 {
            renewals.send(at(number as u64 * 100), nonce(number), None);
        }
        renewals
    }

    #[test]
    fn a_confirmation_leaves_it_and_all_later_ones_known() {
        let mut renewals = three_under_way();
        let confirmed = renewals.confirm(at(350), nonce(3)).expect("news");
        assert_eq!(confirmed.sent, at(300));
        assert_eq!(renewals.known(), [nonce(3), nonce(4)]);
        assert!(renewals.confirm(at(360), nonce(2)).is_none(), "an earlier one is no news");
        assert_eq!(renewals.known(), [nonce(3), nonce(4)]);
    }

    #[test]
    fn a_late_refusal_recognises_a_nonce_from_before_the_last_confirmed_one() {
        let mut renewals = three_under_way();
        renewals.confirm(at(450), nonce(4));
        let token = Token::new(5, 0);
        // Renewal 3 was applied before 4, and 2 was refused meanwhile.
        let judged = renewals.judge(nonce(2), token, Some(&shown(1, 3)));
        assert!(matches!(judged, Refusal::Overtaken));
        renewals.fail(nonce(2));
        renewals.fail(nonce(3));
        assert_eq!(renewals.sent.len(), 1, "every older one has its answer");
        let judged = renewals.judge(nonce(2), token, Some(&shown(1, 3)));
        assert!(matches!(judged, Refusal::Final), "nobody can show it any more");
    }

    #[test]
    fn a_clone_a_successor_and_a_deletion_are_final() {
        let renewals = three_under_way();
        let token = Token::new(5, 0);
        for record in [Some(shown(1, 99)), Some(shown(98, 3)), None] {
            assert!(matches!(renewals.judge(nonce(2), token, record.as_ref()), Refusal::Final));
        }
        let other_term = Record { token: Token::new(6, 0), ..shown(1, 3) };
        assert!(matches!(renewals.judge(nonce(2), token, Some(&other_term)), Refusal::Final));
        assert!(matches!(renewals.judge(nonce(2), token, Some(&shown(1, 2))), Refusal::Applied));
    }

    #[test]
    fn the_number_of_nonces_is_bounded_and_the_confirmed_one_stays() {
        let mut renewals = three_under_way();
        renewals.confirm(at(350), nonce(3));
        for number in 100..200 {
            renewals.send(at(number as u64 * 10), nonce(number), None);
            assert!(renewals.sent.len() <= NONCES_MAX);
            assert_eq!(renewals.known().first(), Some(&nonce(3)));
            assert_eq!(renewals.known().last(), Some(&nonce(number)));
        }
    }
}
