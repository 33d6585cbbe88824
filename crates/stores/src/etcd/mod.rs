//! Leases in etcd: `etcd://host:port,host:port/prefix`.
//!
//! Speaks the JSON gateway of etcd's v3 API over HTTP, so that nobody needs a protocol compiler to
//! build it.
//!
//! # The record
//!
//! A lease has two keys, always written in one transaction:
//!
//! * the **live** key `PREFIX/NAME`: owner, claim, nonce, ttl. It hangs on an etcd lease of that
//!   ttl, so that etcd itself deletes it, by a monotonic clock, when its holder dies. (The record
//!   of an attached lease hangs on none; its session's does.)
//! * the **kept** key `PREFIX/NAME/.kept`: the note, the term, and whether it was released. It
//!   outlives the tenure.
//!
//! Each step looks at both, at one revision, and then is one transaction that holds only if neither
//! has changed since. The term is the live key's create revision, which is the cluster's and only
//! ever rises, also over a deleted record; so two who saw *nothing* and both created it still have
//! different terms. A takeover overwrites the key, which keeps its create revision, so the live
//! value says how much to add. Only [`Acquire::above`] raises the offset in the kept key.
//!
//! # What an absent live key means
//!
//! * The kept key says *released*: free.
//! * It says *held*, and the etcd lease does not exist any more: etcd ended the tenure, a whole ttl
//!   after its last renewal: free at once.
//! * It says *held*, and the etcd lease still exists: somebody deleted the key, and its holder may
//!   not have noticed. The record is reported as absent, so that contenders wait it out.
//!
//! The etcd lease's id is derived from the claim. So its holder can prolong it, and whoever gives a
//! claim back can revoke it, even if the answers to grant and acquisition were lost.
//!
//! # Renewal
//!
//! A keep-alive of an etcd lease is answered with yes for ever, also after the key that hung on it
//! was deleted and taken by somebody else. So a renewal is a keep-alive, *and then* a transaction
//! that finds claim, nonce and lease in the live key and writes a new nonce. It is a yes only if
//! both are. Both are sent after the keeper read its clock, so the end that etcd puts to the lease
//! is later than the one that the keeper counts.
//!
//! That order, because a leader answers a keep-alive alone: one that was deposed and does not know
//! it yet says yes, too, to a lease that its successor will end. A majority stands behind the
//! transaction; if it comes later and in the same raft term, the leader was the leader, and any
//! later one will begin the lease anew.
//!
//! # Release
//!
//! Who releases a tenure knows at which revisions it last wrote the two keys, and frees the lease
//! with one transaction on that condition: one round trip less between two holders. If something
//! has changed them since, the transaction answers with what is there, and that is looked at.
//!
//! # Answers
//!
//! A transaction that is refused is final; a keep-alive that finds no lease is looked into, and is
//! final if the key is gone; anything else is unknown.
//!
//! What is not as Tenure wrote it (an operator's `put` detaches a key from its lease; the kept key
//! is missing; the value is somebody else's) refuses its holder's renewal, and is free once it has
//! stood still for its ttl.

mod address;
mod client;
mod content;
mod steps;
mod watch;
mod wire;

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
            ttl_step: Duration::from_secs(1),
            frees_after_ttls: 1,
            pushes: true,
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

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        Some(Box::new(self.steps.watch(name)))
    }
}

/// What etcd grants at least, with its default election time-out.
const TTL_MIN: Duration = Duration::from_secs(2);
/// etcd would take more; a lease for longer than that is a mistake.
const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
