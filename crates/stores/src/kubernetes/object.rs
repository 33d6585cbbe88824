//! The Lease object, and how a record lies in it. Pure.
//!
//! The object is shared with electors that know nothing of us, so everything they look at is in
//! `spec`, written the way client-go writes it. What they have no field for (claim, nonce, term,
//! session, exact ttl) is one JSON annotation, beside the note. Annotations survive a takeover by a
//! foreign elector, who does not know them; so they say whose they are, and are believed only as
//! long as `spec` says the same.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use tenure_lease::backend::{Acquire, Renew, StoreError, StoreErrorKind};
use tenure_lease::record::{Expiry, FORMAT, Holder, SessionRef, Version};
use tenure_lease::{LeaseName, Nonce, Record, Token};

use crate::records;

/// A Lease. Fields of `spec` that we do not know are kept as they are: a replacement that dropped
/// them would undo what a newer server or client has written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LeaseObject {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Spec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) holder_identity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lease_duration_seconds: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    acquire_time: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    renew_time: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lease_transitions: Option<i32>,
    #[serde(flatten)]
    unknown: BTreeMap<String, serde_json::Value>,
}

/// What `spec` has no field for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Inscription {
    format: u32,
    /// The `holderIdentity` and the `leaseTransitions` that it was written with.
    holder: String,
    transitions: i32,
    /// 0: nobody has held the lease yet.
    term: u64,
    ttl_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim: Option<Nonce>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nonce: Option<Nonce>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<SessionRef>,
}

impl LeaseObject {
    /// A Lease that nobody has held yet. It counts as absent: its only purpose is to have a
    /// `resourceVersion`, which becomes the first term.
    pub(super) fn unheld(name: &LeaseName) -> Self {
        let mut object = Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            metadata: ObjectMeta { name: Some(name.to_string()), ..ObjectMeta::default() },
            spec: Spec {
                holder_identity: Some(String::new()),
                lease_duration_seconds: Some(RELEASED_SECONDS),
                lease_transitions: Some(0),
                ..Spec::default()
            },
        };
        object.inscribe(&Inscription {
            format: FORMAT,
            holder: String::new(),
            transitions: 0,
            term: 0,
            ttl_ms: 0,
            claim: None,
            nonce: None,
            session: None,
        });
        object
    }

    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or("")
    }

    /// The record that it stands for; `None` if nobody has ever held it.
    pub(super) fn record(&self) -> Result<Option<Record>, StoreError> {
        let inscription = self.inscription()?;
        let (identity, transitions) = (self.identity(), self.transitions());
        let seconds = self.spec.lease_duration_seconds;
        let mut record = Record {
            version: self.version(inscription.as_ref())?,
            token: Token::new(u64::try_from(transitions).unwrap_or(0), 0),
            holder: (!identity.is_empty()).then(|| foreign(identity)),
            ttl: seconds.map_or(UNSAID_TTL, whole_seconds),
            expiry: Expiry::ByObservation,
            note: Vec::new(),
        };
        let Some(inscription) = inscription else { return Ok(Some(record)) };
        if inscription.term == 0 && identity.is_empty() && transitions == inscription.transitions {
            return Ok(None);
        }
        // The duration that we would have written is the rounding of a ttl that we know exactly.
        let written = duration_seconds(&inscription, identity);
        if Some(written) == seconds && inscription.term > 0 {
            record.ttl = Duration::from_millis(inscription.ttl_ms);
        }
        if transitions == inscription.transitions {
            // A release keeps it, ours or another's; a takeover by a foreign elector does not.
            record.note = self.note()?;
        }
        let same_tenure = transitions == inscription.transitions
            && (identity == inscription.holder || identity.is_empty());
        if !same_tenure {
            // Foreign tenures have no term of their own; they count on from the last one that we
            // know, so that nobody takes one for the tenure before it.
            let since = i64::from(transitions) - i64::from(inscription.transitions);
            let since = u64::try_from(since).unwrap_or(0).max(1);
            record.token.term = inscription.term.saturating_add(since);
            return Ok(Some(record));
        }
        record.token.term = inscription.term;
        if let Some(holder) = &mut record.holder {
            holder.claim = inscription.claim;
            holder.nonce = inscription.nonce;
            holder.session = inscription.session;
        }
        Ok(Some(record))
    }

    /// Whether Tenure has written it, readable or not, and somebody has held it.
    pub(super) fn is_ours(&self) -> bool {
        self.annotation(RECORD).is_some() && self.record().map_or(true, |record| record.is_some())
    }

    /// The version of what a holder has written, as far as a waiter must know; `None` if nobody
    /// holds it.
    pub(super) fn held_version(&self) -> Option<Version> {
        let readable = || self.version(self.inscription().ok().flatten().as_ref()).ok();
        (!self.identity().is_empty()).then(readable).flatten()
    }

    /// What it becomes when this claim takes it; `former` is its record.
    pub(super) fn acquired(
        mut self,
        request: &Acquire,
        former: Option<&Record>,
        now: String,
    ) -> Result<(Self, Token), StoreError> {
        let above = request.above.max(former.map_or(0, |former| former.token.term));
        let token = Token::new(self.revision()?.max(above.saturating_add(1)), 0);
        let note = match (&request.note, former) {
            (Some(note), _) => note,
            (None, Some(former)) => &former.note,
            (None, None) => &Vec::new(),
        };
        let inscription = Inscription {
            format: FORMAT,
            holder: request.owner.to_string(),
            transitions: self.transitions().saturating_add(1),
            term: token.term,
            ttl_ms: millis(request.ttl),
            claim: Some(request.claim),
            nonce: Some(request.claim),
            session: request.session.clone(),
        };
        self.spec.holder_identity = Some(inscription.holder.clone());
        self.spec.lease_transitions = Some(inscription.transitions);
        let seconds = duration_seconds(&inscription, &inscription.holder);
        self.spec.lease_duration_seconds = Some(seconds);
        self.spec.acquire_time = Some(now.clone());
        self.spec.renew_time = Some(now);
        self.set_note(note);
        self.inscribe(&inscription);
        Ok((self, token))
    }

    /// What it becomes when its holder renews it. Only for an object whose record is the holder's.
    pub(super) fn renewed(mut self, request: &Renew, now: String) -> Result<Self, StoreError> {
        let mut inscription = self.own_inscription()?;
        inscription.nonce = Some(request.nonce);
        inscription.ttl_ms = millis(request.ttl);
        let seconds = duration_seconds(&inscription, &inscription.holder);
        self.spec.lease_duration_seconds = Some(seconds);
        self.spec.renew_time = Some(now);
        if let Some(note) = &request.note {
            self.set_note(note);
        }
        self.inscribe(&inscription);
        Ok(self)
    }

    /// What it becomes when its holder gives it back, in client-go's shape. Only for an object
    /// whose record is the holder's.
    pub(super) fn released(mut self, now: String) -> Result<Self, StoreError> {
        let mut inscription = self.own_inscription()?;
        inscription.holder = String::new();
        (inscription.claim, inscription.nonce, inscription.session) = (None, None, None);
        self.spec.holder_identity = Some(String::new());
        self.spec.lease_duration_seconds = Some(RELEASED_SECONDS);
        self.spec.acquire_time = Some(now.clone());
        self.spec.renew_time = Some(now);
        self.inscribe(&inscription);
        Ok(self)
    }

    /// Whether a replacement with it is conditional. Without `resourceVersion` the server would
    /// refuse it; without `uid` it would create a deleted Lease anew, `resourceVersion` or not.
    pub(super) fn is_conditional(&self) -> bool {
        self.metadata.uid.is_some() && self.metadata.resource_version.is_some()
    }

    fn identity(&self) -> &str {
        self.spec.holder_identity.as_deref().unwrap_or("")
    }

    fn transitions(&self) -> i32 {
        self.spec.lease_transitions.unwrap_or(0)
    }

    /// All that an acquisition, a renewal or a release writes, ours (the nonce) or a foreign
    /// elector's (the times): it changes with each of them. Not the `resourceVersion`: that changes
    /// with every label, too, and who watches a dead holder's Lease would begin again.
    fn version(&self, inscription: Option<&Inscription>) -> Result<Version, StoreError> {
        let (Some(uid), true) = (&self.metadata.uid, self.is_conditional()) else {
            return Err(damaged(self.name(), "has no uid or no resourceVersion"));
        };
        let time = |time: &Option<String>| time.clone().unwrap_or_default();
        let nonce = inscription.and_then(|inscription| inscription.nonce);
        Ok(Version(format!(
            "{uid}/{}/{}/{}/{}/{}/{}",
            self.identity(),
            self.transitions(),
            self.spec.lease_duration_seconds.unwrap_or(0),
            time(&self.spec.acquire_time),
            time(&self.spec.renew_time),
            nonce.map(|nonce| nonce.to_string()).unwrap_or_default(),
        )))
    }

    /// The `resourceVersion` as the number that it is: it counts all writes to the cluster.
    pub(super) fn revision(&self) -> Result<u64, StoreError> {
        let text = self.metadata.resource_version.as_deref().unwrap_or("");
        text.parse().map_err(|_| {
            StoreError::new(
                StoreErrorKind::Unsuitable,
                format!("this server's resourceVersion {text:?} is not a number; terms need one"),
            )
        })
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn inscription(&self) -> Result<Option<Inscription>, StoreError> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Some(text) = self.annotation(RECORD) else { return Ok(None) };
        let Ok(Format { format }) = serde_json::from_str(text) else {
            return Err(damaged(self.name(), "has an annotation that is none of ours"));
        };
        if format > FORMAT {
            return Err(StoreError::new(
                StoreErrorKind::NewerFormat,
                format!(
                    "the Lease {} was written by a newer release (format {format}, this one knows \
                     {FORMAT})",
                    self.name()
                ),
            ));
        }
        let inscription = serde_json::from_str(text)
            .map_err(|_| damaged(self.name(), "has an annotation that is damaged"))?;
        Ok(Some(inscription))
    }

    fn own_inscription(&self) -> Result<Inscription, StoreError> {
        self.inscription()?.ok_or_else(|| damaged(self.name(), "has lost its annotation"))
    }

    fn inscribe(&mut self, inscription: &Inscription) {
        // A struct of numbers and strings.
        let text = serde_json::to_string(inscription).expect("an inscription is JSON");
        self.annotations().insert(RECORD.to_owned(), text);
    }

    fn note(&self) -> Result<Vec<u8>, StoreError> {
        match self.annotation(NOTE) {
            None => Ok(Vec::new()),
            Some(text) => BASE64
                .decode(text)
                .map_err(|_| damaged(self.name(), "has a note that is not base64")),
        }
    }

    fn set_note(&mut self, note: &[u8]) {
        if note.is_empty() {
            self.annotations().remove(NOTE);
        } else {
            self.annotations().insert(NOTE.to_owned(), BASE64.encode(note));
        }
    }

    fn annotations(&mut self) -> &mut BTreeMap<String, String> {
        self.metadata.annotations.get_or_insert_default()
    }
}

impl kube::Resource for LeaseObject {
    type DynamicType = ();
    type Scope = k8s_openapi::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "coordination.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "leases".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn foreign(identity: &str) -> Holder {
    Holder { owner: records::owner(identity), claim: None, nonce: None, session: None }
}

/// What `leaseDurationSeconds` says of an inscription, whoever holds now.
///
/// An attached lease does not end by time, and is not renewed; so foreign electors, who would take
/// it after its ttl, are told a time that does not come.
fn duration_seconds(inscription: &Inscription, identity: &str) -> i32 {
    if identity.is_empty() {
        RELEASED_SECONDS
    } else if inscription.session.is_some() {
        i32::MAX
    } else {
        i32::try_from(inscription.ttl_ms.div_ceil(1000)).unwrap_or(i32::MAX).max(1)
    }
}

fn whole_seconds(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0).max(1))
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

fn damaged(name: &str, what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Damaged,
        format!(
            "the Lease {name} {what}; \"kubectl annotate lease {name} {RECORD}- {NOTE}-\" makes it \
             one without a note"
        ),
    )
}

const API_VERSION: &str = "coordination.k8s.io/v1";
const KIND: &str = "Lease";
const RECORD: &str = "tenure.dev/record";
const NOTE: &str = "tenure.dev/note";
/// As client-go does it; 0 is refused by the server.
const RELEASED_SECONDS: i32 = 1;
/// A holder that names no duration is given client-go's default.
const UNSAID_TTL: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests;
