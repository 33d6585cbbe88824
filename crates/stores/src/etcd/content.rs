//! The two keys of a lease, and what they say together.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_lease::backend::{Acquire, StoreError, StoreErrorKind};
use tenure_lease::record::{Expiry, FORMAT, Holder, SessionRef, Version};
use tenure_lease::{LeaseName, Nonce, Owner, Record, Token};

use super::wire::{self, Kv};

/// The names of the two keys.
pub(super) struct Keys {
    pub(super) live: String,
    pub(super) kept: String,
}

impl Keys {
    /// No lease name begins with a dot or contains a slash, so no two leases share a key, whatever
    /// their prefixes.
    pub(super) fn new(prefix: &str, name: &LeaseName) -> Self {
        let live = format!("{prefix}/{name}");
        Self { kept: format!("{live}/.kept"), live }
    }
}

/// The value of the live key: there while the lease is held, and no longer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Live {
    pub(super) format: u32,
    pub(super) owner: Owner,
    pub(super) claim: Nonce,
    pub(super) nonce: Nonce,
    pub(super) ttl_ms: u64,
    /// The term is the key's create revision and this: the kept offset, and more after a takeover,
    /// which cannot give the key a new create revision.
    pub(super) lift: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionRef>,
}

/// The value of the kept key: outlives the tenure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) format: u32,
    /// Whether it was left held. Only a release says that it was not.
    pub(super) held: bool,
    pub(super) owner: Owner,
    pub(super) claim: Nonce,
    pub(super) ttl_ms: u64,
    /// Whether the live key hangs on an etcd lease; otherwise it is attached to a session.
    pub(super) expires: bool,
    /// Terms are etcd's revisions and this; only [`Acquire::above`] raises it.
    pub(super) offset: u64,
    /// The term; `None`: this key's own revision and the offset. (Whoever creates the live key
    /// cannot know yet at which revision.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) term: Option<u64>,
    /// Base64.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) note: String,
}

/// Both keys at one revision.
pub(super) struct Sight {
    /// etcd's revision when they were read.
    pub(super) revision: u64,
    pub(super) live: Option<LiveKey>,
    pub(super) kept: Option<KeptKey>,
}

/// The live key as it was found.
pub(super) struct LiveKey {
    pub(super) mod_revision: i64,
    create_revision: u64,
    lease: i64,
    value: LiveValue,
}

enum LiveValue {
    Ours(Live),
    /// Somebody else wrote it: a name, as far as we can tell.
    Foreign(String),
}

/// The kept key as it was found.
pub(super) struct KeptKey {
    pub(super) mod_revision: i64,
    pub(super) value: Kept,
    note: Vec<u8>,
}

/// What the two keys say.
pub(super) enum Verdict {
    Absent,
    /// Held or released.
    There(Record),
    /// Held and on an etcd lease, which frees it: the record, but for how long that takes.
    OnLease(i64, Record),
    /// Left held, and the live key is gone. If this etcd lease is gone too, etcd itself ended the
    /// tenure, and this is the record; otherwise somebody deleted the key behind its holder's back.
    Gone(i64, Record),
}

impl Sight {
    /// Reads what a transaction found.
    pub(super) fn new(
        revision: i64,
        live: Option<Kv>,
        kept: Option<Kv>,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            revision: revision.unsigned_abs(),
            live: live.map(LiveKey::new).transpose()?,
            kept: kept.map(KeptKey::new).transpose()?,
        })
    }

    /// What the keys say.
    pub(super) fn verdict(&self) -> Verdict {
        match (&self.live, &self.kept) {
            (None, None) => Verdict::Absent,
            (None, Some(kept)) => self.without_live(kept),
            (Some(live), kept) => self.with_live(live, kept.as_ref()),
        }
    }

    fn without_live(&self, kept: &KeptKey) -> Verdict {
        let value = &kept.value;
        let holder = value.held.then(|| Holder {
            owner: value.owner.clone(),
            claim: Some(value.claim),
            nonce: None,
            session: None,
        });
        let record = Record {
            version: self.version(),
            token: Token::new(kept.term(), 0),
            holder,
            ttl: Duration::from_millis(value.ttl_ms),
            expiry: Expiry::ByStore(Duration::ZERO),
            note: kept.note.clone(),
        };
        match (value.held, value.expires) {
            (false, _) => Verdict::There(record),
            (true, true) => Verdict::Gone(lease_of(value.claim), record),
            // An attached record does not end by itself: it was deleted.
            (true, false) => Verdict::Absent,
        }
    }

    fn with_live(&self, live: &LiveKey, kept: Option<&KeptKey>) -> Verdict {
        let (holder, term, ttl_ms) = match &live.value {
            LiveValue::Ours(value) => {
                let holder = Holder {
                    owner: value.owner.clone(),
                    claim: Some(value.claim),
                    nonce: Some(value.nonce),
                    session: value.session.clone(),
                };
                (holder, live.create_revision.saturating_add(value.lift), value.ttl_ms)
            }
            LiveValue::Foreign(name) => {
                let owner = Owner { name: name.clone(), incarnation: 0 };
                let holder = Holder { owner, claim: None, nonce: None, session: None };
                let ttl_ms = kept.map_or(FOREIGN_TTL_MS, |kept| kept.value.ttl_ms);
                (holder, kept.map_or(live.create_revision, KeptKey::term), ttl_ms)
            }
        };
        let record = Record {
            version: self.version(),
            token: Token::new(term, 0),
            holder: Some(holder),
            ttl: Duration::from_millis(ttl_ms),
            expiry: Expiry::ByObservation,
            note: kept.map(|kept| kept.note.clone()).unwrap_or_default(),
        };
        // A foreign holder keeps its etcd lease alive without writing the key: that this stands still
        // says nothing.
        let by_lease = self.intact().is_some() || matches!(live.value, LiveValue::Foreign(_));
        if live.lease != 0 && by_lease {
            Verdict::OnLease(live.lease, record)
        } else {
            Verdict::There(record)
        }
    }

    /// The live value, if both keys are as Tenure wrote them: of one claim, and on its lease. An
    /// operator's `put` detaches the key from its lease, for one.
    fn intact(&self) -> Option<(&Live, &LiveKey, &KeptKey)> {
        let (live, kept) = (self.live.as_ref()?, self.kept.as_ref()?);
        let LiveValue::Ours(value) = &live.value else { return None };
        let lease = if value.session.is_some() { 0 } else { lease_of(value.claim) };
        let intact = live.lease == lease && kept.value.held && kept.value.claim == value.claim;
        intact.then_some((value, live, kept))
    }

    /// The tenure of this claim, if the keys prove it: one of these nonces stands there.
    pub(super) fn tenure(&self, claim: Nonce, known: &[Nonce]) -> Option<Tenure<'_>> {
        let (value, live, kept) = self.intact()?;
        let ours = value.claim == claim && known.contains(&value.nonce);
        let term = live.create_revision.saturating_add(value.lift);
        ours.then_some(Tenure { value, kept, term })
    }

    /// Whether the live key belongs to this claim.
    pub(super) fn is_of(&self, claim: Nonce) -> bool {
        let live = self.live.as_ref();
        live.is_some_and(|live| matches!(&live.value, LiveValue::Ours(live) if live.claim == claim))
    }

    /// What the acquisition writes. `former` is what the keys were judged to be.
    pub(super) fn plan(
        &self,
        request: &Acquire,
        former: Option<&Record>,
    ) -> Result<Plan, StoreError> {
        let unsuitable = || {
            let message = format!("there is no term above {} left", request.above);
            StoreError::new(StoreErrorKind::Unsuitable, message)
        };
        let offset = match (&self.kept, &self.live) {
            (Some(kept), _) => kept.value.offset,
            // The kept key was deleted: its offset was no more than this.
            (None, Some(LiveKey { value: LiveValue::Ours(live), .. })) => live.lift,
            _ => 0,
        };
        // The transaction's own revision will be above the one that was read, so terms rise above
        // what was asked for, and above a former one that somebody edited.
        let floor = request.above.max(former.map_or(0, |former| former.token.term));
        let offset = offset.max(floor.saturating_sub(self.revision));
        let highest = offset.checked_add(self.revision).and_then(|term| term.checked_add(1 << 60));
        if highest.is_none() {
            return Err(unsuitable());
        }
        // The key that is taken over keeps its create revision. Nobody has won since it was read,
        // or it would have changed, so the next revision is above all terms.
        let taken = self.live.as_ref().map(|live| {
            let term = self.revision + 1 + offset;
            (term, term.saturating_sub(live.create_revision))
        });
        let note = match (&request.note, former) {
            (Some(note), _) => wire::encode(note),
            (None, Some(former)) => wire::encode(&former.note),
            (None, None) => String::new(),
        };
        let ttl_ms = millis(request.ttl);
        let live = Live {
            format: FORMAT,
            owner: request.owner.clone(),
            claim: request.claim,
            nonce: request.claim,
            ttl_ms,
            lift: taken.map_or(offset, |(_, lift)| lift),
            session: request.session.clone(),
        };
        let kept = Kept {
            format: FORMAT,
            held: true,
            owner: request.owner.clone(),
            claim: request.claim,
            ttl_ms,
            expires: request.session.is_none(),
            offset,
            term: taken.map(|(term, _)| term),
            note,
        };
        Ok(Plan { live, kept })
    }

    fn version(&self) -> Version {
        let live = self.live.as_ref().map_or(0, |live| live.mod_revision);
        let kept = self.kept.as_ref().map_or(0, |kept| kept.mod_revision);
        Version(format!("{live}.{kept}"))
    }
}

/// What an acquisition writes.
pub(super) struct Plan {
    pub(super) live: Live,
    pub(super) kept: Kept,
}

impl Plan {
    /// The term that was won by the transaction of this revision.
    pub(super) fn term(&self, revision: i64) -> u64 {
        let created = || revision.unsigned_abs().saturating_add(self.kept.offset);
        self.kept.term.unwrap_or_else(created)
    }
}

/// A tenure that the keys prove.
pub(super) struct Tenure<'a> {
    pub(super) value: &'a Live,
    pub(super) kept: &'a KeptKey,
    pub(super) term: u64,
}

impl Tenure<'_> {
    /// The etcd lease that the live key hangs on; `None` if it is attached to a session.
    pub(super) fn lease(&self) -> Option<i64> {
        self.value.session.is_none().then(|| lease_of(self.value.claim))
    }

    /// The kept value with its term spelt out, so that it can be written again.
    pub(super) fn kept(&self) -> Kept {
        Kept { term: Some(self.term), ..self.kept.value.clone() }
    }
}

impl LiveKey {
    fn new(kv: Kv) -> Result<Self, StoreError> {
        let value = match serde_json::from_slice(&kv.value) {
            _ if is_newer(&kv.value) => return Err(newer()),
            Ok(live) => LiveValue::Ours(live),
            Err(_) => {
                let text = String::from_utf8_lossy(&kv.value);
                LiveValue::Foreign(text.trim().chars().take(FOREIGN_NAME_MAX).collect())
            }
        };
        Ok(Self {
            mod_revision: kv.mod_revision,
            create_revision: kv.create_revision.unsigned_abs(),
            lease: kv.lease,
            value,
        })
    }
}

impl KeptKey {
    fn new(kv: Kv) -> Result<Self, StoreError> {
        if is_newer(&kv.value) {
            return Err(newer());
        }
        let damaged = || {
            StoreError::new(
                StoreErrorKind::Damaged,
                "the kept key is not what Tenure writes; restore it, or delete it if its note and \
                 term may be forgotten",
            )
        };
        let value: Kept = serde_json::from_slice(&kv.value).map_err(|_| damaged())?;
        let note = wire::decode(&value.note).map_err(|_| damaged())?;
        Ok(Self { mod_revision: kv.mod_revision, value, note })
    }

    fn term(&self) -> u64 {
        let created = || self.mod_revision.unsigned_abs().saturating_add(self.value.offset);
        self.value.term.unwrap_or_else(created)
    }
}

/// Whether a live value was written by a renewal, which concerns nobody but its holder. (The first
/// nonce of a tenure is its claim's id.)
pub(super) fn is_renewal(value: &[u8]) -> bool {
    serde_json::from_slice::<Live>(value).is_ok_and(|live| live.nonce != live.claim)
}

/// The id of the etcd lease of a claim. Derived, so that whoever knows the claim can prolong and
/// revoke it, also if the answer to its grant was lost. (0 would be "none".)
pub(super) fn lease_of(claim: Nonce) -> i64 {
    ((claim.bits() as u64 & i64::MAX as u64) as i64).max(1)
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

fn newer() -> StoreError {
    StoreError::new(
        StoreErrorKind::NewerFormat,
        "a newer release of Tenure wrote the record; update this one",
    )
}

/// What a foreign holder is given if nobody of ours ever held the lease.
const FOREIGN_TTL_MS: u64 = 15_000;
const FOREIGN_NAME_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);

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

    fn kv(value: &impl Serialize, created: i64, changed: i64, lease: i64) -> Option<Kv> {
        let value = serde_json::to_vec(value).unwrap();
        Some(Kv { create_revision: created, mod_revision: changed, lease, value })
    }

    fn absent(revision: i64) -> Sight {
        Sight::new(revision, None, None).unwrap()
    }

    #[test]
    fn the_first_term_is_the_revision_that_created_it() {
        let plan = absent(41).plan(&request(1, 0), None).unwrap();
        assert_eq!(plan.term(50), 50);
        let (live, kept) = (kv(&plan.live, 50, 50, 1), kv(&plan.kept, 50, 50, 0));
        let sight = Sight::new(60, live, kept).unwrap();
        let Verdict::OnLease(1, record) = sight.verdict() else { panic!("not on its lease") };
        assert_eq!((record.token.term, &*record.note), (50, &b"note"[..]));
        // Nothing but the kept key is left: it knows the term, too.
        let sight = Sight::new(60, None, kv(&plan.kept, 50, 50, 0)).unwrap();
        let Verdict::Gone(1, record) = sight.verdict() else { panic!("not gone") };
        assert_eq!((record.token.term, &*record.note), (50, &b"note"[..]));
    }

    #[test]
    fn a_takeover_and_what_was_asked_for_lift_the_term_for_good() {
        let plan = absent(41).plan(&request(1, 1000), None).unwrap();
        let term = plan.term(42);
        assert_eq!(term, 1001, "the lowest revision that it can have");
        let (live, kept) = (kv(&plan.live, 42, 42, 1), kv(&plan.kept, 42, 42, 0));
        let sight = Sight::new(70, live, kept).unwrap();
        let Verdict::OnLease(_, former) = sight.verdict() else { panic!("not on its lease") };
        let taken = sight.plan(&request(2, 0), Some(&former)).unwrap();
        assert_eq!(taken.term(99), 71 + 959, "of the revision that was read");
        // The key keeps its create revision.
        let (live, kept) = (kv(&taken.live, 42, 99, 2), kv(&taken.kept, 42, 99, 0));
        let sight = Sight::new(99, live, kept).unwrap();
        let Verdict::OnLease(_, record) = sight.verdict() else { panic!("not on its lease") };
        assert_eq!(record.token.term, taken.term(99));
        let tenure = sight.tenure(Nonce::from_bits(2), &[Nonce::from_bits(2)]).unwrap();
        let released = Kept { held: false, ..tenure.kept() };
        let sight = Sight::new(120, None, kv(&released, 42, 110, 0)).unwrap();
        let Verdict::There(record) = sight.verdict() else { panic!("not released") };
        assert_eq!((record.token.term, record.holder), (taken.term(99), None));
        let next = sight.plan(&request(3, 0), None).unwrap();
        assert!(next.term(121) > record.token.term);
        assert!(absent(41).plan(&request(1, u64::MAX - 7), None).is_err());
    }

    #[test]
    fn what_an_operator_touched_is_not_proof() {
        let plan = absent(41).plan(&request(1, 0), None).unwrap();
        let known = [Nonce::from_bits(1)];
        let judge = |live, kept| {
            let sight = Sight::new(60, live, kept).unwrap();
            let on_lease = matches!(sight.verdict(), Verdict::OnLease(..));
            (sight.tenure(known[0], &known).is_some(), on_lease)
        };
        let proves = |live, kept| {
            let (proof, on_lease) = judge(live, kept);
            assert_eq!(proof, on_lease);
            proof
        };
        let live = |lease| kv(&plan.live, 50, 55, lease);
        let kept = || kv(&plan.kept, 50, 50, 0);
        assert!(proves(live(1), kept()));
        assert!(!proves(live(0), kept()), "detached");
        assert!(!proves(live(7), kept()), "on another lease");
        assert!(!proves(live(1), None), "without the kept key");
        assert!(!proves(kv(&"mine", 50, 55, 0), kept()), "overwritten");
        // Whoever holds it on an etcd lease holds it for as long as that lives.
        for (lease, kept) in [(1, kept()), (7, kept()), (7, None)] {
            assert_eq!(judge(kv(&"mine", 50, 55, lease), kept), (false, true), "on {lease}");
        }
        assert!(!proves(live(1), kv(&Kept { held: false, ..plan.kept.clone() }, 50, 50, 0)));
        let newer = kv(&serde_json::json!({ "format": 2 }), 1, 1, 0);
        let error = Sight::new(60, newer, None).err().unwrap();
        assert_eq!(error.kind(), StoreErrorKind::NewerFormat);
    }
}
