//! Claims to give back: each is released until the store has answered.

use std::time::Duration;

use crate::LeaseName;
use crate::backend::Release;
use crate::clock::Moment;
use crate::record::Nonce;

#[derive(Default)]
pub(super) struct Litter(Vec<Piece>);

struct Piece {
    release: Release,
    retry_at: Moment,
    drop_at: Moment,
}

impl Litter {
    /// Adds a claim. After `keep_for` the store, or whoever watches the record, has ended it anyway.
    pub(super) fn add(
        &mut self,
        now: Moment,
        name: LeaseName,
        claim: Nonce,
        known: Vec<Nonce>,
        keep_for: Duration,
    ) {
        let release = Release { name, claim, known };
        self.0.push(Piece { release, retry_at: now, drop_at: now + keep_for });
    }

    /// What to release now.
    pub(super) fn due(&mut self, now: Moment) -> Option<Release> {
        self.0.retain(|piece| now < piece.drop_at);
        let piece = self.0.iter().find(|piece| piece.retry_at <= now)?;
        Some(piece.release.clone())
    }

    /// The store has answered: it is given back, or was not ours.
    pub(super) fn answered(&mut self, claim: Nonce) {
        self.0.retain(|piece| piece.release.claim != claim);
    }

    /// The store has not answered.
    pub(super) fn retry_at(&mut self, claim: Nonce, retry_at: Moment) {
        for piece in self.0.iter_mut().filter(|piece| piece.release.claim == claim) {
            piece.retry_at = retry_at;
        }
    }

    pub(super) fn contains(&self, claim: Nonce) -> bool {
        self.0.iter().any(|piece| piece.release.claim == claim)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn next_at(&self) -> Moment {
        self.0.iter().map(|piece| piece.retry_at).min().unwrap_or(Moment::NEVER)
    }
}
