//! The steps of the protocol: look, judge, and one transaction that holds only if nothing changed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tenure_lease::backend::{
    Acquire, Acquired, Release, Released, Renew, Renewed, StoreError, StoreErrorKind,
};
use tenure_lease::record::{Expiry, Record};
use tenure_lease::{LeaseName, Token, check_note};

use super::client::{Client, Lasts};
use super::content::{Keys, Sight, Verdict, lease_of, millis};
use super::wire::{Txn, delete, nested, put, range, unchanged};
use super::{TTL_MAX, TTL_MIN};

pub(super) struct Steps {
    pub(super) client: Arc<Client>,
    pub(super) prefix: String,
}

impl Steps {
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
            let token = Token::new(plan.term(txn.header.revision), 0);
            return Ok(Acquired::Won { token, former });
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
        if let Some(note) = &request.note {
            let note = super::wire::encode(note);
            let kept = super::content::Kept { note, ..tenure.kept() };
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
        let sight = self.look(&keys).await?;
        let Some(tenure) = sight.tenure(request.claim, &request.known) else {
            if !sight.is_of(request.claim) {
                // If the acquisition is still on its way, it shall not find its lease.
                self.client.revoke_aside(lease_of(request.claim));
            }
            return Ok(Released::Refused);
        };
        let kept = super::content::Kept { held: false, ..tenure.kept() };
        let txn = self
            .client
            .write(
                conditions(&keys, &sight),
                vec![delete(&keys.live), put(&keys.kept, &kept, 0)],
                ranges(&keys),
            )
            .await?;
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
