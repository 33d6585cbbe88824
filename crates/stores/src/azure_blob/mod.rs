//! Leases in Azure Blob Storage: `azblob://ACCOUNT/CONTAINER?prefix=…&endpoint=…&sas=…`.
//!
//! One blob per lease, which holds the whole record, readable by `az storage blob download`. Every
//! write of it names the ETag of the content it replaces (`If-Match`), so that of any number of
//! clients one is first and the others are told.
//!
//! **The blob's own lease.** The holder of a plain lease also has the blob leased, under an id that
//! is its claim, for the ttl. Azure refuses every write by others meanwhile, and ends the lease by
//! its own clock: state *expired* is its word that the holder's time is over, and the only one that
//! is taken. A lease that was *broken*, or is just not there, was taken away by somebody, from a
//! holder who may be well: such a record is watched until it has stood still for its ttl, and taken
//! over by its ETag. Acquiring is three requests: read the record, lease the blob, write the new
//! record under that lease, both on the ETag that was read. Only the last of them counts. What
//! fails before it leaves a lease without a record, which is given back by its id, or expires.
//!
//! **Renewing** is read, renew the lease, write a new nonce under the lease on the ETag that was
//! read. The renewal of the lease alone would prove nothing: Azure grants it even after the lease
//! has expired, as long as nobody else took it. The nonce proves that nobody wrote in between. A
//! renewal with a longer ttl acquires the lease again under its own id, since a lease keeps the
//! duration that it was acquired with; one with a shorter ttl leaves the lease as long as it is.
//!
//! **Taking over** a held record by its version (it has stood still for its ttl, or an operator
//! breaks it) breaks the blob's lease, if there is one, on the ETag; then writes the record on the
//! ETag, and then leases the blob. In this order, because nobody sees whose a blob's lease is: of
//! several who take over at once, each would break the lease of the one before. A renewal that finds
//! its own record and no lease leases the blob again; one that finds a broken lease is refused.
//!
//! **Terms** count up. The first one of an absent blob is the time at which the blob was created,
//! by Azure's clock, in microseconds; so a blob that was deleted begins above its former terms.
//! Azure shows whole seconds only. Therefore a blob is first created as one that was never held
//! (which counts as absent), and is first held when Azure's clock shows a later second: whoever
//! deletes it after that and creates it again does so in a later second. The first acquisition of a
//! name takes up to a second longer for it.
//!
//! **The client** is this crate's own, because Azure's takes no account key: see `api`. Identities of
//! Entra's are found by Azure's library.
//!
//! **Attached leases** do not lease the blob: they are compared and set by the ETag alone. Many of
//! them are proved by one request; see `list`.

mod api;
mod auth;
mod content;
mod driver;
mod entra;
mod list;
mod url;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, LIST_MAX, Promise, Release, Released, Renew, Renewed,
    StoreError, StoreErrorKind, StoreInfo,
};
use tenure_lease::record::{Record, Token};
use tenure_lease::{LeaseName, OpenError, check_note};

use api::{Api, Blob, Lease, LeaseState, Outcome, When};
use auth::Auth;
use content::{Body, Content, Seen};
use list::{Listed, Memory};
use url::Options;

use crate::generations::Lane;

/// Leases in Azure Blob Storage. Clones share their connections.
#[derive(Clone)]
pub struct AzureBlobStore {
    api: Api,
    memory: Arc<Memory>,
}

impl std::fmt::Debug for AzureBlobStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AzureBlobStore").finish_non_exhaustive()
    }
}

impl AzureBlobStore {
    /// A store by its URL,
    /// `azblob://ACCOUNT/CONTAINER?prefix=…&endpoint=https://…&ca=FILE&key=…&sas=…`.
    /// It connects when it is first asked something.
    ///
    /// Without `sas` and `key` it uses `AZURE_STORAGE_SAS_TOKEN`, else `AZURE_STORAGE_KEY`, else an
    /// identity of Entra's: a client's secret (`AZURE_TENANT_ID`, `AZURE_CLIENT_ID`,
    /// `AZURE_CLIENT_SECRET`), a workload identity (the same with `AZURE_FEDERATED_TOKEN_FILE`), or
    /// the managed identity of App Service, Container Apps or the virtual machine. With
    /// `AZURE_TOKEN_CREDENTIALS=dev` it is whoever is logged in by `az`.
    ///
    /// ```no_run
    /// use tenure_lease::Store;
    /// use tenure_stores::azure_blob::AzureBlobStore;
    /// let store = Store::new(AzureBlobStore::new("azblob://shop/leases")?);
    /// # Ok::<(), tenure_lease::OpenError>(())
    /// ```
    pub fn new(url: &str) -> Result<Self, OpenError> {
        let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let options = Options::parse(url)?;
        let auth = Auth::find(&options, environment)?;
        Ok(Self { api: Api::new(options, auth)?, memory: Arc::default() })
    }

    /// Creates the container if there is none; for set-up, with credentials that may.
    pub async fn create_container(&self) -> Result<(), StoreError> {
        self.api.create_container().await
    }

    /// The blob as it is, understood.
    async fn look(&self, name: &LeaseName) -> Result<Seen, StoreError> {
        look(&self.api, name).await
    }

    async fn try_acquire(&self, request: &Acquire) -> Result<Acquired, StoreError> {
        check_note(request.note.as_deref())?;
        check_ttl(request.ttl)?;
        let (mut attempts, mut waits) = (0, 0);
        while attempts < ATTEMPTS && waits < WAITS_MAX {
            let seen = self.look(&request.name).await?;
            let former = seen.record();
            if attempts > 0 && seen.is_of(request.claim) {
                // Written once and refused once, as by a proxy that repeats: it may be ours.
                return Err(StoreError::unavailable("Azure took the claim and refused it"));
            }
            if !request.allowed_by(former.as_ref(), seen.expired()) {
                return Ok(Acquired::Lost(former));
            }
            let Some(blob) = &seen.blob else {
                let body = Body::never_held().encode();
                // Whoever created it: there is one now.
                self.api.put(&request.name, body, When::Absent).await?;
                waits += 1;
                continue;
            };
            let by_version = former.as_ref().is_some_and(|former| {
                former.holder.is_some() && request.takeover.as_ref() == Some(&former.version)
            });
            if seen.is_leased() && !by_version {
                // Somebody is about to write, or has not quite let go.
                return Ok(Acquired::Lost(former));
            }
            let begins = match &seen.content {
                Content::Ours(_) => 0,
                Content::Absent | Content::Foreign if blob.date > blob.modified => {
                    blob.modified_us()
                }
                Content::Absent | Content::Foreign => {
                    driver::pause(SECOND_PAUSE).await;
                    waits += 1;
                    continue;
                }
            };
            let highest = former.as_ref().map_or(0, |former| former.token.term);
            let term = highest.max(begins).max(request.above).saturating_add(1);
            let taking = Taking { request, blob, term, former: former.as_ref(), by_version };
            if self.take(&taking).await? == Outcome::Done {
                return Ok(Acquired::Won { token: Token::new(term, 0), former });
            }
            attempts += 1;
        }
        if waits >= WAITS_MAX {
            return Err(StoreError::unavailable(format!(
                "Azure's clock does not pass the second in which the blob of {} was written",
                request.name
            )));
        }
        Err(restless(&request.name))
    }

    /// Leases the blob, unless it is to be an attached lease, and writes the record of a new
    /// tenure.
    async fn take(&self, taking: &Taking<'_>) -> Result<Outcome, StoreError> {
        let Taking { request, blob, former, .. } = *taking;
        let (name, claim, etag) = (&request.name, request.claim, blob.etag.as_str());
        let note = match (&request.note, former) {
            (Some(note), _) => note.clone(),
            (None, Some(former)) => former.note.clone(),
            (None, None) => Vec::new(),
        };
        let body = Body::new(request, taking.term, note).encode();
        let ttl = request.ttl;
        if !taking.by_version && request.session.is_none() {
            let lease = Lease::Acquire { claim, ttl, etag };
            if self.api.lease(name, lease).await? == Outcome::Conflict {
                return Ok(Outcome::Conflict);
            }
            let when = When::Is { etag, leased: Some(claim) };
            if self.api.put(name, body, when).await?.is_some() {
                return Ok(Outcome::Done);
            }
            self.api.lease(name, Lease::Release { claim }).await?;
            return Ok(Outcome::Conflict);
        }
        if blob.state == LeaseState::Leased
            && self.api.lease(name, Lease::Break { etag }).await? == Outcome::Conflict
        {
            return Ok(Outcome::Conflict);
        }
        let written = self.api.put(name, body.clone(), When::Is { etag, leased: None }).await?;
        match written {
            None => Ok(Outcome::Conflict),
            Some(etag) if request.session.is_some() => {
                let (state, body) = (LeaseState::Free, body.into());
                self.memory.keep(name, &Blob { etag, state, body, ttl: None, ..*blob });
                Ok(Outcome::Done)
            }
            Some(etag) => self.api.lease(name, Lease::Acquire { claim, ttl, etag: &etag }).await,
        }
    }

    async fn try_renew(&self, request: &Renew) -> Result<Renewed, StoreError> {
        check_note(request.note.as_deref())?;
        check_ttl(request.ttl)?;
        let Renew { name, claim, token, nonce, ttl, .. } = request;
        let renewal = self.api.on(Lane::Renewal);
        let mut unleased = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                driver::pause(CONFLICT_PAUSE).await;
            }
            // Its answer shows that the connection works, and the others use it.
            let fresh = attempt == 0 && request.fresh_connection;
            let api = if fresh { &self.api.on(Lane::FreshRenewal) } else { &renewal };
            let seen = look(api, name).await?;
            let mut known = request.known.clone();
            if attempt > 0 {
                known.push(*nonce);
            }
            let Some((blob, body)) = seen.held_by(*claim, &known) else {
                return Ok(Renewed::Refused(seen.record()));
            };
            if *token != Token::new(body.line.term, 0) {
                return Ok(Renewed::Refused(seen.record()));
            }
            let mut next = body.clone();
            next.line.set_ttl(*ttl);
            let (mut attached, mut leased_for) = (false, Duration::ZERO);
            if let Some(holder) = &mut next.line.holder {
                attached = holder.session.is_some();
                leased_for = Duration::from_secs(holder.lease_s);
                holder.lease_s = holder.lease_s.max(ttl.as_secs());
                holder.nonce = *nonce;
            }
            let etag = blob.etag.as_str();
            if !attached {
                let claim = *claim;
                let lease = match blob.state {
                    LeaseState::Broken => None,
                    LeaseState::Leased | LeaseState::Expired if *ttl <= leased_for => {
                        Some(Lease::Renew { claim })
                    }
                    // It grows only: if the answer is lost, the holder believes in its former ttl.
                    // Free: a takeover that got no further than its record.
                    _ => Some(Lease::Acquire { claim, ttl: leased_for.max(*ttl), etag }),
                };
                // It names the ETag, which another renewal of this tenure may have changed.
                let compares = matches!(lease, Some(Lease::Acquire { .. }));
                let renewed = match lease {
                    Some(lease) => renewal.lease(name, lease).await? == Outcome::Done,
                    None => false,
                };
                if !renewed {
                    // Broken, or taken by one who is about to write: then the record will say who.
                    unleased = Some(seen).filter(|_| !compares);
                    continue;
                }
            }
            if let Some(note) = &request.note {
                next.note = note.clone();
            }
            let when = When::Is { etag, leased: (!attached).then_some(*claim) };
            if renewal.put(name, next.encode(), when).await?.is_some() {
                return Ok(Renewed::Yes);
            }
            unleased = None;
        }
        match unleased {
            Some(seen) => {
                let mut record = seen.record();
                if let Some(record) = &mut record {
                    record.holder = None;
                }
                Ok(Renewed::Refused(record))
            }
            None => Err(restless(name)),
        }
    }

    async fn try_release(&self, request: &Release) -> Result<Released, StoreError> {
        let Release { name, claim, known } = request;
        let (claim, api) = (*claim, self.api.on(Lane::Renewal));
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                driver::pause(CONFLICT_PAUSE).await;
            }
            let seen = look(&api, name).await?;
            if let Some((blob, body)) = seen.held_by(claim, known) {
                let mut next = body.clone();
                next.line.holder = None;
                let leased = seen.is_leased().then_some(claim);
                let when = When::Is { etag: &blob.etag, leased };
                if api.put(name, next.encode(), when).await?.is_some() {
                    if leased.is_some() {
                        api.lease(name, Lease::Release { claim }).await?;
                    }
                    return Ok(Released::Yes);
                }
                continue;
            }
            // The claim may have leased the blob and not have written the record, or not yet: look
            // again once it cannot. A clone of this process has the same claim, and is left alone.
            let tidied = seen.is_leased()
                && !seen.is_of(claim)
                && api.lease(name, Lease::Release { claim }).await? == Outcome::Done;
            if !tidied {
                return Ok(Released::Refused);
            }
        }
        Err(restless(name))
    }

    async fn read_all(&self, names: Vec<LeaseName>) -> Result<Vec<Option<Record>>, StoreError> {
        let places = Arc::new(Semaphore::new(READS_MAX));
        let proved = self.memory.proved(&self.api, &names).await?;
        let many = names.len() > list::FEW;
        let mut reading = JoinSet::new();
        let mut records = vec![None; names.len()];
        for (index, name) in names.into_iter().enumerate() {
            if let Some(blob) = proved.get(&name) {
                records[index] = Seen::new(&name, Some(blob.clone()))?.record();
                continue;
            }
            let (store, places) = (self.clone(), Arc::clone(&places));
            reading.spawn(async move {
                let _place = places.acquire_owned().await;
                let seen = store.look(&name).await;
                if let (true, Ok(Seen { blob: Some(blob), .. })) = (many, &seen) {
                    store.memory.keep(&name, blob);
                }
                (index, seen)
            });
        }
        while let Some(read) = reading.join_next().await {
            let (index, seen) = read.map_err(|error| {
                StoreError::unavailable(format!("the read was broken off: {error}"))
            })?;
            records[index] = seen?.record();
        }
        Ok(records)
    }

    async fn list_all(&self) -> Result<Vec<LeaseName>, StoreError> {
        let (mut names, mut marker) = (Vec::new(), None);
        loop {
            let page = self.api.list("", marker.as_deref()).await?.ok_or_else(|| {
                let text = "Azure Blob refuses to list the container; it takes the permission to \
                            list (SAS sp=rcwl, or a role)";
                StoreError::new(StoreErrorKind::Denied, text)
            })?;
            names.extend(page.listed.iter().filter_map(Listed::lease));
            marker = page.next;
            if marker.is_none() || names.len() >= LIST_MAX {
                names.truncate(LIST_MAX);
                return Ok(names);
            }
        }
    }
}

/// The blob as it is, understood.
async fn look(api: &Api, name: &LeaseName) -> Result<Seen, StoreError> {
    Seen::new(name, api.get(name).await?)
}

/// A new tenure on its way into the record.
#[derive(Clone, Copy)]
struct Taking<'a> {
    request: &'a Acquire,
    blob: &'a Blob,
    term: u64,
    former: Option<&'a Record>,
    /// From a holder whose record has this version, whatever Azure says about its lease.
    by_version: bool,
}

impl Backend for AzureBlobStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "azure_blob",
            promise: Promise::Safe,
            ttl_min: TTL_MIN,
            ttl_max: TTL_MAX,
            ttl_step: Duration::from_secs(1),
            frees_after_ttls: 1,
            pushes: false,
            pushes_renewals: false,
            reads_everything: true,
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

fn check_ttl(ttl: Duration) -> Result<(), StoreError> {
    if ttl >= TTL_MIN && ttl <= TTL_MAX && ttl.subsec_nanos() == 0 {
        return Ok(());
    }
    let text = format!("Azure leases a blob for whole seconds, 15 to 60, and not for {ttl:?}");
    Err(StoreError::new(StoreErrorKind::Unsuitable, text))
}

fn restless(name: &LeaseName) -> StoreError {
    StoreError::unavailable(format!("the record of {name} changes faster than it can be written"))
}

const TTL_MIN: Duration = Duration::from_secs(15);
const TTL_MAX: Duration = Duration::from_secs(60);
/// So often a change is attempted on a record that others change at the same time.
const ATTEMPTS: usize = 4;
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);
/// Between two looks at whether Azure's clock shows another second; so often at most.
const SECOND_PAUSE: Duration = Duration::from_millis(150);
const WAITS_MAX: usize = 14;
/// So many blobs are read at once.
const READS_MAX: usize = 16;
