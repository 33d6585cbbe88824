//! Leases in Consul's key-value store: `consul://host:port/prefix?token=…&tls=…`.
//!
//! One key per lease, `PREFIX/NAME`, which holds the whole record, readable by `consul kv get`.
//! Every change of it is one transaction that names the index of the write it replaces
//! (`check-index`), so that of any number of clients one is first and the others are told.
//!
//! **The lock.** The holder of a plain lease also has the key locked by a Consul session of its
//! own, with the lease's ttl and without health checks. The lock is what Consul's tools and other
//! electors see and respect, but nothing of ours rests on it alone, because it is advisory: anybody
//! may write or delete a locked key. A renewal therefore proves the record: it reads the key,
//! requires its own session, claim, term, nonce and a lock index that no plain write has reset, and
//! writes a new nonce in a transaction on that very index, while it renews the session. What an
//! operator wrote, unlocked or deleted, it finds.
//!
//! **Time.** Consul ends a session after two of its ttls, and then keeps the key locked away for
//! the lock-delay: a failover of up to three ttls. Nor is the end of a session proof of anything:
//! an operator may destroy it, or its node leave, while the holder is well; and the lock-delay,
//! which is meant for that, is 60 s at most and is forgotten when Consul's leader changes. So a
//! contender watches the nonce: once it has not changed for the record's ttl by the contender's own
//! clock, the contender takes the record over, session alive or not, in one transaction (check,
//! unlock, lock). Failover takes one ttl, as in stores without sessions. The end of a session does
//! not change the record's version, so a watcher does not begin anew. While a lock-delay keeps a
//! key that may be taken, the record is written without a lock: the tenure is as good, Consul's
//! tools just do not show it.
//!
//! **Terms** are `max(index of the replaced write, former term, above) + 1`: at most the index of
//! the write itself, unless they were raised. A key that was deleted begins above all of its former
//! terms, since Consul's indexes never go back. For that there must be a write to replace, so the
//! first acquisition of a name first creates its key, never held, which counts as absent. (Not the
//! lock index: a plain write resets it to 0, a deletion to 1.)
//!
//! **Attached leases** have no lock: they are compared and set by the index of their last write.

mod api;
mod content;
mod driver;
mod go_duration;
mod pool;
mod url;
mod watch;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, LIST_MAX, Promise, Release, Released, Renew, Renewed,
    StoreError, StoreInfo, Watch,
};
use tenure_lease::record::{Record, Token};
use tenure_lease::{LeaseName, OpenError, check_note};

use api::{Api, BATCH, Op, Outcome};
use content::{Body, Content, Seen};
use url::Options;
use watch::Watches;

use crate::generations::Lane;

/// Leases in Consul. Clones share their connections.
#[derive(Clone)]
pub struct ConsulStore {
    api: Arc<Api>,
    watches: Arc<Watches>,
}

impl std::fmt::Debug for ConsulStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsulStore").finish_non_exhaustive()
    }
}

impl ConsulStore {
    /// A store by its URL, `consul://host:port/prefix?token=…&tls=…&ca=FILE`. It connects when it
    /// is first asked something. Without a token, that of `CONSUL_HTTP_TOKEN` is used.
    ///
    /// ```
    /// use tenure_lease::Store;
    /// use tenure_stores::consul::ConsulStore;
    /// let store = Store::new(ConsulStore::new("consul://127.0.0.1:8500/shop/leases")?);
    /// # Ok::<(), tenure_lease::OpenError>(())
    /// ```
    pub fn new(url: &str) -> Result<Self, OpenError> {
        let mut options = Options::parse(url)?;
        if options.token.is_none() {
            options.token = std::env::var("CONSUL_HTTP_TOKEN").ok().filter(|t| !t.is_empty());
        }
        let api = Arc::new(Api::new(options)?);
        Ok(Self { watches: Watches::new(Arc::clone(&api)), api })
    }

    /// The key as it is, understood.
    async fn look(&self, lane: Lane, name: &LeaseName) -> Result<Seen, StoreError> {
        let entry = self.api.get(lane, name).await?;
        self.understand(Seen::new(name, entry)?).await
    }

    /// Asks for what a foreign record does not say: how long its session lasts.
    async fn understand(&self, mut seen: Seen) -> Result<Seen, StoreError> {
        if let Content::Foreign { ttl } = &mut seen.content
            && !seen.entry.session.is_empty()
        {
            *ttl = self.api.session_ttl(&seen.entry.session).await?;
        }
        Ok(seen)
    }

    async fn try_acquire(
        &self,
        request: &Acquire,
        session: &mut Option<String>,
    ) -> Result<Acquired, StoreError> {
        check_note(request.note.as_deref())?;
        for attempt in 0..ATTEMPTS {
            let seen = self.look(Lane::Other, &request.name).await?;
            let former = seen.record();
            if attempt > 0 && former.as_ref().is_some_and(|former| former.is_of(request.claim)) {
                // Written once and refused once, as by a proxy that repeats: it may be ours.
                return Err(StoreError::unavailable("Consul took the claim and refused it"));
            }
            if !request.allowed_by(former.as_ref(), seen.expired()) {
                return Ok(Acquired::Lost(former));
            }
            if request.session.is_none() && session.is_none() {
                *session = Some(self.api.create_session(&request.name, request.ttl).await?);
            }
            let replaced = match seen.entry.modify_index {
                0 => match self.create(&request.name).await? {
                    Outcome::Done(index) => index,
                    _ => continue,
                },
                index => index,
            };
            let highest = former.as_ref().map_or(0, |former| former.token.term);
            let term = highest.max(replaced).max(request.above).saturating_add(1);
            let write = Acquisition { request, term, replaced, seen: &seen, former: &former };
            let mut outcome = self.take(&write, session.as_deref()).await?;
            if outcome == Outcome::LockDelay {
                if !request.allowed_by(former.as_ref(), false) {
                    // A foreign elector's lock has ended; its lock-delay is its own.
                    return Ok(Acquired::Lost(former));
                }
                outcome = self.take(&write, None).await?;
            }
            if let Outcome::Done(_) = outcome {
                return Ok(Acquired::Won { token: Token::new(term, 0), former });
            }
        }
        Err(restless(&request.name))
    }

    /// Creates a key that was never held.
    async fn create(&self, name: &LeaseName) -> Result<Outcome, StoreError> {
        let value = Body::never_held().encode();
        self.api.transact(Lane::Other, name, &[Op::Set { value: &value, at: 0 }]).await
    }

    /// Writes the record of a new tenure, locked by a session or not.
    async fn take(
        &self,
        write: &Acquisition<'_>,
        session: Option<&str>,
    ) -> Result<Outcome, StoreError> {
        let Acquisition { request, term, replaced, seen, former } = *write;
        let note = match (&request.note, former) {
            (Some(note), _) => note.clone(),
            (None, Some(former)) => former.note.clone(),
            (None, None) => Vec::new(),
        };
        let value = Body::new(request, term, session.map(str::to_owned), note).encode();
        let mut ops = vec![Op::IsAt(replaced)];
        let former = &seen.entry.session;
        if !former.is_empty() {
            ops.push(Op::Unlock { value: &value, session: former });
        }
        match session {
            Some(session) => ops.push(Op::Lock { value: &value, session }),
            None if former.is_empty() => ops.push(Op::Set { value: &value, at: replaced }),
            // It was unlocked with the new value.
            None => {}
        }
        self.api.transact(Lane::Other, &request.name, &ops).await
    }

    async fn try_renew(&self, request: &Renew) -> Result<Renewed, StoreError> {
        check_note(request.note.as_deref())?;
        let Renew { name, claim, token, nonce, ttl, .. } = request;
        let mut lane = Lane::of_renewal(request.fresh_connection);
        for attempt in 0..ATTEMPTS {
            let seen = self.look(lane, name).await?;
            lane = lane.go_on();
            let mut known = request.known.clone();
            if attempt > 0 {
                known.push(*nonce);
            }
            let Some((body, holder)) = seen.held_by(*claim, &known) else {
                return Ok(Renewed::Refused(seen.record()));
            };
            if *token != Token::new(body.line.term, 0) {
                return Ok(Renewed::Refused(seen.record()));
            }
            if !seen.lock_stands(holder) {
                return Ok(Renewed::Refused(unlocked(&seen)));
            }
            let mut next = body.clone();
            let lock = holder.lock.as_deref();
            // A session keeps the ttl that it was created with.
            let keeps = *ttl <= body.line.ttl();
            next.line.set_ttl(*ttl);
            if let Some(holder) = &mut next.line.holder {
                holder.nonce = *nonce;
                holder.lock = holder.lock.take().filter(|_| keeps);
            }
            if let Some(note) = &request.note {
                next.note = note.clone();
            }
            let (value, at) = (next.encode(), seen.entry.modify_index);
            let outcome = match lock {
                None => self.api.transact(lane, name, &[Op::Set { value: &value, at }]).await?,
                Some(session) if !keeps => {
                    let ops = [Op::IsAt(at), Op::Unlock { value: &value, session }];
                    self.api.transact(lane, name, &ops).await?
                }
                Some(session) => {
                    let ops = [Op::IsAt(at), Op::Lock { value: &value, session }];
                    let (outcome, lives) = tokio::join!(
                        self.api.transact(lane, name, &ops),
                        self.api.renew_session(lane, session)
                    );
                    // The record is what counts; but if the session is gone, it will show that.
                    if lives? { outcome? } else { Outcome::Conflict }
                }
            };
            if let Outcome::Done(_) = outcome {
                return Ok(Renewed::Yes);
            }
        }
        Err(restless(name))
    }

    async fn try_release(&self, request: &Release) -> Result<Released, StoreError> {
        let Release { name, claim, known } = request;
        for _ in 0..ATTEMPTS {
            let seen = self.look(Lane::Renewal, name).await?;
            let Some((body, holder)) = seen.held_by(*claim, known) else {
                return Ok(Released::Refused);
            };
            let mut next = body.clone();
            next.line.holder = None;
            let (value, at) = (next.encode(), seen.entry.modify_index);
            let session = Some(&seen.entry.session).filter(|session| !session.is_empty());
            let ops = match session {
                Some(session) => vec![Op::IsAt(at), Op::Unlock { value: &value, session }],
                None => vec![Op::Set { value: &value, at }],
            };
            if let Outcome::Done(_) = self.api.transact(Lane::Renewal, name, &ops).await? {
                // After the key was unlocked, so that no lock-delay follows.
                if let Some(session) = &holder.lock {
                    driver::destroy(&self.api, session.clone());
                }
                return Ok(Released::Yes);
            }
        }
        Err(restless(name))
    }

    async fn read_all(&self, names: Vec<LeaseName>) -> Result<Vec<Option<Record>>, StoreError> {
        let mut found = HashMap::new();
        if names.len() <= BATCH * BATCHES_MAX {
            // One after the other, and not on tasks of their own: whoever gives up must be known to
            // have done so before the next request.
            for some in names.chunks(BATCH) {
                found.extend(self.api.read_batch(some).await?);
            }
        } else {
            found.extend(self.api.get_all(crate::common_stem(&names)).await?);
        }
        let mut records = Vec::with_capacity(names.len());
        for name in &names {
            // Cloned, because a name may be asked for twice.
            let entry = found.get(name.as_str()).cloned().unwrap_or_default();
            records.push(self.understand(Seen::new(name, entry)?).await?.record());
        }
        Ok(records)
    }
}

/// A new tenure on its way into the record.
#[derive(Clone, Copy)]
struct Acquisition<'a> {
    request: &'a Acquire,
    term: u64,
    /// The index of the write that it replaces.
    replaced: u64,
    seen: &'a Seen,
    former: &'a Option<Record>,
}

impl Backend for ConsulStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "consul",
            promise: Promise::Safe,
            ttl_min: Duration::from_secs(10),
            ttl_max: Duration::from_secs(24 * 3600),
            ttl_step: Duration::from_millis(1),
            // Its sessions last for two, but nobody waits for them; see the module.
            frees_after_ttls: 1,
            pushes: true,
            pushes_renewals: true,
            reads_everything: true,
        }
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        Box::pin(async move {
            let mut session = None;
            let answer = self.try_acquire(&request, &mut session).await;
            // After an error the claim may have won, and the session be its lock.
            if let (Ok(Acquired::Lost(_)), Some(session)) = (&answer, session) {
                driver::destroy(&self.api, session);
            }
            answer
        })
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
        Some(Box::pin(async {
            // What is not the name of a lease was put there by somebody else.
            let names = self.api.names().await?;
            let names: BTreeSet<_> =
                names.iter().filter_map(|it| LeaseName::new(it).ok()).collect();
            Ok(names.into_iter().take(LIST_MAX).collect())
        }))
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        Some(self.watches.watch(name))
    }
}

/// The record of a holder whose lock is gone. If its session was ended, nobody holds it now;
/// otherwise somebody wrote the key, and its nonce proves nothing.
fn unlocked(seen: &Seen) -> Option<Record> {
    let mut record = seen.record()?;
    if seen.entry.session.is_empty() {
        record.holder = None;
    } else if let Some(holder) = &mut record.holder {
        holder.nonce = None;
    }
    Some(record)
}

fn restless(name: &LeaseName) -> StoreError {
    StoreError::unavailable(format!("the record of {name} changes faster than it can be written"))
}

/// So often a change is attempted on a record that others change at the same time.
const ATTEMPTS: usize = 4;
/// So many transactions read names; more names are read in one request, which returns all below the
/// prefix that begin as they do.
const BATCHES_MAX: usize = 8;
