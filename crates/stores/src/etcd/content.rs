//! The two keys of a lease, and what they say together.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use tenure_lease::backend::{Acquire, StoreError, StoreErrorKind};
use tenure_lease::record::{Expiry, FORMAT, Holder, SessionRef, Version};
use tenure_lease::{LeaseName, Nonce, Owner, Record, Token};

use super::messages::{Compare, KeyValue, RangeRequest, RequestOp};

/// The names of the two keys, and the range that contains them and nothing else.
pub(super) struct Keys {
    pub(super) live: String,
    pub(super) kept: String,
    pub(super) first: String,
    pub(super) end: String,
}

impl Keys {
    /// No lease name contains a slash, so no two leases share a key, whatever their prefixes.
    pub(super) fn new(prefix: &str, name: &LeaseName) -> Self {
        let stem = format!("{prefix}/{name}");
        Self {
            live: format!("{stem}/live"),
            kept: format!("{stem}/kept"),
            first: format!("{stem}/"),
            // The character after the slash.
            end: format!("{stem}0"),
        }
    }

    pub(super) fn range(&self) -> RangeRequest {
        let (key, range_end) = (self.first.clone().into(), self.end.clone().into());
        RangeRequest { key, range_end, ..Default::default() }
    }
}

/// The value of the live key: what a renewal writes. Few bytes, because etcd keeps each of them
/// until it compacts its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Live {
    Held {
        nonce: Nonce,
        ttl_ms: u64,
    },
    Released,
    /// Somebody else wrote it: a name, as far as we can tell.
    Foreign(String),
}

impl Live {
    pub(super) fn put(&self, keys: &Keys) -> RequestOp {
        RequestOp::put(&keys.live, self.value().into())
    }

    fn value(&self) -> String {
        match self {
            Self::Held { nonce, ttl_ms } => format!("{nonce} {ttl_ms}"),
            Self::Released => RELEASED.to_owned(),
            Self::Foreign(name) => name.clone(),
        }
    }

    fn parse(value: &[u8]) -> Self {
        let text = String::from_utf8_lossy(value);
        let text = text.trim();
        let held = || {
            let (nonce, ttl_ms) = text.split_once(' ').filter(|(nonce, _)| nonce.len() == 32)?;
            Some(Self::Held { nonce: nonce.parse().ok()?, ttl_ms: ttl_ms.parse().ok()? })
        };
        match held() {
            Some(held) => held,
            None if text == RELEASED => Self::Released,
            None => Self::Foreign(text.chars().take(FOREIGN_NAME_MAX).collect()),
        }
    }
}

/// The value of the kept key: all that a renewal does not change. It outlives the tenure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    format: u32,
    owner: Owner,
    claim: Nonce,
    /// As in the live key.
    pub(super) ttl_ms: u64,
    /// The term is the revision that created this key, and this.
    lift: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<SessionRef>,
    /// Base64.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    note: String,
}

impl Kept {
    pub(super) fn set_note(&mut self, note: &[u8]) {
        self.note = BASE64.encode(note);
    }

    pub(super) fn put(&self, keys: &Keys) -> RequestOp {
        // A map with text keys, which JSON can always express.
        RequestOp::put(&keys.kept, serde_json::to_vec(self).expect("a record is JSON"))
    }
}

/// Both keys at one revision.
pub(super) struct Sight {
    /// etcd's revision when they were read.
    revision: u64,
    live: Option<LiveKey>,
    kept: Option<KeptKey>,
}

/// The live key as it was found.
struct LiveKey {
    mod_revision: i64,
    /// The etcd lease that it is attached to; 0: none, as Tenure writes it.
    lease: i64,
    value: Live,
}

/// The kept key as it was found.
struct KeptKey {
    create_revision: u64,
    mod_revision: i64,
    value: Kept,
    note: Vec<u8>,
}

/// What an acquisition writes.
pub(super) struct Plan {
    pub(super) live: Live,
    pub(super) kept: Kept,
    /// The revision that created the kept key, if it is there already.
    created: Option<u64>,
}

/// A tenure that the keys prove.
pub(super) struct Tenure<'a> {
    pub(super) kept: &'a Kept,
    pub(super) token: Token,
}

impl Sight {
    /// Reads what a range of [`Keys::range`] found.
    pub(super) fn new(keys: &Keys, revision: i64, kvs: Vec<KeyValue>) -> Result<Self, StoreError> {
        let (mut live, mut kept) = (None, None);
        for kv in kvs {
            if kv.key == keys.live.as_bytes() {
                live = Some(LiveKey {
                    mod_revision: kv.mod_revision,
                    lease: kv.lease,
                    value: Live::parse(&kv.value),
                });
            } else if kv.key == keys.kept.as_bytes() {
                kept = Some(KeptKey::new(&kv)?);
            }
        }
        Ok(Self { revision: revision.unsigned_abs(), live, kept })
    }

    /// What the keys say.
    pub(super) fn record(&self) -> Option<Record> {
        let kept = self.kept.as_ref();
        let Some(live) = &self.live else { return Some(self.without_live(kept?)) };
        let kept_ttl_ms = || kept.map_or(FOREIGN_TTL_MS, |kept| kept.value.ttl_ms);
        let unknown = |name: &str| Holder {
            owner: Owner { name: name.to_owned(), incarnation: 0 },
            claim: None,
            nonce: None,
            session: None,
        };
        let (holder, ttl_ms) = match (&live.value, kept) {
            (Live::Released, _) => (None, kept_ttl_ms()),
            (Live::Held { nonce, ttl_ms }, Some(kept)) => {
                (Some(kept.holder(Some(*nonce))), *ttl_ms)
            }
            (Live::Held { ttl_ms, .. }, None) => (Some(unknown(KEPT_DELETED)), *ttl_ms),
            (Live::Foreign(name), _) => (Some(unknown(name)), kept_ttl_ms()),
        };
        let ttl = Duration::from_millis(ttl_ms);
        // A foreign holder keeps its etcd lease alive without writing the key: that the key does not
        // change says nothing.
        let by_lease = live.lease != 0 && matches!(live.value, Live::Foreign(_));
        Some(Record {
            version: self.version(),
            token: Token::new(self.term(), 0),
            holder,
            ttl,
            expiry: if by_lease { Expiry::ByStore(ttl) } else { Expiry::ByObservation },
            note: kept.map(|kept| kept.note.clone()).unwrap_or_default(),
        })
    }

    /// Somebody deleted the live key, and its holder may not have noticed yet. It will when it
    /// renews, or, if the lease is attached to a session, when it next proves the record.
    fn without_live(&self, kept: &KeptKey) -> Record {
        let ttl = Duration::from_millis(kept.value.ttl_ms);
        let attached = kept.value.session.is_some();
        let holder = Holder { claim: None, session: None, ..kept.holder(None) };
        Record {
            version: self.version(),
            token: Token::new(kept.term(), 0),
            holder: Some(holder),
            ttl: ttl.saturating_mul(if attached { 2 } else { 1 }),
            expiry: Expiry::ByObservation,
            note: kept.note.clone(),
        }
    }

    fn term(&self) -> u64 {
        let changed = || self.live.as_ref().map_or(0, |live| live.mod_revision.unsigned_abs());
        self.kept.as_ref().map_or_else(changed, KeptKey::term)
    }

    /// The tenure of this claim, if the keys prove it: one of these nonces stands there.
    pub(super) fn tenure(&self, claim: Nonce, known: &[Nonce]) -> Option<Tenure<'_>> {
        let (live, kept) = (self.live.as_ref()?, self.kept.as_ref()?);
        let Live::Held { nonce, .. } = &live.value else { return None };
        let ours = kept.value.claim == claim && known.contains(nonce);
        ours.then_some(Tenure { kept: &kept.value, token: Token::new(kept.term(), 0) })
    }

    /// Whether the tenure of this claim ended because somebody deleted the live key: nobody took
    /// the lease, and nobody released it.
    pub(super) fn is_deleted(&self, claim: Nonce) -> bool {
        let kept = self.kept.as_ref();
        self.live.is_none() && kept.is_none_or(|kept| kept.value.claim == claim)
    }

    /// Both keys are as they were when they were seen. (A key that did not exist still does not.)
    pub(super) fn conditions(&self, keys: &Keys) -> Vec<Compare> {
        let (live, kept) = self.revisions();
        vec![Compare::unchanged(&keys.live, live), Compare::unchanged(&keys.kept, kept)]
    }

    /// When each key last changed; 0: there is no such key.
    pub(super) fn revisions(&self) -> (i64, i64) {
        let live = self.live.as_ref().map_or(0, |live| live.mod_revision);
        (live, self.kept.as_ref().map_or(0, |kept| kept.mod_revision))
    }

    /// What the acquisition writes.
    pub(super) fn plan(&self, request: &Acquire) -> Result<Plan, StoreError> {
        // All terms so far are at most the revision that was read, unless some were lifted.
        let floor = request.above.max(self.revision).max(self.kept_term());
        let created = self.kept.as_ref().map(|kept| kept.create_revision);
        let lift = match created {
            // Nobody has won since the key was read, or it would have changed: the next number is
            // above all terms.
            Some(created) => floor.checked_add(1).map(|term| term.saturating_sub(created)),
            // The transaction itself will create the key, at a revision above the one that was
            // read. So two who saw nothing and both created it have different terms.
            None => Some(floor - self.revision),
        };
        let fits = |lift: &u64| lift.checked_add(self.revision)?.checked_add(1 << 60);
        let lift = lift.filter(|lift| fits(lift).is_some()).ok_or_else(|| {
            let message = format!("there is no term above {} left", request.above);
            StoreError::new(StoreErrorKind::Unsuitable, message)
        })?;
        let note = match (&request.note, &self.kept) {
            (Some(note), _) => BASE64.encode(note),
            (None, Some(kept)) => kept.value.note.clone(),
            (None, None) => String::new(),
        };
        let ttl_ms = millis(request.ttl);
        let kept = Kept {
            format: FORMAT,
            owner: request.owner.clone(),
            claim: request.claim,
            ttl_ms,
            lift,
            session: request.session.clone(),
            note,
        };
        Ok(Plan { live: Live::Held { nonce: request.claim, ttl_ms }, kept, created })
    }

    fn kept_term(&self) -> u64 {
        self.kept.as_ref().map_or(0, KeptKey::term)
    }

    fn version(&self) -> Version {
        let (live, kept) = self.revisions();
        Version(format!("{live}.{kept}"))
    }
}

impl Plan {
    /// The term that was won by the transaction of this revision.
    pub(super) fn term(&self, revision: i64) -> u64 {
        self.created.unwrap_or(revision.unsigned_abs()).saturating_add(self.kept.lift)
    }
}

impl KeptKey {
    fn new(kv: &KeyValue) -> Result<Self, StoreError> {
        if is_newer(&kv.value) {
            return Err(StoreError::new(
                StoreErrorKind::NewerFormat,
                "a newer release of Tenure wrote the record; update this one",
            ));
        }
        let damaged = || {
            StoreError::new(
                StoreErrorKind::Damaged,
                "the kept key is not what Tenure writes; restore it, or delete it if its note and \
                 term may be forgotten",
            )
        };
        let value: Kept = serde_json::from_slice(&kv.value).map_err(|_| damaged())?;
        let note = BASE64.decode(&value.note).map_err(|_| damaged())?;
        let create_revision = kv.create_revision.unsigned_abs();
        Ok(Self { create_revision, mod_revision: kv.mod_revision, value, note })
    }

    fn term(&self) -> u64 {
        self.create_revision.saturating_add(self.value.lift)
    }

    fn holder(&self, nonce: Option<Nonce>) -> Holder {
        Holder {
            owner: self.value.owner.clone(),
            claim: Some(self.value.claim),
            nonce,
            session: self.value.session.clone(),
        }
    }
}

/// The name of the lease that this key belongs to.
pub(super) fn lease_of_key(prefix: &str, key: &[u8]) -> Option<LeaseName> {
    let key = std::str::from_utf8(key).ok()?.strip_prefix(prefix)?.strip_prefix('/')?;
    let name = key.strip_suffix("/live").or_else(|| key.strip_suffix("/kept"))?;
    LeaseName::new(name).ok()
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn is_newer(value: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    serde_json::from_slice::<Head>(value).is_ok_and(|head| head.format > FORMAT)
}

const RELEASED: &str = "released";
/// Who holds a lease whose kept key was deleted.
const KEPT_DELETED: &str = "unknown (its kept key was deleted)";
/// The ttl of a foreign holder if nobody of ours ever held the lease.
const FOREIGN_TTL_MS: u64 = 15_000;
const FOREIGN_NAME_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::messages::TxnRequest;
    use crate::records::samples;
    use prost::Message as _;

    const TTL: Duration = Duration::from_secs(15);

    fn keys() -> Keys {
        Keys::new("/shop", &LeaseName::new("nightly").unwrap())
    }

    fn request(claim: u128, above: u64) -> Acquire {
        Acquire {
            name: LeaseName::new("nightly").unwrap(),
            claim: Nonce::from_bits(claim),
            owner: Owner::named("pod"),
            ttl: TTL,
            session: None,
            note: Some(b"note".to_vec()),
            create: true,
            takeover: None,
            expected: None,
            above,
            unattended: false,
        }
    }

    fn live(nonce: u128, changed: i64) -> KeyValue {
        let text = format!("{} 15000", Nonce::from_bits(nonce));
        raw(&keys().live, text, changed, changed)
    }

    fn kept(kept: &Kept, created: i64, changed: i64) -> KeyValue {
        raw(&keys().kept, serde_json::to_vec(kept).unwrap(), created, changed)
    }

    fn raw(key: &str, value: impl Into<Vec<u8>>, created: i64, changed: i64) -> KeyValue {
        let (key, value) = (key.into(), value.into());
        KeyValue { key, value, create_revision: created, mod_revision: changed, lease: 0 }
    }

    fn sight(revision: i64, kvs: &[KeyValue]) -> Sight {
        Sight::new(&keys(), revision, kvs.to_vec()).unwrap()
    }

    #[test]
    fn the_first_term_is_the_revision_that_created_it() {
        let plan = sight(41, &[]).plan(&request(1, 0)).unwrap();
        assert_eq!(plan.term(50), 50);
        let kept = kept(&plan.kept, 50, 50);
        let record = sight(60, &[live(1, 50), kept]).record().unwrap();
        assert_eq!((record.token.term, &*record.note), (50, &b"note"[..]));
        assert!(record.is_of(Nonce::from_bits(1)) && record.ttl == TTL);
    }

    #[test]
    fn a_takeover_and_what_was_asked_for_lift_the_term_for_good() {
        let plan = sight(41, &[]).plan(&request(1, 1000)).unwrap();
        assert_eq!(plan.term(42), 1001, "the lowest revision that it can have");
        let before = sight(70, &[live(1, 42), kept(&plan.kept, 42, 42)]);
        let taken = before.plan(&request(2, 0)).unwrap();
        assert_eq!(taken.term(99), 1002);
        let after = sight(99, &[live(2, 99), kept(&taken.kept, 42, 99)]);
        assert_eq!(after.record().unwrap().token.term, 1002);
        let higher = sight(5000, &[live(2, 99), kept(&taken.kept, 42, 99)]);
        assert_eq!(higher.plan(&request(3, 0)).unwrap().term(5001), 5001, "again the revision");
        assert!(sight(41, &[]).plan(&request(1, u64::MAX - 7)).is_err());
        assert!(after.plan(&request(1, u64::MAX)).is_err());
    }

    /// A record whose live key is gone is not free: its holder may not have noticed.
    #[test]
    fn a_deleted_live_key_is_observed_for_the_ttl() {
        let plan = sight(41, &[]).plan(&request(1, 0)).unwrap();
        let record = sight(60, &[kept(&plan.kept, 50, 50)]).record().unwrap();
        assert!(record.holder.is_some() && record.expiry == Expiry::ByObservation);
        assert_eq!((record.ttl, record.token.term), (TTL, 50));
        assert!(!request(2, 0).allowed_by(Some(&record), false));
        let released = raw(&keys().live, "released", 50, 55);
        let record = sight(60, &[released, kept(&plan.kept, 50, 50)]).record().unwrap();
        assert!(record.holder.is_none() && record.note == b"note");
    }

    #[test]
    fn what_an_operator_touched_is_not_proof() {
        let plan = sight(41, &[]).plan(&request(1, 0)).unwrap();
        let known = [Nonce::from_bits(1)];
        let kept = kept(&plan.kept, 50, 50);
        let proves = |kvs: &[KeyValue]| sight(60, kvs).tenure(known[0], &known).is_some();
        assert!(proves(&[live(1, 50), kept.clone()]));
        assert!(!proves(&[live(7, 50), kept.clone()]), "another nonce");
        assert!(!proves(&[live(1, 50)]), "without the kept key");
        let mut foreign = raw(&keys().live, "mine", 50, 55);
        assert!(!proves(&[foreign.clone(), kept.clone()]), "overwritten");
        let expiry = |kvs: &[KeyValue]| sight(60, kvs).record().unwrap().expiry;
        assert_eq!(expiry(&[foreign.clone(), kept.clone()]), Expiry::ByObservation);
        // Whoever holds it on an etcd lease holds it for as long as that lives.
        foreign.lease = 7;
        assert_eq!(expiry(&[foreign, kept]), Expiry::ByStore(TTL));
        let newer = raw(&keys().kept, r#"{"format":2}"#, 1, 1);
        let error = Sight::new(&keys(), 60, vec![newer]).err().unwrap();
        assert_eq!(error.kind(), StoreErrorKind::NewerFormat);
    }

    /// What each renewal adds to etcd's log and history; docs/stores/etcd.md names the figure.
    #[test]
    fn a_renewal_is_small() {
        let live = Live::Held { nonce: Nonce::from_bits(u128::MAX), ttl_ms: 15_000 };
        let (put, keys) = (live.put(&keys()), keys());
        let compare = sight(60, &[]).conditions(&keys);
        let txn = TxnRequest { compare, success: vec![put], failure: vec![keys.range().into()] };
        assert!(txn.encoded_len() <= 160, "{} bytes", txn.encoded_len());
    }

    /// A sample is a line with the live key's value, and the kept key's.
    #[test]
    fn samples_can_be_read() {
        let plan = sight(499, &[]).plan(&samples::request()).unwrap();
        let kept = String::from_utf8(kept(&plan.kept, 500, 500).value).unwrap();
        let read = |bytes: &[u8]| {
            let at = bytes.iter().position(|byte| *byte == b'\n').unwrap();
            let live = raw(&keys().live, &bytes[..at], 500, 510);
            let kept = raw(&keys().kept, &bytes[at + 1..], 500, 500);
            Ok(Sight::new(&keys(), 600, vec![live, kept])?.record())
        };
        let held = Live::Held { nonce: samples::NONCE, ttl_ms: plan.kept.ttl_ms };
        for (name, live, expected) in [
            ("Etcd::held", held, samples::held("510.500")),
            ("Etcd::released", Live::Released, samples::released("510.500")),
        ] {
            let written = format!("{}\n{kept}", live.value()).into_bytes();
            samples::check_json(name, written, &expected, read);
        }
    }
}
