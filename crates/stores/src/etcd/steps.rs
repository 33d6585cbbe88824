//! The steps of the protocol: look, judge, and one transaction that holds only if nothing changed.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tenure_lease::backend::{
    Acquire, Acquired, LIST_MAX, Release, Released, Renew, Renewed, StoreError, StoreErrorKind,
};
use tenure_lease::record::Record;
use tenure_lease::{LeaseName, Nonce, Token, check_note};

use super::client::{Client, Route, Sender};
use super::content::{Keys, Live, Sight, lease_of_key, millis};
use super::messages::{Compare, RangeRequest, TxnRequest, TxnResponse};
use super::watch::{EtcdWatch, Watches};
use super::{TTL_MAX, TTL_MIN};

pub(super) struct Steps {
    client: Arc<Client>,
    watches: Arc<Watches>,
    prefix: String,
    /// The tenures that this process has won and that renew themselves, by claim, until they are
    /// released or a renewal is refused.
    tenures: Mutex<HashMap<Nonce, Written>>,
}

/// Both keys as this process last wrote them, so that a renewal or a release need not look first.
#[derive(Clone)]
struct Written {
    token: Token,
    nonce: Nonce,
    ttl_ms: u64,
    live_revision: i64,
    kept_revision: i64,
    /// See [`Sender::sent_on`].
    sent_on: Arc<AtomicU64>,
}

impl Steps {
    pub(super) fn new(client: Client, prefix: String) -> Self {
        let client = Arc::new(client);
        let watches = Arc::new(Watches::new(Arc::clone(&client)));
        Self { client, watches, prefix, tenures: Mutex::default() }
    }

    pub(super) fn watch(&self, name: &LeaseName) -> EtcdWatch {
        EtcdWatch::new(Arc::clone(&self.watches), self.keys(name))
    }

    pub(super) async fn acquire(&self, request: Acquire) -> Result<Acquired, StoreError> {
        check_note(request.note.as_deref())?;
        check_ttl(request.ttl)?;
        let keys = self.keys(&request.name);
        let sight = self.look(Route::Asking, &keys).await?;
        let former = sight.record();
        if !request.allowed_by(former.as_ref(), false) {
            return Ok(Acquired::Lost(former));
        }
        let plan = sight.plan(&request)?;
        let txn = TxnRequest {
            compare: sight.conditions(&keys),
            success: vec![plan.live.put(&keys), plan.kept.put(&keys)],
            failure: vec![keys.range().into()],
        };
        let txn = self.client.write(Route::Asking, txn).await?;
        if !txn.succeeded {
            return Ok(Acquired::Lost(sight_of(&keys, txn)?.record()));
        }
        let revision = txn.revision();
        let token = Token::new(plan.term(revision), 0);
        if request.session.is_none() {
            let written = Written {
                token,
                nonce: request.claim,
                ttl_ms: plan.kept.ttl_ms,
                live_revision: revision,
                kept_revision: revision,
                sent_on: Arc::default(),
            };
            self.tenures().insert(request.claim, written);
        }
        Ok(Acquired::Won { token, former })
    }

    pub(super) async fn renew(&self, request: Renew) -> Result<Renewed, StoreError> {
        check_note(request.note.as_deref())?;
        check_ttl(request.ttl)?;
        let renewed = self.renew_tenure(&request).await;
        if matches!(renewed, Ok(Renewed::Refused(_))) {
            self.tenures().remove(&request.claim);
        }
        renewed
    }

    async fn renew_tenure(&self, request: &Renew) -> Result<Renewed, StoreError> {
        let keys = self.keys(&request.name);
        let written = self.tenures().get(&request.claim).cloned();
        let sent_on = written.as_ref().map(|written| Arc::clone(&written.sent_on));
        let sent_on = sent_on.unwrap_or_else(|| Arc::new(AtomicU64::new(u64::MAX)));
        let first = Route::Holding(Sender { sent_on: &sent_on, fresh: request.fresh_connection });
        let live = Live::Held { nonce: request.nonce, ttl_ms: millis(request.ttl) };
        let as_written = |written: &Written| {
            request.known.contains(&written.nonce)
                && written.token == request.token
                && written.ttl_ms == millis(request.ttl)
                && request.note.is_none()
        };
        let sight = match written.filter(as_written) {
            None => self.look(first, &keys).await?,
            Some(written) => {
                let txn = TxnRequest {
                    compare: written.conditions(&keys),
                    success: vec![live.put(&keys)],
                    failure: vec![keys.range().into()],
                };
                let txn = self.client.write(first, txn).await?;
                if txn.succeeded {
                    self.renewed(request, txn.revision(), written.kept_revision);
                    return Ok(Renewed::Yes);
                }
                // An earlier renewal without an answer may have been done; or it is lost.
                sight_of(&keys, txn)?
            }
        };
        let tenure = sight.tenure(request.claim, &request.known);
        let Some(tenure) = tenure.filter(|tenure| tenure.token == request.token) else {
            return refuse(request, &sight);
        };
        let mut success = vec![live.put(&keys)];
        let (_, mut kept_revision) = sight.revisions();
        let rewrites_kept = request.note.is_some() || tenure.kept.ttl_ms != millis(request.ttl);
        if rewrites_kept {
            let mut kept = tenure.kept.clone();
            kept.ttl_ms = millis(request.ttl);
            if let Some(note) = &request.note {
                kept.set_note(note);
            }
            success.push(kept.put(&keys));
        }
        let (compare, failure) = (sight.conditions(&keys), vec![keys.range().into()]);
        let again = Route::Holding(Sender { sent_on: &sent_on, fresh: false });
        let txn = self.client.write(again, TxnRequest { compare, success, failure }).await?;
        if !txn.succeeded {
            let sight = sight_of(&keys, txn)?;
            let mut known = request.known.clone();
            known.push(request.nonce);
            return match sight.tenure(request.claim, &known) {
                Some(tenure) if tenure.token == request.token => Err(StoreError::unavailable(
                    "etcd: the record changed while it was being renewed, and is still ours",
                )),
                _ => refuse(request, &sight),
            };
        }
        if rewrites_kept {
            kept_revision = txn.revision();
        }
        self.renewed(request, txn.revision(), kept_revision);
        Ok(Renewed::Yes)
    }

    /// Remembers what a renewal wrote, unless a later one has been answered first, or the tenure
    /// has been released meanwhile.
    fn renewed(&self, request: &Renew, live_revision: i64, kept_revision: i64) {
        if let Some(written) = self.tenures().get_mut(&request.claim)
            && written.live_revision < live_revision
        {
            written.nonce = request.nonce;
            written.ttl_ms = millis(request.ttl);
            (written.live_revision, written.kept_revision) = (live_revision, kept_revision);
        }
    }

    pub(super) async fn release(&self, request: Release) -> Result<Released, StoreError> {
        let keys = self.keys(&request.name);
        let written = self.tenures().remove(&request.claim);
        let sent_on = written.as_ref().map(|written| Arc::clone(&written.sent_on));
        let sent_on = sent_on.unwrap_or_default();
        let route = Route::Holding(Sender { sent_on: &sent_on, fresh: false });
        let sight = match written.filter(|written| request.known.contains(&written.nonce)) {
            None => self.look(route, &keys).await?,
            Some(written) => {
                let txn = self.free(route, &keys, written.conditions(&keys)).await?;
                if txn.succeeded {
                    return Ok(Released::Yes);
                }
                sight_of(&keys, txn)?
            }
        };
        if sight.tenure(request.claim, &request.known).is_none() {
            return Ok(Released::Refused);
        }
        let txn = self.free(route, &keys, sight.conditions(&keys)).await?;
        if txn.succeeded {
            return Ok(Released::Yes);
        }
        if sight_of(&keys, txn)?.tenure(request.claim, &request.known).is_some() {
            return Err(StoreError::unavailable(
                "etcd: the record changed while it was being released, and is still ours",
            ));
        }
        Ok(Released::Refused)
    }

    /// Frees the lease if the conditions hold; says what is there if they do not.
    async fn free(
        &self,
        route: Route<'_>,
        keys: &Keys,
        compare: Vec<Compare>,
    ) -> Result<TxnResponse, StoreError> {
        let (success, failure) = (vec![Live::Released.put(keys)], vec![keys.range().into()]);
        Ok(self.client.write(route, TxnRequest { compare, success, failure }).await?)
    }

    pub(super) async fn read(
        &self,
        names: Vec<LeaseName>,
    ) -> Result<Vec<Option<Record>>, StoreError> {
        if let [name] = &*names {
            return Ok(vec![self.look(Route::Asking, &self.keys(name)).await?.record()]);
        }
        let batches = names.chunks(RANGES_MAX).map(|names| self.read_batch(names));
        // Boxed, or the compiler cannot prove that the future may move to another thread.
        let batches: Vec<_> = batches.map(Box::pin).collect();
        let records = stream::iter(batches).buffered(BATCHES_AT_ONCE);
        let records: Vec<Vec<_>> = records.try_collect().await?;
        Ok(records.into_iter().flatten().collect())
    }

    async fn read_batch(&self, names: &[LeaseName]) -> Result<Vec<Option<Record>>, StoreError> {
        let keys: Vec<_> = names.iter().map(|name| self.keys(name)).collect();
        let txn = self.client.ranges(keys.iter().map(Keys::range).collect()).await?;
        let revision = txn.revision();
        let mut found = txn.ranges();
        let record = |keys| {
            let kvs = found.next().ok_or_else(incomplete)?;
            Ok(Sight::new(keys, revision, kvs)?.record())
        };
        keys.iter().map(record).collect()
    }

    pub(super) async fn list(&self) -> Result<Vec<LeaseName>, StoreError> {
        let range = RangeRequest {
            key: format!("{}/", self.prefix).into(),
            range_end: format!("{}0", self.prefix).into(),
            // Two keys each.
            limit: 2 * LIST_MAX as i64,
            keys_only: true,
        };
        let found = self.client.range(Route::Asking, range).await?.kvs;
        let mut names: Vec<_> =
            found.iter().filter_map(|kv| lease_of_key(&self.prefix, &kv.key)).collect();
        names.sort();
        names.dedup();
        names.truncate(LIST_MAX);
        Ok(names)
    }

    fn keys(&self, name: &LeaseName) -> Keys {
        Keys::new(&self.prefix, name)
    }

    async fn look(&self, route: Route<'_>, keys: &Keys) -> Result<Sight, StoreError> {
        let found = self.client.range(route, keys.range()).await?;
        Sight::new(keys, found.header.map_or(0, |header| header.revision), found.kvs)
    }

    fn tenures(&self) -> MutexGuard<'_, HashMap<Nonce, Written>> {
        // Nothing here is half done, whoever panics.
        self.tenures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Written {
    /// Nothing has changed since this process wrote it.
    fn conditions(&self, keys: &Keys) -> Vec<Compare> {
        vec![
            Compare::unchanged(&keys.live, self.live_revision),
            Compare::unchanged(&keys.kept, self.kept_revision),
        ]
    }
}

fn refuse(request: &Renew, sight: &Sight) -> Result<Renewed, StoreError> {
    let deleted = sight.is_deleted(request.claim);
    Ok(Renewed::Refused(if deleted { None } else { sight.record() }))
}

fn sight_of(keys: &Keys, txn: TxnResponse) -> Result<Sight, StoreError> {
    let revision = txn.revision();
    Sight::new(keys, revision, txn.ranges().next().ok_or_else(incomplete)?)
}

fn check_ttl(ttl: Duration) -> Result<(), StoreError> {
    if ttl < TTL_MIN || ttl > TTL_MAX || !ttl.as_nanos().is_multiple_of(1_000_000) {
        return Err(StoreError::new(
            StoreErrorKind::Unsuitable,
            format!("an etcd store keeps whole milliseconds from {TTL_MIN:?} on, not {ttl:?}"),
        ));
    }
    Ok(())
}

fn incomplete() -> StoreError {
    StoreError::unavailable("etcd: its answer has not as many parts as the question")
}

/// Ranges in one transaction; etcd takes 128 operations.
const RANGES_MAX: usize = 100;
const BATCHES_AT_ONCE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::address::Address;
    use tenure_lease::Owner;
    use tenure_lease::record::SessionRef;

    fn steps(url: &str) -> Steps {
        let (client, prefix) = Client::new(Address::parse(url).unwrap()).unwrap();
        Steps::new(client, prefix)
    }

    fn name() -> LeaseName {
        LeaseName::new(&format!("steps-{}", Nonce::random())).unwrap()
    }

    fn renew(name: &LeaseName, claim: Nonce, token: Token) -> Renew {
        Renew {
            name: name.clone(),
            claim,
            token,
            known: vec![claim],
            nonce: Nonce::random(),
            ttl: Duration::from_secs(15),
            note: None,
            fresh_connection: false,
        }
    }

    #[test]
    fn a_late_answer_does_not_undo_a_later_renewal() {
        // Nothing listens there, and nothing is sent.
        let (steps, claim) = (steps("etcd://127.0.0.1:1"), Nonce::from_bits(1));
        let token = Token::new(7, 0);
        let written = Written {
            token,
            nonce: claim,
            ttl_ms: 15_000,
            live_revision: 7,
            kept_revision: 7,
            sent_on: Arc::default(),
        };
        steps.tenures().insert(claim, written);
        let [earlier, later] = [(); 2].map(|()| renew(&name(), claim, token));
        steps.renewed(&later, 9, 7);
        steps.renewed(&earlier, 8, 7);
        assert_eq!(steps.tenures()[&claim].nonce, later.nonce);
        steps.tenures().clear();
        steps.renewed(&later, 10, 7);
        assert!(steps.tenures().is_empty(), "it was released meanwhile");
    }

    /// On a real etcd: nothing is remembered of a tenure that was released or lost.
    #[tokio::test]
    async fn ended_tenures_are_forgotten() {
        let Ok(address) = std::env::var("TENURE_TEST_ETCD") else {
            eprintln!("skipped: TENURE_TEST_ETCD is not set; scripts/servers starts etcd");
            return;
        };
        let steps = steps(&format!("etcd://{address}/tests/steps"));
        for released in [true, false] {
            let (name, claim) = (name(), Nonce::random());
            let request = Acquire {
                name: name.clone(),
                claim,
                owner: Owner::named("a"),
                ttl: Duration::from_secs(15),
                session: None,
                note: None,
                create: true,
                takeover: None,
                expected: None,
                above: 0,
                unattended: false,
            };
            let won = steps.acquire(request.clone()).await.unwrap();
            let Acquired::Won { token, .. } = won else { panic!("{won:?}") };
            assert_eq!(steps.tenures().len(), 1);
            if released {
                let known = vec![claim];
                steps.release(Release { name, claim, known }).await.unwrap();
            } else {
                let record = steps.read(vec![name.clone()]).await.unwrap().remove(0).unwrap();
                let thief = Acquire {
                    claim: Nonce::random(),
                    session: Some(SessionRef { name: name.clone(), term: 1 }),
                    takeover: Some(record.version),
                    ..request
                };
                steps.acquire(thief).await.unwrap();
                let refused = steps.renew(renew(&name, claim, token)).await;
                assert!(matches!(refused, Ok(Renewed::Refused(Some(_)))), "{refused:?}");
            }
            assert!(steps.tenures().is_empty());
        }
    }
}
