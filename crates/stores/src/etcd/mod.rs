//! Leases in etcd: `etcd://host:port,host:port/prefix`.
//!
//! Speaks etcd's gRPC API. The few messages that it needs are written by hand (`messages.rs`), so
//! that nobody needs a protocol compiler to build it.
//!
//! # The record
//!
//! A lease has two keys, which one range reads at one revision:
//!
//! * the **live** key `PREFIX/NAME/live`: the last nonce and the ttl, or `released`. It is all that
//!   a renewal writes, some forty bytes, because etcd keeps each version until it compacts.
//! * the **kept** key `PREFIX/NAME/kept`: owner, claim, ttl, term, session and note.
//!
//! Each step is one transaction that holds only if neither key has changed since it was seen. The
//! term is the revision at which the kept key was created, which is the cluster's and only ever
//! rises, also over a deleted record; so two who saw *nothing* and both created the record have
//! different terms. Whoever takes the lease later cannot give the key a new create revision, so
//! the kept value says how much to add.
//!
//! # Why no etcd leases
//!
//! The record is not attached to a lease of etcd's own (`LeaseGrant`, `LeaseKeepAlive`). etcd before
//! 3.4.30 and 3.5.13 revokes leases that live: a leader whose disk was stuck counts their time on
//! while its successor prolongs them, and has them revoked when it recovers. Operators revoke them,
//! too. So a key that etcd has deleted does not say that its holder's time is over, and a contender
//! has to wait the ttl by its own clock anyway. Then etcd's leases are good for nothing but to remove
//! the key of a dead holder, and cost a second request per renewal, a rule for deposed leaders that
//! answer keep-alives, and a whole ttl more after each election of a leader.
//!
//! Instead contenders observe the record, as in Kubernetes: free once it has not changed for its
//! ttl. The watch tells them of each renewal, so that their clocks start a few milliseconds after
//! it. The price: who comes only after a holder's crash waits a whole ttl, and a dead holder's live
//! key stays until the next one takes the lease.
//!
//! # What an absent live key means
//!
//! Somebody has deleted it, for a release writes it. Its holder may not have noticed: the record
//! counts as held, by nobody who could renew it, and contenders observe it for the ttl in the kept
//! key.
//!
//! # Renewal and release
//!
//! A process remembers at which revisions it last wrote the two keys of its tenures, and renews and
//! releases with one transaction on that condition. If something has changed them since, such as an
//! earlier renewal whose answer was lost, the transaction answers with what is there, and a second
//! one follows if that is this tenure still.
//!
//! A transaction that is refused is final; anything else is unknown.
//!
//! What is not as Tenure wrote it (the kept key is missing; the value is somebody else's) refuses
//! its holder's renewal, and is free once it has not changed for its ttl. A foreign value that is
//! attached to an etcd lease is left alone for as long as etcd keeps it.

mod address;
mod client;
mod content;
mod link;
mod messages;
mod steps;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Promise, Release, Released, Renew, Renewed, StoreError,
    StoreInfo, Watch,
};
use tenure_lease::{LeaseName, OpenError, Record};

use address::Address;
use client::Client;
use steps::Steps;

/// A store in an etcd cluster. Clones share its connections.
#[derive(Clone)]
pub struct EtcdStore {
    steps: Arc<Steps>,
}

impl std::fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdStore").finish_non_exhaustive()
    }
}

impl EtcdStore {
    /// A store at `etcd://[user:password@]host[:port][,host[:port]…][/prefix][?options]`. It
    /// connects when it is first asked something.
    ///
    /// The prefix of all keys is `/tenure` if none is given. Options: `tls=true` (or the scheme
    /// `etcds:`), `ca=FILE` (instead of the authorities of this machine), `cert=FILE` and
    /// `key=FILE` (our own certificate), all PEM, each of which asks for TLS. Special characters
    /// in the password are percent-encoded.
    pub fn open(url: &str) -> Result<Self, OpenError> {
        let (client, prefix) = Client::new(Address::parse(url)?)?;
        Ok(Self { steps: Arc::new(Steps::new(client, prefix)) })
    }
}

impl Backend for EtcdStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "etcd",
            promise: Promise::Safe,
            ttl_min: TTL_MIN,
            ttl_max: TTL_MAX,
            ttl_step: Duration::from_millis(1),
            frees_after_ttls: 1,
            pushes: true,
            pushes_renewals: true,
            reads_everything: false,
        }
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        Box::pin(self.steps.acquire(request))
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        Box::pin(self.steps.renew(request))
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        Box::pin(self.steps.release(request))
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        Box::pin(self.steps.read(names))
    }

    fn list(&self) -> Option<Boxed<'_, Result<Vec<LeaseName>, StoreError>>> {
        Some(Box::pin(self.steps.list()))
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        Some(Box::new(self.steps.watch(name)))
    }
}

/// An election of a leader takes about as long; a shorter ttl would not survive any.
const TTL_MIN: Duration = Duration::from_secs(1);
/// A lease for longer than that is a mistake.
const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
