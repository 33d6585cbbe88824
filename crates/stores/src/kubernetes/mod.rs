//! Leases in Kubernetes: `k8s://NAMESPACE`.
//!
//! A lease is a `coordination.k8s.io/v1` Lease, the object that client-go, controller-runtime and
//! Kubernetes' own components elect their leaders with. They can contend for the *same* object:
//! what they read is written as they write it, and what they write is respected.
//!
//! # The protocol
//!
//! * **Every write is a replacement** (PUT) that names the `uid` and the `resourceVersion` of what
//!   it replaces, and the server refuses it if either has changed. A patch without one always
//!   succeeds: of 32 at once, 32. A PUT without the `uid` is no better on a Lease that was deleted:
//!   the server creates it anew, whatever `resourceVersion` it names.
//! * **Acquire**: read, decide, replace what was read, and after a conflict from the beginning, a few
//!   times: somebody may have put a label on it, or taken it. A waiter whose watch has told it of the released Lease
//!   replaces that one, unread. An absent Lease is first created *unheld*, which counts as
//!   absent to everybody, and then acquired like any other. So each tenure replaces an object that
//!   has a `resourceVersion`, and the **term** is at least that: a number that only rises, for the
//!   whole cluster, also across deletion. `leaseTransitions` would begin again at 0.
//! * **Renew** replaces what this process itself wrote last, unread: that it is still there is what
//!   the server checks. After a conflict the Lease is read, and judged by what *it* says: claim,
//!   token and nonce of this tenure (somebody has put a label on it) → once more, with that
//!   version; an unanswered renewal of our own → yes; anything else → refused.
//! * **Release** is the same with an empty holder. client-go reads the object afresh and then
//!   blanks it because of what it *remembers*; so a deposed leader of its kind frees its
//!   successor's Lease.
//! * **Expiry** is judged by the contender's own clock: what holders write (our nonce, and the fields
//!   of `spec` that electors know) has not changed for the duration that the object names itself.
//!   Labels do not count. `renewTime` is a mark that differs, and never compared with a clock. A
//!   takeover replaces the `resourceVersion` that was read together with the unchanged mark, so it
//!   can never overwrite a renewal.
//! * **Foreign electors** leave our annotations as they are when they take over. Annotations are
//!   believed only if they name the `holderIdentity` and the `leaseTransitions` that the object
//!   has; the note only if it names the latter.
//!
//! Needs `get`, `create`, `update` and `watch` on `leases`; `list` only to list names on a server that
//! does not tell them by a watch.
//!
//! # Features
//!
//! `kubernetes` is what a program wants that does not otherwise use the crate `k8s-openapi`. That
//! crate insists on exactly one version feature in the whole program; one that has chosen its own
//! takes `kubernetes-unversioned` instead, which leaves the choice to it.

mod client;
mod credentials;
mod object;
mod read;
mod wall;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Promise, Release, Released, Renew, Renewed, StoreError,
    StoreInfo, Watch,
};
use tenure_lease::{LeaseName, Nonce, OpenError, Record, Store, check_note};

use client::{Server, Written};
use credentials::Target;
use object::LeaseObject;
use read::Reader;
use watch::Watches;

use crate::generations::Lane;
use crate::percent;

/// Opens the store of a URL: `k8s://NAMESPACE`, with `?kubeconfig=PATH` and `&context=NAME` if
/// wanted.
///
/// Without a kubeconfig: what `KUBECONFIG` names, `~/.kube/config`, or the service account of the
/// pod. Without a namespace (`k8s://`): the one that the configuration names. Reads the
/// configuration, to say early what is wrong with it; the server is contacted when it is needed.
pub async fn open(url: &str) -> Result<Store, OpenError> {
    let server = Server::new(target(url)?);
    server.check().await?;
    Ok(Store::new(Kubernetes::new(server)))
}

/// Leases in a namespace.
struct Kubernetes {
    server: Arc<Server>,
    reader: Reader,
    watches: Arc<Watches>,
    /// What this process wrote last, of the leases that it holds.
    held: Mutex<BTreeMap<LeaseName, LeaseObject>>,
}

impl Kubernetes {
    fn new(server: Server) -> Self {
        let server = Arc::new(server);
        Self {
            reader: Reader::new(Arc::clone(&server)),
            watches: Watches::new(Arc::clone(&server)),
            server,
            held: Mutex::default(),
        }
    }

    async fn try_acquire(&self, request: &Acquire) -> Result<Acquired, StoreError> {
        check_note(request.note.as_deref())?;
        let mut freed = self.freed(request);
        let mut replaced = None;
        for attempt in 0.. {
            let (seen, former) = match freed.take() {
                Some((freed, former)) => (Some(freed), Some(former)),
                None => {
                    let seen = self.server.get(Lane::Other, &request.name).await?;
                    let former = record_of(seen.as_ref())?;
                    (seen, former)
                }
            };
            match &former {
                // The network has delivered the request twice; the first one won.
                Some(now) if attempt > 0 && now.is_of(request.claim) => {
                    return Ok(Acquired::Won { token: now.token, former: replaced });
                }
                _ if attempt == WRITES_MAX || !request.allowed_by(former.as_ref(), false) => {
                    return Ok(Acquired::Lost(former));
                }
                _ => {}
            }
            let base = match seen {
                Some(object) => object,
                None => {
                    let unheld = LeaseObject::unheld(&request.name);
                    match self.server.create(&unheld, false).await? {
                        Written::Yes(object) => *object,
                        Written::Conflict => continue,
                    }
                }
            };
            let (object, token) = base.acquired(request, former.as_ref(), wall::now())?;
            let written = self.server.replace(Lane::Other, &object, false).await?;
            if let Written::Yes(object) = written {
                self.remember(&request.name, *object);
                return Ok(Acquired::Won { token, former });
            }
            replaced = former;
        }
        unreachable!("the last attempt returns")
    }

    /// The released Lease that a watch has just told of, if it may be taken: then it need not be
    /// read before it is replaced. If it has changed since, the server refuses that.
    fn freed(&self, request: &Acquire) -> Option<(LeaseObject, Record)> {
        let freed = self.watches.take_freed(&request.name)?;
        let former = freed.record().ok().flatten().filter(|former| former.holder.is_none())?;
        request.allowed_by(Some(&former), false).then_some((freed, former))
    }

    async fn try_renew(&self, request: &Renew) -> Result<Renewed, StoreError> {
        check_note(request.note.as_deref())?;
        let is_ours = |record: &Record| {
            record.token == request.token && carries(record, request.claim, &request.known)
        };
        let write = |object: LeaseObject| object.renewed(request, wall::now());
        let lane = Lane::of_renewal(request.fresh_connection);
        let step = self.rewrite(lane, &request.name, is_ours, write, Some(request.nonce)).await?;
        Ok(match step {
            Rewritten::Yes(object) => {
                self.remember(&request.name, *object);
                Renewed::Yes
            }
            Rewritten::Refused(record) => {
                if !record.as_ref().is_some_and(|record| record.is_of(request.claim)) {
                    self.forget(&request.name, request.claim);
                }
                Renewed::Refused(record.map(|record| *record))
            }
        })
    }

    async fn try_release(&self, request: &Release) -> Result<Released, StoreError> {
        let is_ours = |record: &Record| carries(record, request.claim, &request.known);
        let write = |object: LeaseObject| object.released(wall::now());
        // A release writes no nonce by which it could be found.
        let step = self.rewrite(Lane::Renewal, &request.name, is_ours, write, None).await?;
        self.forget(&request.name, request.claim);
        Ok(match step {
            Rewritten::Yes(_) => Released::Yes,
            Rewritten::Refused(_) => Released::Refused,
        })
    }

    /// Replaces a Lease that is ours: first the one that we wrote last; if we remember none, or
    /// after a conflict, the one that is there, if that is ours. `written` is the nonce by which an
    /// own write is known that was applied in spite of a conflict.
    async fn rewrite(
        &self,
        mut lane: Lane,
        name: &LeaseName,
        is_ours: impl Fn(&Record) -> bool,
        write: impl Fn(LeaseObject) -> Result<LeaseObject, StoreError>,
        written: Option<Nonce>,
    ) -> Result<Rewritten, StoreError> {
        let mut remembered = self.held().get(name).cloned();
        if !record_of(remembered.as_ref())?.as_ref().is_some_and(&is_ours) {
            remembered = None;
        }
        for _ in 0..WRITES_MAX {
            let object = match remembered.take() {
                Some(object) => object,
                None => {
                    let read = self.server.get(lane, name).await?;
                    lane = lane.go_on();
                    let Some(object) = read else {
                        return Ok(Rewritten::Refused(None));
                    };
                    match object.record()? {
                        Some(record) if is_ours(&record) => object,
                        Some(record) if written.is_some() && nonce_of(&record) == written => {
                            return Ok(Rewritten::Yes(Box::new(object)));
                        }
                        record => return Ok(Rewritten::Refused(record.map(Box::new))),
                    }
                }
            };
            let replaced = self.server.replace(lane, &write(object)?, false).await?;
            lane = lane.go_on();
            if let Written::Yes(object) = replaced {
                return Ok(Rewritten::Yes(object));
            }
        }
        Err(restless(name))
    }

    /// Asks the server to do everything but to keep it.
    async fn try_dry_run(&self, name: &LeaseName) -> Result<(), StoreError> {
        let unheld = LeaseObject::unheld(name);
        let object = self.server.get(Lane::Other, name).await?;
        record_of(object.as_ref())?;
        // That it exists, or has changed since it was read, is an answer to somebody who may write.
        self.server.create(&unheld, true).await?;
        // A dry-run replacement of an absent Lease would create it, and needs `update` for that.
        let object = object.as_ref().unwrap_or(&unheld);
        self.server.replace(Lane::Other, object, true).await?;
        Ok(())
    }

    /// Remembers what we wrote last: of two answers to renewals that were under way at once, the
    /// later write counts, not the later answer.
    fn remember(&self, name: &LeaseName, object: LeaseObject) {
        let mut held = self.held();
        let is_newer = |former: &LeaseObject| match (former.revision(), object.revision()) {
            (Ok(former_revision), Ok(revision)) => {
                former.metadata.uid != object.metadata.uid || former_revision < revision
            }
            _ => true,
        };
        if held.get(name).is_none_or(is_newer) {
            held.insert(name.clone(), object);
        }
    }

    fn forget(&self, name: &LeaseName, claim: Nonce) {
        let mut held = self.held();
        let is_of = |object: &LeaseObject| {
            record_of(Some(object)).is_ok_and(|record| record.is_some_and(|r| r.is_of(claim)))
        };
        if held.get(name).is_some_and(is_of) {
            held.remove(name);
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<LeaseName, LeaseObject>> {
        // Objects are replaced whole or not at all, so a panic elsewhere leaves them sound.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Rewritten {
    Yes(Box<LeaseObject>),
    Refused(Option<Box<Record>>),
}

impl Backend for Kubernetes {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "kubernetes",
            promise: Promise::Safe,
            ttl_min: Duration::from_secs(1),
            ttl_max: Duration::from_secs(24 * 3600),
            ttl_step: Duration::from_secs(1),
            frees_after_ttls: 1,
            pushes: true,
            pushes_renewals: true,
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
        Box::pin(async move { self.reader.read(&names).await })
    }

    fn list(&self) -> Option<Boxed<'_, Result<Vec<LeaseName>, StoreError>>> {
        Some(Box::pin(self.reader.names()))
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        Some(self.watches.watch(name))
    }

    fn dry_run<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, Result<(), StoreError>>> {
        Some(Box::pin(self.try_dry_run(name)))
    }
}

impl fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubernetes").finish_non_exhaustive()
    }
}

fn record_of(object: Option<&LeaseObject>) -> Result<Option<Record>, StoreError> {
    object.map_or(Ok(None), LeaseObject::record)
}

fn restless(name: &LeaseName) -> StoreError {
    StoreError::unavailable(format!("the Lease {name} changes faster than it can be written"))
}

fn nonce_of(record: &Record) -> Option<Nonce> {
    record.holder.as_ref()?.nonce
}

fn carries(record: &Record, claim: Nonce, known: &[Nonce]) -> bool {
    record.is_of(claim) && nonce_of(record).is_some_and(|nonce| known.contains(&nonce))
}

fn target(url: &str) -> Result<Target, OpenError> {
    let wrong = |why: &str| {
        OpenError::Url(format!(
            "{url:?} is not the URL of a Kubernetes store: {why}; \"k8s://default\" or \
             \"k8s://default?kubeconfig=/etc/kube.yaml&context=prod\" is"
        ))
    };
    let rest = url.strip_prefix("k8s://").ok_or_else(|| wrong("it does not begin with k8s://"))?;
    let (namespace, query) = rest.split_once('?').unwrap_or((rest, ""));
    let namespace = namespace.trim_end_matches('/');
    // A namespace is a DNS label: a lease name without dots, no longer than 63.
    let is_label = LeaseName::new(namespace).is_ok() && !namespace.contains('.');
    if !namespace.is_empty() && (!is_label || namespace.len() > 63) {
        return Err(wrong("the namespace is none"));
    }
    let mut target = Target {
        namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
        ..Target::default()
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| wrong("an option has no value"))?;
        let value = percent::decoded(value).map_err(wrong)?;
        match key {
            "kubeconfig" => target.kubeconfig = Some(value.into()),
            "context" => target.context = Some(value),
            _ => return Err(wrong("its options are kubeconfig and context")),
        }
    }
    Ok(target)
}

/// How often a Lease that others write at the same time is written before whoever asked is told to
/// try again.
const WRITES_MAX: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_namespace_kubeconfig_and_context() {
        let whole = target("k8s://shop?kubeconfig=/a%20b/c.yaml&context=prod").unwrap();
        assert_eq!(whole.namespace.as_deref(), Some("shop"));
        assert_eq!(whole.kubeconfig, Some("/a b/c.yaml".into()));
        assert_eq!(whole.context.as_deref(), Some("prod"));
        assert_eq!(target("k8s://").unwrap(), Target::default());
        for wrong in
            ["k8s:shop", "k8s://Shop", "k8s://a.b", "k8s://shop?user=x", "k8s://x?context=%f"]
        {
            assert!(target(wrong).unwrap_err().to_string().contains("k8s://default"), "{wrong}");
        }
    }
}
