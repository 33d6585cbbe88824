//! Leases in a DynamoDB table: `dynamodb://TABLE?region=…&endpoint=…&create=true`.
//!
//! One item per lease, whose key `pk` is the lease's name. Each step is one conditional
//! `UpdateItem`, which DynamoDB does whole or not at all; all reads are consistent ones. Items are
//! never deleted: term and note stay in them.
//!
//! **The nonce.** `rvn` holds the nonce of the last write, and every write leaves another. A
//! renewal is a compare-and-set of it, together with claim, term and format, so it proves the
//! record: whatever else wrote there, the renewal is refused. A takeover names the `rvn` that the
//! claimant has watched. If a condition fails, the item is read again, for the reason: a failed
//! condition alone is a definite no.
//!
//! **Time.** DynamoDB expires nothing (its own "TTL" deletes hours or days late, and would delete
//! terms and notes: leave it off). A contender watches `rvn` by its own clock for the ttl that the
//! record names. `leaseUntil` and `owner` are for people who look at the table; nothing rests on
//! them. DynamoDB cannot push, so contenders poll.
//!
//! **Terms.** A record's next term is its last one and 1. The first term of a name is the server's
//! clock in microseconds, from the `Date` of an answer. That clock ticks once a second, and a
//! record may be deleted and created again within one. Therefore first terms also go through one
//! item of the table, `#terms`, which remembers the highest: a first term is the time, or 1,000
//! above the last first term, whichever is more. Nobody can acquire a lease so often within a
//! second, since DynamoDB takes 1,000 writes a second to one item, and between two acquisitions
//! there is a release. So terms rise over deletions, also if the server's clock goes back.
//!
//! A first term must not be drawn before the record exists: if its drawer paused, others could hold
//! the lease under higher ones and an operator delete it, before the late write created it again
//! under the lower one. So who finds nothing first makes an item that is not held, which counts as
//! absent, then draws a term, and then takes this very item: three writes, or four, once per name.
//!
//! **The client** is AWS's SDK, without retries and time-outs, which are the keeper's, and on this
//! crate's own HTTP client: see `transport`.

mod api;
mod driver;
mod item;
mod transport;
mod url;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::Credentials;
use tokio::task::JoinSet;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, LIST_MAX, Promise, Release, Released, Renew, Renewed,
    StoreError, StoreErrorKind, StoreInfo,
};
use tenure_lease::record::{FORMAT, Record, Token};
use tenure_lease::{LeaseName, Nonce, OpenError, check_note};

use api::{Api, BATCH_MAX, Outcome};
use driver::Access;
use item::{
    CLAIM, Change, Content, FORMAT_NUMBER, KEY, LEASE_UNTIL, OWNER, RVN, SESSION, SESSION_TERM,
    TERM, TTL_MS, n, s,
};
use url::Options;

use crate::generations::Lane;
use crate::http::{Http, Trust};

/// Leases in a DynamoDB table. Clones share their connections and credentials.
#[derive(Clone)]
pub struct DynamoStore {
    api: Arc<Api>,
}

impl std::fmt::Debug for DynamoStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DynamoStore").finish_non_exhaustive()
    }
}

impl DynamoStore {
    /// A store by its URL, `dynamodb://TABLE?region=…&endpoint=…&create=true&ca=FILE`. It connects,
    /// and looks for credentials in AWS's standard places, when it is first asked something.
    ///
    /// ```
    /// use tenure_lease::Store;
    /// use tenure_stores::dynamodb::DynamoStore;
    /// let store = Store::new(DynamoStore::new("dynamodb://leases?region=eu-central-1")?);
    /// # Ok::<(), tenure_lease::OpenError>(())
    /// ```
    pub fn new(url: &str) -> Result<Self, OpenError> {
        Self::open(url, None)
    }

    /// The same, with an access key of your own instead of what the standard places hold. For
    /// emulators, which take any, and for programs that keep their keys elsewhere.
    pub fn with_access_key(url: &str, id: &str, secret: &str) -> Result<Self, OpenError> {
        Self::open(url, Some(Credentials::new(id, secret, None, None, "given")))
    }

    fn open(url: &str, given: Option<Credentials>) -> Result<Self, OpenError> {
        let mut options = Options::parse(url)?;
        if options.endpoint.is_none() {
            let named = |key| std::env::var(key).ok().filter(|endpoint| !endpoint.is_empty());
            let named = named("AWS_ENDPOINT_URL_DYNAMODB").or_else(|| named("AWS_ENDPOINT_URL"));
            options.endpoint = named.as_deref().map(url::endpoint).transpose()?;
        }
        let plain = options.endpoint.as_ref().is_some_and(|url| url.starts_with("http:"));
        let trust = match &options.ca {
            Some(path) => Trust::File(path),
            None if plain => Trust::Nothing,
            None => Trust::System,
        };
        let api = Api {
            access: Access::new(Http::new(&trust)?, options.region, options.endpoint, given),
            table: options.table,
            create: options.create,
        };
        Ok(Self { api: Arc::new(api) })
    }

    /// The item as it is, understood, and the server's clock.
    async fn look(
        &self,
        lane: Lane,
        name: &LeaseName,
    ) -> Result<(Content, Option<u64>), StoreError> {
        let (item, date) = self.api.get(lane, name.as_str()).await?;
        Ok((Content::new(name, item)?, date))
    }

    async fn try_acquire(&self, request: &Acquire) -> Result<Acquired, StoreError> {
        check_note(request.note.as_deref())?;
        for attempt in 0..ATTEMPTS {
            let (mut seen, mut date) = self.look(Lane::Other, &request.name).await?;
            let former = seen.record();
            if attempt > 0 && former.is_some_and(|former| former.is_of(request.claim)) {
                // Written once and refused once, as by a proxy that repeats: it may be ours.
                return Err(StoreError::unavailable("DynamoDB took the claim and refused it"));
            }
            if !request.allowed_by(former, false) {
                return Ok(Acquired::Lost(seen.into_record()));
            }
            if seen == Content::Absent {
                let rvn = item::unheld(request.claim);
                let made = Change::default()
                    .set(FORMAT_NUMBER, n(u64::from(FORMAT)))
                    .set(RVN, s(&rvn))
                    .if_still(&seen);
                let Outcome::Done { date: made_at, .. } =
                    self.api.update(Lane::Other, request.name.as_str(), made).await?
                else {
                    continue;
                };
                (seen, date) = (Content::Unheld { rvn }, made_at);
            }
            let term = match &seen {
                Content::Ours { record, .. } => record.token.term.saturating_add(1),
                // Who wrote it may have kept our term, or not.
                Content::Foreign { record, .. } => {
                    self.first_term(date).await?.max(record.token.term.saturating_add(1))
                }
                Content::Absent | Content::Unheld { .. } => self.first_term(date).await?,
            };
            let term = term.max(request.above.saturating_add(1));
            let change = acquisition(request, term, &seen);
            if let Outcome::Done { .. } =
                self.api.update(Lane::Other, request.name.as_str(), change).await?
            {
                let former = seen.into_record();
                return Ok(Acquired::Won { token: Token::new(term, 0), former });
            }
        }
        Err(restless(&request.name))
    }

    /// A term for a record that has none to go on from; see the module. `date` is the server's
    /// clock when it said so.
    async fn first_term(&self, date: Option<u64>) -> Result<u64, StoreError> {
        let date = date.ok_or_else(|| {
            let text = "DynamoDB's answers come without a Date, which first terms are made of";
            StoreError::new(StoreErrorKind::Unsuitable, text)
        })?;
        let now = date.saturating_mul(1_000_000);
        let risen = Change::default()
            .set(HIGHEST, n(now))
            .if_absent_or_at_most(HIGHEST, now.saturating_sub(STEP));
        if let Outcome::Done { .. } = self.api.update(Lane::Other, TERMS, risen).await? {
            return Ok(now);
        }
        let next = Change::default().add(HIGHEST, STEP).if_present(HIGHEST);
        let outcome = self.api.update(Lane::Other, TERMS, next).await?;
        let highest = match &outcome {
            Outcome::Done { changed, .. } => item::number(changed, HIGHEST),
            Outcome::Conflict => None,
        };
        highest.ok_or_else(|| {
            StoreError::unavailable(format!("the item {TERMS} was deleted or edited meanwhile"))
        })
    }

    async fn try_renew(&self, request: &Renew) -> Result<Renewed, StoreError> {
        check_note(request.note.as_deref())?;
        let Renew { name, claim, token, known, nonce, ttl, note, fresh_connection } = request;
        let lane = Lane::of_renewal(*fresh_connection);
        if !known.is_empty() && token.step == 0 {
            let mut change = Change::default()
                .set(RVN, s(&nonce.to_string()))
                .set(TTL_MS, n(millis(*ttl)))
                .set(LEASE_UNTIL, n(until(*ttl)));
            if let Some(note) = note {
                change = change.note(note);
            }
            let change = change.if_equal(TERM, n(token.term)).if_held_by(*claim, known);
            if let Outcome::Done { .. } = self.api.update(lane, name.as_str(), change).await? {
                return Ok(Renewed::Yes);
            }
        }
        let (seen, _) = self.look(Lane::Renewal, name).await?;
        match seen.record() {
            Some(record) if record.token == *token && is_of(record, *claim, &[*nonce]) => {
                // Written once and refused once, as by a proxy that repeats. It is this very
                // write, so the record is proved.
                Ok(Renewed::Yes)
            }
            Some(record) if record.token == *token && is_of(record, *claim, known) => {
                Err(restless(name))
            }
            _ => Ok(Renewed::Refused(seen.into_record())),
        }
    }

    async fn try_release(&self, request: &Release) -> Result<Released, StoreError> {
        let Release { name, claim, known } = request;
        if !known.is_empty() {
            let change = end_of_tenure(*claim).if_held_by(*claim, known);
            if let Outcome::Done { .. } =
                self.api.update(Lane::Renewal, name.as_str(), change).await?
            {
                return Ok(Released::Yes);
            }
        }
        let (seen, _) = self.look(Lane::Renewal, name).await?;
        match seen.record() {
            Some(record) if is_of(record, *claim, known) => Err(restless(name)),
            _ => Ok(Released::Refused),
        }
    }

    async fn read_all(&self, names: Vec<LeaseName>) -> Result<Vec<Option<Record>>, StoreError> {
        if let [name] = names.as_slice() {
            return Ok(vec![self.look(Lane::Other, name).await?.0.into_record()]);
        }
        // DynamoDB refuses a request that names an item twice.
        let keys: BTreeSet<_> = names.iter().map(|name| name.as_str().to_owned()).collect();
        let keys: Vec<_> = keys.into_iter().collect();
        let mut reading = JoinSet::new();
        for keys in keys.chunks(BATCH_MAX) {
            let (api, keys) = (Arc::clone(&self.api), keys.to_vec());
            reading.spawn(async move { api.get_all(&keys).await });
        }
        let mut found = HashMap::new();
        while let Some(read) = reading.join_next().await {
            let read = read.map_err(|error| {
                StoreError::unavailable(format!("the read was broken off: {error}"))
            })?;
            found.extend(api::by_key(read?));
        }
        let record = |name: &LeaseName| {
            let item = found.get(name.as_str()).cloned();
            Content::new(name, item).map(Content::into_record)
        };
        names.iter().map(record).collect()
    }

    async fn list_all(&self) -> Result<Vec<LeaseName>, StoreError> {
        // Besides the records there are the item of terms and, rarely, some that were never held.
        let items = self.api.scan(&[KEY, TERM, FORMAT_NUMBER, RVN], LIST_MAX).await?;
        let mut names: Vec<_> = items.into_iter().filter_map(item::name_of_record).collect();
        names.sort_unstable();
        Ok(names)
    }
}

impl Backend for DynamoStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "dynamodb",
            promise: Promise::Safe,
            ttl_min: Duration::from_secs(1),
            ttl_max: Duration::from_secs(24 * 3600),
            ttl_step: Duration::from_millis(1),
            frees_after_ttls: 1,
            pushes: false,
            pushes_renewals: false,
            reads_everything: false,
        }
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        Box::pin(async move { self.try_acquire(&request).await })
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        Box::pin(async move { self.try_renew(&request).await })
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        Box::pin(async move { self.try_release(&request).await })
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        Box::pin(self.read_all(names))
    }

    fn list(&self) -> Option<Boxed<'_, Result<Vec<LeaseName>, StoreError>>> {
        Some(Box::pin(self.list_all()))
    }
}

/// A new tenure in place of what was seen.
fn acquisition(request: &Acquire, term: u64, seen: &Content) -> Change {
    let mut change = Change::default()
        .set(FORMAT_NUMBER, n(u64::from(FORMAT)))
        .set(TERM, n(term))
        .set(CLAIM, s(&request.claim.to_string()))
        .set(RVN, s(&request.claim.to_string()))
        .set(OWNER, s(&request.owner.to_string()))
        .set(TTL_MS, n(millis(request.ttl)))
        .set(LEASE_UNTIL, n(until(request.ttl)));
    change = match &request.session {
        Some(session) => {
            change.set(SESSION, s(session.name.as_str())).set(SESSION_TERM, n(session.term))
        }
        None => change.remove(SESSION).remove(SESSION_TERM),
    };
    // What cannot be read as a note is not kept as one.
    let unreadable = matches!(seen, Content::Foreign { record, .. } if record.note.is_empty());
    if let Some(note) = &request.note {
        change = change.note(note);
    } else if unreadable {
        change = change.note(&[]);
    }
    change.without_foreign(seen).if_still(seen)
}

/// What a release makes of a record.
fn end_of_tenure(claim: Nonce) -> Change {
    let held = [CLAIM, OWNER, LEASE_UNTIL, SESSION, SESSION_TERM];
    let change = Change::default().set(RVN, s(&item::released(claim)));
    held.iter().fold(change, |change, gone| change.remove(gone))
}

fn is_of(record: &Record, claim: Nonce, known: &[Nonce]) -> bool {
    let nonce = record.holder.as_ref().and_then(|holder| holder.nonce);
    record.is_of(claim) && nonce.is_some_and(|nonce| known.contains(&nonce))
}

fn restless(name: &LeaseName) -> StoreError {
    StoreError::unavailable(format!("the record of {name} changes faster than it can be written"))
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

/// For people: when a tenure ends that is not renewed, by this machine's clock.
fn until(ttl: Duration) -> u64 {
    u64::try_from(driver::now_s())
        .unwrap_or(0)
        .saturating_add(ttl.as_millis().div_ceil(1000) as u64)
}

/// The item that remembers the highest first term. No lease can have its name.
const TERMS: &str = "#terms";
const HIGHEST: &str = "highest";
/// How far first terms are apart, at least.
const STEP: u64 = 1000;
/// So often a change is attempted on a record that others change at the same time.
const ATTEMPTS: usize = 4;
