//! What a blob holds: one line of JSON, then the note as it is.
//!
//! `az storage blob download` shows it to people.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use tenure_lease::backend::{Acquire, StoreError};
use tenure_lease::record::{Expiry, FORMAT, Holder, SessionRef, Token, Version};
use tenure_lease::{LeaseName, Nonce, Record};

use super::api::{Blob, LeaseState};
use super::{TTL_MAX, TTL_MIN};
use crate::line::{self, Unreadable};
use crate::records;

/// What the content of a blob says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// Nothing: there is no blob, or one that was never held.
    Absent,
    /// A record of ours.
    Ours(Body),
    /// What another tool wrote.
    Foreign,
}

/// A record of ours.
pub(super) type Body = line::Body<Line>;

/// The line of JSON. The names of its fields are the format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    format: u32,
    /// 0 in a blob that was never held.
    pub(super) term: u64,
    ttl_s: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<HolderLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct HolderLine {
    owner: String,
    /// Also the id of the blob's lease.
    pub(super) claim: Nonce,
    pub(super) nonce: Nonce,
    /// How long the blob's lease lasts after each renewal: the longest ttl of this tenure.
    pub(super) lease_s: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionRef>,
}

/// A blob and what its content says.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) blob: Option<Blob>,
    pub(super) content: Content,
}

impl Seen {
    /// Understands a blob.
    pub(super) fn new(name: &LeaseName, blob: Option<Blob>) -> Result<Self, StoreError> {
        let content = match blob.as_ref().map(|blob| Body::decode(&blob.body)) {
            None => Content::Absent,
            Some(Ok(body)) if body.line.term == 0 && body.line.holder.is_none() => Content::Absent,
            Some(Ok(body)) => Content::Ours(body),
            Some(Err(Unreadable::Foreign)) => Content::Foreign,
            Some(Err(Unreadable::Newer(format))) => {
                return Err(records::newer(name, format));
            }
        };
        Ok(Self { blob, content })
    }

    /// Our record that is held by this claim.
    pub(super) fn held_by(&self, claim: Nonce, known: &[Nonce]) -> Option<(&Blob, &Body)> {
        let (Some(blob), Content::Ours(body)) = (&self.blob, &self.content) else { return None };
        let holder = body.line.holder.as_ref()?;
        (holder.claim == claim && known.contains(&holder.nonce)).then_some((blob, body))
    }

    /// The record of this claim, whatever its nonce.
    pub(super) fn is_of(&self, claim: Nonce) -> bool {
        matches!(&self.content, Content::Ours(body)
            if body.line.holder.as_ref().is_some_and(|holder| holder.claim == claim))
    }

    fn state(&self) -> LeaseState {
        self.blob.as_ref().map_or(LeaseState::Free, |blob| blob.state)
    }

    pub(super) fn is_leased(&self) -> bool {
        self.state() == LeaseState::Leased
    }

    /// Whether Azure itself says that the holder's time is over: the blob's lease ran out. That it
    /// was broken, or is not there, says nothing: somebody did that to a holder who may be well.
    pub(super) fn expired(&self) -> bool {
        self.state() == LeaseState::Expired && !self.is_attached()
    }

    fn is_attached(&self) -> bool {
        matches!(&self.content, Content::Ours(body)
            if body.line.holder.as_ref().is_some_and(|holder| holder.session.is_some()))
    }

    /// The record, as the contract has it.
    pub(super) fn record(&self) -> Option<Record> {
        let blob = self.blob.as_ref()?;
        let version = Version(blob.etag.clone());
        match &self.content {
            Content::Absent => None,
            Content::Ours(Body { line, note }) => {
                let holder = line.holder.as_ref();
                Some(Record {
                    version,
                    token: Token::new(line.term, 0),
                    holder: holder.map(HolderLine::holder),
                    ttl: line.ttl(),
                    expiry: self.expiry(blob, line.ttl()),
                    note: note.clone(),
                })
            }
            Content::Foreign => Some(Record {
                version,
                token: Token::new(blob.modified_us(), 0),
                holder: Some(records::foreign(&blob.body)),
                ttl: foreign_ttl(blob),
                expiry: self.expiry(blob, foreign_ttl(blob)),
                note: Vec::new(),
            }),
        }
    }

    fn expiry(&self, blob: &Blob, ttl: Duration) -> Expiry {
        match blob.state {
            _ if self.is_attached() => Expiry::ByObservation,
            LeaseState::Free | LeaseState::Broken => Expiry::ByObservation,
            LeaseState::Expired => Expiry::ByStore(Duration::ZERO),
            // A renewal of the lease is followed by a write, both by Azure's clock. It shows whole
            // seconds; and who has the lease may not have written yet.
            LeaseState::Leased => {
                let age = Duration::from_secs(blob.date.saturating_sub(blob.modified));
                Expiry::ByStore((ttl + SECOND).saturating_sub(age).clamp(SECOND, ttl.max(SECOND)))
            }
        }
    }
}

impl Body {
    /// What is written so that there is a blob to lease; see the module.
    pub(super) fn never_held() -> Self {
        let line = Line { format: FORMAT, term: 0, ttl_s: 0, holder: None };
        Self { line, note: Vec::new() }
    }

    /// The record of a new tenure.
    pub(super) fn new(request: &Acquire, term: u64, note: Vec<u8>) -> Self {
        let holder = HolderLine {
            owner: request.owner.to_string(),
            claim: request.claim,
            nonce: request.claim,
            lease_s: request.ttl.as_secs(),
            session: request.session.clone(),
        };
        let ttl_s = request.ttl.as_secs();
        Self { line: Line { format: FORMAT, term, ttl_s, holder: Some(holder) }, note }
    }
}

impl Line {
    pub(super) fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl_s)
    }

    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl_s = ttl.as_secs();
    }
}

impl HolderLine {
    fn holder(&self) -> Holder {
        Holder {
            owner: records::owner(&self.owner),
            claim: Some(self.claim),
            nonce: Some(self.nonce),
            session: self.session.clone(),
        }
    }
}

/// How long a record that is not ours is watched before it is taken over. It may have taken the
/// place of one whose holder does not know yet: so, unless it says otherwise, for as long as any.
fn foreign_ttl(blob: &Blob) -> Duration {
    blob.ttl.unwrap_or(TTL_MAX).clamp(TTL_MIN, TTL_MAX)
}

const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tenure_lease::Owner;
    use tenure_lease::backend::StoreErrorKind;

    use super::*;
    use crate::records::samples;

    fn body(session: Option<SessionRef>, note: &[u8]) -> Body {
        let request = Acquire {
            name: LeaseName::new("a").unwrap(),
            claim: Nonce::from_bits(7),
            owner: Owner { name: "pod \"1\"\n".into(), incarnation: u64::MAX },
            ttl: Duration::from_secs(30),
            session,
            note: None,
            create: true,
            takeover: None,
            expected: None,
            above: 0,
            unattended: false,
        };
        Body::new(&request, 9, note.to_vec())
    }

    fn seen(body: &Body, state: LeaseState, date: u64) -> Seen {
        let body = body.encode().into();
        let etag = "\"1\"".into();
        let blob = Blob { etag, state, date, modified: 100, ttl: None, body };
        Seen::new(&LeaseName::new("a").unwrap(), Some(blob)).unwrap()
    }

    #[test]
    fn a_blob_that_was_never_held_is_absent() {
        let seen = seen(&Body::never_held(), LeaseState::Leased, 100);
        assert!(seen.record().is_none() && seen.blob.is_some());
    }

    /// A lease that ran out is Azure's word; one that was broken is somebody's.
    #[test]
    fn only_a_lease_that_ran_out_has_expired() {
        let expiry = |session: Option<SessionRef>, state, date| {
            let seen = seen(&body(session, b""), state, date);
            (seen.expired(), seen.record().unwrap().expiry)
        };
        let by_store = |secs| Expiry::ByStore(Duration::from_secs(secs));
        assert_eq!(expiry(None, LeaseState::Leased, 100), (false, by_store(30)));
        assert_eq!(expiry(None, LeaseState::Leased, 110), (false, by_store(21)));
        assert_eq!(expiry(None, LeaseState::Leased, 300), (false, by_store(1)));
        assert_eq!(expiry(None, LeaseState::Expired, 110), (true, by_store(0)));
        assert_eq!(expiry(None, LeaseState::Free, 110), (false, Expiry::ByObservation));
        assert_eq!(expiry(None, LeaseState::Broken, 110), (false, Expiry::ByObservation));
        let session = SessionRef { name: LeaseName::new("s").unwrap(), term: 1 };
        for state in [LeaseState::Leased, LeaseState::Expired, LeaseState::Free] {
            let attached = expiry(Some(session.clone()), state, 300);
            assert_eq!(attached, (false, Expiry::ByObservation));
        }
    }

    fn record(body: &[u8]) -> Result<Option<Record>, StoreError> {
        let (etag, body) = ("etag".into(), body.to_vec().into());
        let state = LeaseState::Leased;
        let blob = Blob { etag, state, date: 100, modified: 100, ttl: None, body };
        Ok(Seen::new(&samples::name(), Some(blob))?.record())
    }

    #[test]
    fn samples_can_be_read() {
        let mut body = Body::new(&samples::request(), samples::TERM, samples::note());
        body.line.holder.as_mut().unwrap().nonce = samples::NONCE;
        samples::check_json("AzureBlob::held", body.encode(), &samples::held("etag"), record);
        body.line.holder = None;
        let expiry = Expiry::ByStore(Duration::from_secs(30));
        let released = Record { expiry, ..samples::released("etag") };
        samples::check_json("AzureBlob::released", body.encode(), &released, record);
    }

    #[test]
    fn a_newer_format_is_refused() {
        let newer = record(b"{\"format\":2,\"term\":\"of another kind\"}\n").unwrap_err();
        assert_eq!(newer.kind(), StoreErrorKind::NewerFormat);
    }
}
