//! The records of a mutant, and its rules, each of which can be broken.
#![allow(clippy::disallowed_methods)] // One defect waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use tenure_lease::backend::{
    Acquire, Acquired, Expected, Release, Released, Renew, Renewed, StoreError, StoreErrorKind,
};
use tenure_lease::record::{Expiry, Holder, Token, Version};
use tenure_lease::{LeaseName, Moment, Nonce, Owner, Record, check_note};

use super::{Defect, Ends};

pub(super) struct Server {
    defect: Option<Defect>,
    ends: Ends,
    tables: Mutex<Tables>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Tables {
    entries: BTreeMap<String, Entry>,
    revision: u64,
    /// What a store might take for its clients' being alive.
    alive: BTreeSet<Nonce>,
    /// Terms by client and name, for the store that counts them there.
    own_terms: BTreeMap<(u64, LeaseName), u64>,
}

#[derive(Clone)]
struct Entry {
    record: Record,
    renewed: Moment,
    unattended: bool,
    newer: bool,
    past_nonces: Vec<Nonce>,
    last_holder: Option<Holder>,
}

/// What a watch compares.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Glance {
    Absent,
    Free,
    Held(Option<Nonce>),
}

/// That an acquisition will be granted, and on what ground.
struct Grant {
    former: Option<Record>,
    former_owner: Option<Owner>,
    expired: bool,
    taken_over: bool,
}

impl Server {
    pub(super) fn new(defect: Option<Defect>, ends: Ends) -> Self {
        let tables = Mutex::new(Tables { revision: FIRST_REVISION, ..Tables::default() });
        Self { defect, ends, tables, changes: watch::Sender::new(0) }
    }

    pub(super) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    pub(super) async fn acquire(
        &self,
        client: u64,
        mut request: Acquire,
    ) -> Result<Acquired, StoreError> {
        request.note = self.take_note(request.note)?;
        match self.defect {
            Some(Defect::ExpectedAbsentIgnored) => {
                request.expected.take_if(|expected| *expected == Expected::Absent);
            }
            Some(Defect::ExpectedTermIgnored) => {
                request.expected.take_if(|expected| *expected != Expected::Absent);
            }
            Some(Defect::NotAtomic) => {
                let decision = self.decide(&self.tables(), &request)?;
                tokio::time::sleep(Duration::from_millis(1)).await;
                return Ok(match decision {
                    Ok(grant) => self.commit(client, request, grant),
                    Err(answer) => answer,
                });
            }
            _ => {}
        }
        let mut tables = self.tables();
        match self.decide(&tables, &request)? {
            Ok(grant) => {
                let answer = self.grant(&mut tables, client, request, grant);
                self.tell(tables);
                Ok(answer)
            }
            Err(Acquired::Lost(_)) if self.has(Defect::LostWithoutRecord) => {
                Ok(Acquired::Lost(None))
            }
            Err(answer) => {
                if self.has(Defect::LostWrites) {
                    self.touch(&mut tables, &request.name);
                }
                Ok(answer)
            }
        }
    }

    fn commit(&self, client: u64, request: Acquire, grant: Grant) -> Acquired {
        let mut tables = self.tables();
        let answer = self.grant(&mut tables, client, request, grant);
        self.tell(tables);
        answer
    }

    fn decide(
        &self,
        tables: &Tables,
        request: &Acquire,
    ) -> Result<Result<Grant, Acquired>, StoreError> {
        let entry = tables.entries.get(&self.key(&request.name));
        self.refuse_newer(entry)?;
        let former = entry.map(|entry| self.show(entry));
        let expired = entry.is_some_and(|entry| self.is_expired(entry));
        let holder = entry.and_then(|entry| entry.record.holder.as_ref());
        if self.has(Defect::AcquireRepeats)
            && let Some(former) = former.as_ref().filter(|former| former.is_of(request.claim))
        {
            return Ok(Err(Acquired::Won { token: former.token, former: None }));
        }
        let free = match self.defect {
            Some(Defect::CreateIgnored) => entry.is_none(),
            Some(Defect::TakeoverIgnoresVersion) => request.takeover.is_some(),
            Some(Defect::ReentrantForOwner) => {
                holder.is_some_and(|holder| holder.owner == request.owner)
            }
            Some(Defect::AttachedIsFree) => holder.is_some_and(|holder| holder.session.is_some()),
            Some(Defect::ForeignIgnored) => holder.is_some_and(|holder| holder.claim.is_none()),
            _ => false,
        };
        let expected = request.expected.is_none_or(|expected| expected.matches(former.as_ref()));
        let allowed = request.allowed_by(former.as_ref(), expired) || free && expected;
        if !allowed {
            return Ok(Err(Acquired::Lost(former)));
        }
        let taken_over = holder.is_some() && !expired;
        let former_owner = entry.and_then(|entry| Some(entry.last_holder.as_ref()?.owner.clone()));
        Ok(Ok(Grant { former, former_owner, expired, taken_over }))
    }

    fn grant(&self, tables: &mut Tables, client: u64, request: Acquire, grant: Grant) -> Acquired {
        let Grant { former, former_owner, expired, taken_over } = grant;
        tables.revision += 1;
        let same_term = match self.defect {
            Some(Defect::TermKeptAfterRelease) => !expired && !taken_over,
            Some(Defect::TermKeptAfterExpiry) => expired,
            Some(Defect::TermKeptAtTakeover) => taken_over,
            Some(Defect::TermKeptForSameOwner) => former_owner.as_ref() == Some(&request.owner),
            _ => false,
        };
        let natural = match (&former, self.defect) {
            (_, Some(Defect::TermPerClient)) => {
                let terms = tables.own_terms.entry((client, request.name.clone()));
                let term = terms.or_insert(FIRST_REVISION);
                *term += 1;
                *term
            }
            (Some(former), _) => former.token.term + u64::from(!same_term),
            (None, Some(Defect::FirstTermIsOne)) => 1,
            (None, Some(Defect::FirstTermRepeats)) => FIRST_REVISION,
            (None, _) => tables.revision,
        };
        let above = if self.has(Defect::AboveIgnored) { 0 } else { request.above + 1 };
        let token = Token::new(natural.max(above), 0);
        tables.revision = tables.revision.max(token.term);
        let dropped = match self.defect {
            Some(Defect::NoteDroppedOnExpiry) => expired,
            Some(Defect::NoteDroppedOnTakeover) => taken_over,
            _ => false,
        };
        let kept = former.as_ref().filter(|_| !dropped).map(|former| former.note.clone());
        let written = request.note.filter(|_| !self.has(Defect::NoteIgnoredByAcquire));
        let holder = Holder {
            owner: self.take_owner(request.owner),
            claim: Some(request.claim),
            nonce: Some(request.claim),
            session: request.session.filter(|_| !self.has(Defect::SessionDropped)),
        };
        let record = Record {
            version: Version(format!("r{}", tables.revision)),
            token,
            holder: Some(holder.clone()),
            ttl: self.take_ttl(request.ttl),
            expiry: Expiry::ByObservation,
            note: written.or(kept).unwrap_or_default(),
        };
        let entry = Entry {
            record,
            renewed: Moment::now(),
            unattended: request.unattended,
            newer: false,
            past_nonces: vec![request.claim],
            last_holder: Some(holder),
        };
        tables.entries.insert(self.key(&request.name), entry);
        tables.alive.insert(request.claim);
        let former = former.filter(|_| !self.has(Defect::FormerMissing));
        Acquired::Won { token, former }
    }

    pub(super) fn renew(&self, mut request: Renew) -> Result<Renewed, StoreError> {
        request.note = self.take_note(request.note)?;
        let mut tables = self.tables();
        tables.revision += 1;
        let (key, revision) = (self.key(&request.name), tables.revision);
        let trusted = self.has(Defect::RenewTrustsSession) && tables.alive.contains(&request.claim);
        self.refuse_newer(tables.entries.get(&key))?;
        let Some(entry) = tables.entries.get_mut(&key) else {
            return Ok(if trusted { Renewed::Yes } else { Renewed::Refused(None) });
        };
        let shown = Some(self.show(entry)).filter(|_| !self.has(Defect::RefusedWithoutRecord));
        if self.has(Defect::RenewRevives) && entry.record.holder.is_none() {
            entry.record.holder = entry.last_holder.clone();
        }
        let late = self.has(Defect::LateRenewalRefused)
            && Moment::now().since(entry.renewed) > entry.record.ttl.mul_f64(0.45);
        let Some(holder) = entry.record.holder.as_mut().filter(|_| !late) else {
            return Ok(Renewed::Refused(shown));
        };
        let written = holder.nonce.as_ref();
        let known = match self.defect {
            Some(Defect::RenewIgnoresNonce) => true,
            Some(Defect::RenewAcceptsPastNonces) => {
                request.known.iter().any(|known| entry.past_nonces.contains(known))
            }
            Some(Defect::RenewTakesFirstKnown) => request.known.first() == written,
            Some(Defect::RenewTakesLastKnown) => request.known.last() == written,
            _ => written.is_some_and(|nonce| request.known.contains(nonce)),
        };
        let tokened = entry.record.token == request.token || self.has(Defect::RenewIgnoresToken);
        let ours = holder.claim == Some(request.claim) && known && tokened;
        if !ours && !self.has(Defect::RenewIgnoresClaim) {
            return Ok(Renewed::Refused(shown));
        }
        if !self.has(Defect::RenewForgetsNonce) {
            holder.nonce = Some(request.nonce);
        }
        entry.past_nonces.push(request.nonce);
        entry.last_holder = Some(holder.clone());
        if !self.has(Defect::RenewKeepsVersion) {
            entry.record.version = Version(format!("r{revision}"));
        }
        if !self.has(Defect::RenewDoesNotProlong) {
            entry.renewed = Moment::now();
        }
        match request.note {
            Some(_) if self.has(Defect::NoteIgnoredByRenew) => {}
            Some(note) => entry.record.note = note,
            None if self.has(Defect::NoteDroppedByRenew) => entry.record.note.clear(),
            None => {}
        }
        entry.record.ttl = self.take_ttl(request.ttl);
        self.tell(tables);
        Ok(Renewed::Yes)
    }

    pub(super) fn release(&self, request: &Release) -> Result<Released, StoreError> {
        let mut tables = self.tables();
        tables.revision += 1;
        let (key, revision) = (self.key(&request.name), tables.revision);
        self.refuse_newer(tables.entries.get(&key))?;
        let holder = tables.entries.get(&key).and_then(|entry| entry.record.holder.as_ref());
        let ours = holder.is_some_and(|holder| {
            let claimed = holder.claim == Some(request.claim);
            let known = holder.nonce.is_some_and(|nonce| request.known.contains(&nonce));
            claimed && (known || self.has(Defect::ReleaseIgnoresNonce))
                || self.has(Defect::ReleaseIgnoresClaim)
        });
        if !ours {
            return if self.has(Defect::ReleaseTwiceFails) {
                Err(StoreError::unavailable("there is nothing to release"))
            } else {
                Ok(Released::Refused)
            };
        }
        tables.alive.remove(&request.claim);
        let Some(entry) = tables.entries.get_mut(&key) else { return Ok(Released::Refused) };
        match self.defect {
            Some(Defect::ReleaseDoesNotFree) => return Ok(Released::Yes),
            Some(Defect::NoteDroppedOnRelease) => entry.record.note.clear(),
            Some(Defect::TokenDroppedOnRelease) => entry.record.token = Token::default(),
            _ => {}
        }
        entry.record.holder = None;
        entry.record.version = Version(format!("r{revision}"));
        self.tell(tables);
        Ok(Released::Yes)
    }

    pub(super) fn read(&self, names: &[LeaseName]) -> Result<Vec<Option<Record>>, StoreError> {
        let mut tables = self.tables();
        if self.has(Defect::ReadWrites) {
            names.iter().for_each(|name| self.touch(&mut tables, name));
        }
        let entries = names.iter().map(|name| tables.entries.get(&self.key(name)));
        entries
            .map(|entry| {
                self.refuse_newer(entry)?;
                Ok(entry.map(|entry| self.show(entry)))
            })
            .collect()
    }

    /// Gives a record a new version.
    fn touch(&self, tables: &mut Tables, name: &LeaseName) {
        tables.revision += 1;
        let version = Version(format!("r{}", tables.revision));
        if let Some(entry) = tables.entries.get_mut(&self.key(name)) {
            entry.record.version = version;
        }
    }

    pub(super) fn delete(&self, name: &LeaseName) {
        let mut tables = self.tables();
        if self.has(Defect::DeletionLooksReleased) {
            self.touch(&mut tables, name);
            if let Some(entry) = tables.entries.get_mut(&self.key(name)) {
                entry.record.holder = None;
            }
        } else {
            tables.entries.remove(&self.key(name));
        }
        tables.revision += 1;
        self.tell(tables);
    }

    /// As an elector of another make would.
    pub(super) fn seize(&self, name: &LeaseName, identity: &str) {
        let mut tables = self.tables();
        self.touch(&mut tables, name);
        if let Some(entry) = tables.entries.get_mut(&self.key(name)) {
            let owner = Owner { name: identity.to_owned(), incarnation: 0 };
            let holder = Holder { owner, claim: None, nonce: None, session: None };
            entry.record.holder = Some(holder);
        }
        self.tell(tables);
    }

    pub(super) fn write_newer(&self, name: &LeaseName) {
        let mut tables = self.tables();
        tables.revision += 1;
        let record = Record {
            version: Version(format!("r{}", tables.revision)),
            token: Token::new(tables.revision, 0),
            holder: None,
            ttl: Duration::from_secs(1),
            expiry: Expiry::ByObservation,
            note: Vec::new(),
        };
        let entry = Entry {
            record,
            renewed: Moment::now(),
            unattended: false,
            newer: true,
            past_nonces: Vec::new(),
            last_holder: None,
        };
        tables.entries.insert(self.key(name), entry);
        self.tell(tables);
    }

    pub(super) fn restart(&self) {
        if self.has(Defect::ForgetsAtRestart) {
            *self.tables() = Tables { revision: FIRST_REVISION, ..Tables::default() };
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn glance(&self, name: &LeaseName) -> Glance {
        match self.tables().entries.get(&self.key(name)) {
            None => Glance::Absent,
            Some(Entry { record: Record { holder: None, .. }, .. }) => Glance::Free,
            Some(Entry { record: Record { holder: Some(holder), .. }, .. }) => {
                Glance::Held(holder.claim)
            }
        }
    }

    /// The record as clients see it.
    fn show(&self, entry: &Entry) -> Record {
        let mut record = entry.record.clone();
        if self.is_timed(entry) && record.session().is_none() {
            let rest = (entry.renewed + self.lasts(entry)).since(Moment::now());
            let rest = if self.has(Defect::RemainingUnsaid) { Duration::ZERO } else { rest };
            record.expiry = Expiry::ByStore(rest);
        }
        if self.has(Defect::ClaimNotShown)
            && let Some(holder) = &mut record.holder
        {
            holder.claim = None;
        }
        record
    }

    /// Whether the store itself ends it.
    fn is_timed(&self, entry: &Entry) -> bool {
        let attached = entry.record.session().is_some() && !self.has(Defect::AttachedExpires);
        let foreign = matches!(&entry.record.holder, Some(holder) if holder.claim.is_none());
        self.ends == Ends::ByStore && !attached && !foreign
    }

    fn is_expired(&self, entry: &Entry) -> bool {
        self.is_timed(entry)
            && entry.record.holder.is_some()
            && Moment::now() >= entry.renewed + self.lasts(entry)
    }

    fn lasts(&self, entry: &Entry) -> Duration {
        match self.defect {
            Some(Defect::ExpiresEarly) => entry.record.ttl.mul_f64(0.55),
            Some(Defect::NeverExpires) => Duration::MAX,
            Some(Defect::UnattendedNeverExpires) if entry.unattended => Duration::MAX,
            _ => entry.record.ttl,
        }
    }

    fn take_note(&self, note: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, StoreError> {
        if !self.has(Defect::NoteUnbounded) {
            check_note(note.as_deref())?;
        }
        Ok(note.and_then(|note| match self.defect {
            Some(Defect::NoteAsText) => Some(String::from_utf8_lossy(&note).into_owned().into()),
            Some(Defect::NoteTruncated) => Some(note.into_iter().take(4096).collect()),
            Some(Defect::EmptyNoteIsNone) if note.is_empty() => None,
            _ => Some(note),
        }))
    }

    fn take_owner(&self, mut owner: Owner) -> Owner {
        if self.has(Defect::OwnerAsWord) {
            owner.name.retain(|c| c.is_ascii_alphanumeric() || c == '-');
        }
        owner
    }

    fn take_ttl(&self, ttl: Duration) -> Duration {
        let minutes = Duration::from_secs(ttl.as_secs().div_ceil(60) * 60);
        if self.has(Defect::TtlRounded) { minutes } else { ttl }
    }

    fn refuse_newer(&self, entry: Option<&Entry>) -> Result<(), StoreError> {
        if self.has(Defect::NewerFormatOverwritten) || entry.is_none_or(|entry| !entry.newer) {
            return Ok(());
        }
        Err(StoreError::new(StoreErrorKind::NewerFormat, "a newer release wrote this record"))
    }

    fn key(&self, name: &LeaseName) -> String {
        if self.has(Defect::NamesFolded) {
            name.as_str().replace('.', "-")
        } else {
            name.as_str().to_owned()
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // An entry is replaced whole or not at all, so a panic elsewhere leaves them sound.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the watches.
    fn tell(&self, tables: MutexGuard<'_, Tables>) {
        let revision = tables.revision;
        drop(tables);
        self.changes.send_replace(revision);
    }
}

const FIRST_REVISION: u64 = 1_000;
