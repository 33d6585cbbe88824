//! The steps of the protocol: look, judge, and one transaction that holds only if nothing changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tenure_lease::backend::{
    Acquire, Acquired, Release, Released, Renew, Renewed, StoreError, StoreErrorKind,
};
use tenure_lease::record::{Expiry, Record};
use tenure_lease::{LeaseName, Nonce, Token, check_note};

use super::client::{Client, Lasts};
use super::content::{Kept, Keys, Sight, Verdict, lease_of, millis};
use super::watch::EtcdWatch;
use super::wire::{Txn, delete, nested, put, range, unchanged};
use super::{TTL_MAX, TTL_MIN};

pub(super) struct Steps {
    client: Arc<Client>,
    prefix: String,
    /// What was last written of each tenure on an etcd lease, by claim, until it is released.
    written: Mutex<HashMap<Nonce, Written>>,
}

/// Both keys as they were last written, so that a release need not look first.
struct Written {
    nonce: Nonce,
    live: i64,
    kept: i64,
    value: Kept,
}

impl Steps {
    pub(super) fn new(client: Client, prefix: String) -> Self {
        Self { client: Arc::new(client), prefix, written: Mutex::default() }
    }

    pub(super) fn watch(&self, name: &LeaseName) -> EtcdWatch {
        EtcdWatch::new(Arc::clone(&self.client), self.keys(name).live)
    }

    pub(super) async fn acquire(&self, request: Acquire) -> Result<Acquired, StoreError> {
        check_note(request.note.as_deref())?;
        check_ttl(request.ttl)?;
        let keys = self.keys(&request.name);
        let sight = self.look(&keys).await?;
        let former = self.judge(&sight, true).await?;
        if !request.allowed_by(former.as_ref(), former.as_ref().is_some_and(is_expired)) {
            return Ok(Acquired::Lost(former));
        }
        let plan = sight.plan(&request, former.as_ref())?;
        let expires = request.session.is_none();
        let lease = if expires { lease_of(request.claim) } else { 0 };
        if expires {
            self.client.grant(lease, request.ttl).await?;
        }
        let txn = self
            .client
            .write(
                conditions(&keys, &sight),
                vec![put(&keys.live, &plan.live, lease), put(&keys.kept, &plan.kept, 0)],
                ranges(&keys),
            )
            .await?;
        if txn.succeeded {
            let revision = txn.header.revision;
            let term = plan.term(revision);
            if expires {
                let value = Kept { term: Some(term), ..plan.kept };
                let (nonce, live, kept) = (request.claim, revision, revision);
                let written = Written { nonce, live, kept, value };
                self.written().insert(request.claim, written);
            }
            return Ok(Acquired::Won { token: Token::new(term, 0), former });
        }
        let sight = sight_of(txn)?;
        // Unless a copy of this very request won.
        if expires && !sight.is_of(request.claim) {
            self.client.revoke_aside(lease);
        }
        Ok(Acquired::Lost(self.judge(&sight, true).await?))
    }

    pub(super) async fn renew(&self, request: Renew) -> Result<Renewed, StoreError> {
        check_note(request.note.as_deref())?;
        check_ttl(request.ttl)?;
        let keys = self.keys(&request.name);
        let kept_alive = self.client.keep_alive(lease_of(request.claim));
        let (sight, kept_alive) = tokio::join!(self.look(&keys), kept_alive);
        let sight = sight?;
        let tenure = sight.tenure(request.claim, &request.known);
        let Some(tenure) = tenure.filter(|tenure| Token::new(tenure.term, 0) == request.token)
        else {
            return self.refuse(&request, &sight).await;
        };
        let mut live = tenure.value.clone();
        if tenure.lease().is_some() && live.ttl_ms < millis(request.ttl) {
            return Err(StoreError::new(
                StoreErrorKind::Unsuitable,
                "an etcd lease keeps the ttl that it was granted with; acquire it anew to lengthen \
                 it",
            ));
        }
        (live.nonce, live.ttl_ms) = (request.nonce, millis(request.ttl));
        let lease = tenure.lease();
        let mut writes = vec![put(&keys.live, &live, lease.unwrap_or(0))];
        let mut kept = tenure.kept();
        if let Some(note) = &request.note {
            kept.note = super::wire::encode(note);
            writes.push(put(&keys.kept, &kept, 0));
        }
        let raft_term = match lease {
            None => None,
            Some(_) => match kept_alive? {
                Lasts { seconds: None, .. } => return self.look_again(&request, &keys).await,
                Lasts { seconds: Some(seconds), .. } if seconds < request.ttl.as_secs() => {
                    return Err(StoreError::unavailable(format!(
                        "etcd: the lease was prolonged by {seconds} s, not by {:?}",
                        request.ttl
                    )));
                }
                Lasts { raft_term, .. } => Some(raft_term),
            },
        };
        let txn = match self.client.write(conditions(&keys, &sight), writes, ranges(&keys)).await {
            Ok(txn) => txn,
            Err(failure) if failure.is_no_lease() => return self.look_again(&request, &keys).await,
            Err(failure) => return Err(failure.into()),
        };
        if !txn.succeeded {
            return self.changed(&request, &sight_of(txn)?).await;
        }
        if raft_term.is_some_and(|term| term != txn.header.raft_term) {
            return Err(StoreError::unavailable("etcd: it changed its leader during a renewal"));
        }
        // Not if it has been released meanwhile.
        if let Some(written) = self.written().get_mut(&request.claim) {
            let live = txn.header.revision;
            let seen = sight.kept.as_ref().map_or(0, |kept| kept.mod_revision);
            let noted = if request.note.is_some() { live } else { seen };
            *written = Written { nonce: request.nonce, live, kept: noted, value: kept };
        }
        Ok(Renewed::Yes)
    }

    /// The etcd lease is said to be gone; then so is the key, or the member that said so lags.
    async fn look_again(&self, request: &Renew, keys: &Keys) -> Result<Renewed, StoreError> {
        let sight = self.look(keys).await?;
        self.changed(request, &sight).await
    }

    /// The record changed under a renewal. It may have been an earlier one of the same holder.
    async fn changed(&self, request: &Renew, sight: &Sight) -> Result<Renewed, StoreError> {
        let mut known = request.known.clone();
        known.push(request.nonce);
        match sight.tenure(request.claim, &known) {
            Some(tenure) if tenure.term == request.token.term => Err(StoreError::unavailable(
                "etcd: the record changed while it was being renewed, and is still ours",
            )),
            _ => self.refuse(request, sight).await,
        }
    }

    async fn refuse(&self, request: &Renew, sight: &Sight) -> Result<Renewed, StoreError> {
        let kept = sight.kept.as_ref().map(|kept| &kept.value);
        if sight.live.is_none() && kept.is_some_and(|kept| kept.held && kept.claim == request.claim)
        {
            // Nobody took it, nobody released it: the key was deleted, or its lease revoked.
            return Ok(Renewed::Refused(None));
        }
        Ok(Renewed::Refused(self.judge(sight, false).await?))
    }

    pub(super) async fn release(&self, request: Release) -> Result<Released, StoreError> {
        let keys = self.keys(&request.name);
        let written = self.written().remove(&request.claim);
        let sight = match written.filter(|written| request.known.contains(&written.nonce)) {
            None => self.look(&keys).await?,
            Some(Written { live, kept, value, .. }) => {
                let since = [unchanged(&keys.live, live), unchanged(&keys.kept, kept)];
                let txn = self.let_go(&keys, since.into(), value).await?;
                if txn.succeeded {
                    self.client.revoke_aside(lease_of(request.claim));
                    return Ok(Released::Yes);
                }
                sight_of(txn)?
            }
        };
        let Some(tenure) = sight.tenure(request.claim, &request.known) else {
            if !sight.is_of(request.claim) {
                // If the acquisition is still on its way, it shall not find its lease.
                self.client.revoke_aside(lease_of(request.claim));
            }
            return Ok(Released::Refused);
        };
        let txn = self.let_go(&keys, conditions(&keys, &sight), tenure.kept()).await?;
        if txn.succeeded {
            if let Some(lease) = tenure.lease() {
                self.client.revoke_aside(lease);
            }
            return Ok(Released::Yes);
        }
        if sight_of(txn)?.tenure(request.claim, &request.known).is_some() {
            return Err(StoreError::unavailable(
                "etcd: the record changed while it was being released, and is still ours",
            ));
        }
        Ok(Released::Refused)
    }

    /// Frees the lease if the conditions hold; says what is there if they do not.
    async fn let_go(
        &self,
        keys: &Keys,
        conditions: Vec<Value>,
        kept: Kept,
    ) -> Result<Txn, StoreError> {
        let kept = Kept { held: false, ..kept };
        let writes = vec![delete(&keys.live), put(&keys.kept, &kept, 0)];
        Ok(self.client.write(conditions, writes, ranges(keys)).await?)
    }

    fn written(&self) -> MutexGuard<'_, HashMap<Nonce, Written>> {
        // Nothing here is half done, whoever panics.
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn read(
        &self,
        names: Vec<LeaseName>,
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let exact = names.len() <= EXACT_MAX;
        let mut records = Vec::with_capacity(names.len());
        for batch in names.chunks(BATCH) {
            // A transaction takes 128 operations; nested ones count by themselves.
            let ops = batch.chunks(NEST).map(|names| {
                nested(names.iter().flat_map(|name| ranges(&self.keys(name))).collect())
            });
            let txn = self.client.read(ops.collect()).await?;
            let revision = txn.header.revision;
            let mut found = txn.kvs().into_iter();
            for _ in batch {
                let (Some(live), Some(kept)) = (found.next(), found.next()) else {
                    return Err(odd());
                };
                let sight = Sight::new(revision, live, kept)?;
                records.push(self.judge(&sight, exact).await?);
            }
        }
        Ok(records)
    }

    fn keys(&self, name: &LeaseName) -> Keys {
        Keys::new(&self.prefix, name)
    }

    async fn look(&self, keys: &Keys) -> Result<Sight, StoreError> {
        sight_of(self.client.read(ranges(keys)).await?)
    }

    /// What the keys amount to. `exact`: ask etcd how long a held one will last; otherwise the
    /// answer is the longest that it can be.
    async fn judge(&self, sight: &Sight, exact: bool) -> Result<Option<Record>, StoreError> {
        match sight.verdict() {
            Verdict::Absent => Ok(None),
            Verdict::There(record) => Ok(Some(record)),
            Verdict::Gone(lease, record) => {
                let lasts = self.client.time_to_live(lease).await?;
                if lasts.seconds.is_some() {
                    return Ok(None);
                }
                // Its word is good only if the leader that gave it leads. (A majority answers for a
                // read of any key.)
                let now = self.client.read(vec![range(&format!("{}/", self.prefix))]).await?;
                if now.header.raft_term != lasts.raft_term {
                    return Err(StoreError::unavailable("etcd: it is changing its leader"));
                }
                Ok(Some(record))
            }
            Verdict::OnLease(lease, record) => {
                let ours = record.holder.as_ref().is_some_and(|holder| holder.claim.is_some());
                let most = if ours { record.ttl } else { Duration::MAX };
                let remaining = match exact {
                    false => record.ttl,
                    true => match self.client.time_to_live(lease).await?.seconds {
                        // etcd rounds down.
                        Some(seconds) => Duration::from_secs(seconds + 1).min(most),
                        // Its time is over, and it is about to be revoked. Not free before: a new
                        // leader of the cluster would give it a whole ttl again.
                        None => SWEEP,
                    },
                };
                Ok(Some(Record { expiry: Expiry::ByStore(remaining), ..record }))
            }
        }
    }
}

/// Nothing has changed since it was seen. (A key that did not exist still does not.)
fn conditions(keys: &Keys, sight: &Sight) -> Vec<Value> {
    vec![
        unchanged(&keys.live, sight.live.as_ref().map_or(0, |live| live.mod_revision)),
        unchanged(&keys.kept, sight.kept.as_ref().map_or(0, |kept| kept.mod_revision)),
    ]
}

fn ranges(keys: &Keys) -> Vec<Value> {
    vec![range(&keys.live), range(&keys.kept)]
}

fn sight_of(txn: Txn) -> Result<Sight, StoreError> {
    let revision = txn.header.revision;
    let [live, kept] = <[_; 2]>::try_from(txn.kvs()).map_err(|_| odd())?;
    Sight::new(revision, live, kept)
}

/// Whether etcd itself has ended the tenure.
fn is_expired(record: &Record) -> bool {
    record.holder.is_some() && record.expiry == Expiry::ByStore(Duration::ZERO)
}

fn check_ttl(ttl: Duration) -> Result<(), StoreError> {
    if ttl < TTL_MIN || ttl > TTL_MAX || ttl.subsec_nanos() != 0 {
        return Err(StoreError::new(
            StoreErrorKind::Unsuitable,
            format!("an etcd store keeps whole seconds from {TTL_MIN:?} on, not {ttl:?}"),
        ));
    }
    Ok(())
}

fn odd() -> StoreError {
    StoreError::unavailable("etcd: its answer has not as many parts as the question")
}

/// Names in one request, and in one nested transaction of it.
const BATCH: usize = 1024;
const NEST: usize = 32;
/// Up to so many records are asked for with how long they last.
const EXACT_MAX: usize = 4;
/// etcd looks for expired leases that often.
const SWEEP: Duration = Duration::from_millis(500);
