//! The contract that every store implements.
//!
//! A backend is a compare-and-set register with a memory: it keeps one [`Record`] per lease name,
//! changes it only on the conditions that a request names, and never forgets a token or a note. It
//! judges no one's clock but its own, and its own only if that clock cannot jump; everything else
//! that is hard about leases (deadlines, ambiguity, observation, takeover) is the
//! [keeper](crate::keeper)'s, once, for all stores.
//!
//! Every answer is one of three: yes, no (with the record that says so), or *unknown*: an
//! [`Err`](StoreError) says only that no answer came, never that nothing was done.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::LeaseName;
use crate::record::{Nonce, Owner, Record, SessionRef, Token, Version};

/// A boxed future, as the contract's methods return.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a store must be able to do.
///
/// Rules for implementers, each checked by the conformance suite of `tenure-testkit`:
///
/// * Each method is one atomic step on one record. A write that may have been applied and is not
///   known to be is an `Err`, never a "no". No retries inside: they are the keeper's.
/// * Terms only rise: every [`Acquired::Won`] has a term above all earlier ones of its name, also
///   after the record was deleted (so the first term of an absent record is the store's revision or
///   its clock in microseconds, never 1), and above [`Acquire::above`].
/// * Note and token outlive the tenure: a release and an expiry keep both.
/// * A renewal proves *the record*: it succeeds only if the record itself still carries the claim
///   and one of the nonces that this process may have written, and it writes a new nonce.
/// * A record whose format is newer than [`FORMAT`](crate::record::FORMAT) is an error of kind
///   [`StoreErrorKind::NewerFormat`], and is left as it is.
/// * A request whose future is dropped before its answer (a time-out) makes its connection suspect:
///   that connection is not used again, and neither are idle connections opened before it.
/// * Renewals and releases wait for nothing else that the process asks of the store: not for a place
///   in a pool, and not behind reads or acquisitions.
/// * No secret in an error text.
pub trait Backend: Send + Sync + 'static {
    /// What kind of store this is and what it promises.
    fn info(&self) -> StoreInfo;

    /// Takes the lease for a claim if the record allows it; see [`Acquire`].
    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>>;

    /// Prolongs a tenure; see [`Renew`].
    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>>;

    /// Ends a tenure, keeping token and note; see [`Release`].
    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>>;

    /// The records as they are now, in the order of the names; `None` where there is none. In as
    /// few round trips as the store can.
    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>>;

    /// The names of the records in this store, in their order, [`LIST_MAX`] at most; `None` if the
    /// store cannot list them.
    fn list(&self) -> Option<Boxed<'_, Result<Vec<LeaseName>, StoreError>>> {
        None
    }

    /// A watch on one record, or `None` if the store cannot push.
    ///
    /// Pushes may get lost and may come for nothing: the keeper polls as well, and looks before it
    /// acts.
    fn watch(&self, _name: &LeaseName) -> Option<Box<dyn Watch>> {
        None
    }

    /// Proves on the real record, without changing it, that acquire, renew and release will work
    /// when they are needed. `None`: this store cannot; the
    /// [preflight](crate::Store::preflight) then goes through all of them on a lease of its own.
    fn dry_run<'a>(&'a self, _name: &'a LeaseName) -> Option<Boxed<'a, Result<(), StoreError>>> {
        None
    }

    /// A descriptor that the kernel closes when its last holder dies, and whose closing frees the
    /// tenure of this claim at once. A supervisor hands it to what it supervises.
    #[cfg(unix)]
    fn lifeline(&self, _claim: Nonce) -> Option<std::os::fd::OwnedFd> {
        None
    }
}

/// How many names [`Backend::list`] returns at most.
pub const LIST_MAX: usize = 10_000;

/// Wakes whoever waits for a lease.
pub trait Watch: Send {
    /// Returns when the record may have changed since the last call. Returns once as soon as the
    /// watch is established, and once more each time it had to be re-established, because changes
    /// may have been missed before. Cancel-safe.
    fn changed(&mut self) -> Boxed<'_, ()>;
}

/// One attempt to take a lease.
///
/// It is granted if the record
///
/// * is absent, and `create` is set; or
/// * was released; or
/// * is held, and the store itself says that its time is over
///   ([`Expiry::ByStore`](crate::record::Expiry::ByStore)); or
/// * has the version `takeover`: the claimant has watched it for its ttl, or took its session over;
///
/// and, besides, matches `expected` if that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// Which lease.
    pub name: LeaseName,
    /// The id of this attempt; also the first nonce of the tenure.
    pub claim: Nonce,
    /// Who asks.
    pub owner: Owner,
    /// How long the tenure lasts after each renewal.
    pub ttl: Duration,
    /// Makes it an attached lease: it is not renewed and does not expire by itself.
    pub session: Option<SessionRef>,
    /// Replaces the note in the same step; `None` keeps it.
    pub note: Option<Vec<u8>>,
    /// Whether an absent record may be created. Not, while one that the claimant knew and that
    /// vanished is being waited out.
    pub create: bool,
    /// The version that the claimant watched for its whole ttl.
    pub takeover: Option<Version>,
    /// The record must still be the one that the claimant read.
    pub expected: Option<Expected>,
    /// The term must be above this (0: no wish). For repair after a restored backup.
    pub above: u64,
    /// No process stands behind the tenure (an operator broke the lease): it ends by time alone,
    /// not with whoever asked.
    pub unattended: bool,
}

/// The record that an [`Acquire`] is conditional on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// There was none.
    Absent,
    /// It had this term.
    Term(u64),
}

impl Expected {
    /// Whether the record is the one that was read.
    pub fn matches(self, record: Option<&Record>) -> bool {
        match self {
            Self::Absent => record.is_none(),
            Self::Term(term) => record.is_some_and(|record| record.token.term == term),
        }
    }
}

impl Acquire {
    /// Whether the record allows this attempt: what every backend must decide alike. `expired` is
    /// the store's own word that a held record's time is over.
    pub fn allowed_by(&self, record: Option<&Record>, expired: bool) -> bool {
        self.expected.is_none_or(|expected| expected.matches(record))
            && match record {
                None => self.create,
                Some(record) => {
                    record.holder.is_none()
                        || expired
                        || self.takeover.as_ref() == Some(&record.version)
                }
            }
    }
}

/// The answer to an [`Acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The record now belongs to the claim.
    Won {
        /// The token of the new tenure.
        token: Token,
        /// What the record said before.
        former: Option<Record>,
    },
    /// It does not; this is the record that stood in the way (`None`: there is none).
    Lost(Option<Record>),
}

/// Prolongs a tenure: if the record carries `claim` and `token`, and its nonce is one of `known`,
/// its nonce becomes `nonce`.
///
/// `known` are the nonces that this process may have written: the last one confirmed, and those
/// whose answer never came. Any other nonce was written by a clone of this process or by a thief.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    /// Which lease.
    pub name: LeaseName,
    /// Whose tenure.
    pub claim: Nonce,
    /// Under which token.
    pub token: Token,
    /// What may stand there.
    pub known: Vec<Nonce>,
    /// What is to stand there.
    pub nonce: Nonce,
    /// How long the tenure lasts from now.
    pub ttl: Duration,
    /// Replaces the note; `None` keeps it.
    pub note: Option<Vec<u8>>,
    /// An earlier renewal of this tenure has had no answer yet, and its connection may hang: send
    /// this one on a connection that is opened for it, and leave the earlier request alone. Stores
    /// without connections ignore it.
    pub fresh_connection: bool,
}

/// The answer to a [`Renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // An answer is looked at once, where it arrives.
pub enum Renewed {
    /// It is prolonged.
    Yes,
    /// The record was not renewed; this is what it is now. Final, unless it shows the nonce of another
    /// renewal of this tenure. A store that finds one there and yet cannot renew the record shows it
    /// without its nonce.
    Refused(Option<Record>),
}

/// Ends a tenure: if the record carries `claim` and one of `known`, it becomes released. It can
/// never touch a successor's tenure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Which lease.
    pub name: LeaseName,
    /// Whose tenure.
    pub claim: Nonce,
    /// As in [`Renew::known`].
    pub known: Vec<Nonce>,
}

/// The answer to a [`Release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It is free.
    Yes,
    /// The record is not that tenure's.
    Refused,
}

/// What a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreInfo {
    /// Its kind: `file`, `etcd`, …
    pub kind: &'static str,
    /// What it promises.
    pub promise: Promise,
    /// The shortest ttl that it can keep.
    pub ttl_min: Duration,
    /// The longest.
    pub ttl_max: Duration,
    /// A ttl must be a multiple of this.
    pub ttl_step: Duration,
    /// After a crash it frees a lease when this many ttls have passed; 1 as a rule.
    pub frees_after_ttls: u32,
    /// Whether it wakes waiters ([`Backend::watch`]) when a tenure ends.
    pub pushes: bool,
    /// Whether it wakes them at renewals, too. A waiter measures a dead holder's ttl from when it saw
    /// the last renewal; where it is not woken, it looks more often.
    pub pushes_renewals: bool,
    /// Whether a read of many records reads all that there are: then many leases are read by one
    /// request rather than by several.
    pub reads_everything: bool,
}

impl StoreInfo {
    /// Whether it is part of this machine or process: there are no connections that could hang.
    pub fn is_local(&self) -> bool {
        matches!(self.kind, "file" | "memory")
    }
}

/// What kind of promise a store makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Consensus or a single durable writer: at most one holder.
    Safe,
    /// A failover of the store may lose a lease or its token; only fenced writes are safe.
    BestEffort,
}

/// No answer, or none that could be understood. What was asked for may have been done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
}

/// What kept a store from answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// It cannot be reached, is slow or is busy: worth trying again.
    Unavailable,
    /// It refuses our credentials or permissions.
    Denied,
    /// The request cannot work here: a ttl out of bounds, a table that does not exist, a full disk.
    Unsuitable,
    /// The record cannot be read.
    Damaged,
    /// A newer release wrote the record.
    NewerFormat,
}

impl StoreError {
    /// An error; the message says what happened and what to do, and contains no secret.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A passing failure.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Unavailable, message)
    }

    /// What kind it is.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the store answers, and one of the records that were asked for cannot be read.
    pub fn is_about_a_record(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Damaged | StoreErrorKind::NewerFormat)
    }
}

/// Any request, as the cores emit them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// See [`Backend::acquire`].
    Acquire(Acquire),
    /// See [`Backend::renew`].
    Renew(Renew),
    /// See [`Backend::release`].
    Release(Release),
    /// See [`Backend::read`].
    Read(Vec<LeaseName>),
}

/// The answer to a [`Request`] of the same kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To an [`Acquire`].
    Acquire(Result<Acquired, StoreError>),
    /// To a [`Renew`].
    Renew(Result<Renewed, StoreError>),
    /// To a [`Release`].
    Release(Result<Released, StoreError>),
    /// To a read.
    Read(Result<Vec<Option<Record>>, StoreError>),
}

impl Answer {
    /// Why there is none, if there is none.
    pub fn error(&self) -> Option<&StoreError> {
        match self {
            Self::Acquire(result) => result.as_ref().err(),
            Self::Renew(result) => result.as_ref().err(),
            Self::Release(result) => result.as_ref().err(),
            Self::Read(result) => result.as_ref().err(),
        }
    }
}

impl Request {
    /// Puts it to a backend.
    pub async fn put_to(self, backend: &dyn Backend) -> Answer {
        match self {
            Self::Acquire(request) => Answer::Acquire(backend.acquire(request).await),
            Self::Renew(request) => Answer::Renew(backend.renew(request).await),
            Self::Release(request) => Answer::Release(backend.release(request).await),
            Self::Read(names) => Answer::Read(backend.read(names).await),
        }
    }

    /// The answer that says that none came.
    pub fn unanswered(&self, error: StoreError) -> Answer {
        match self {
            Self::Acquire(_) => Answer::Acquire(Err(error)),
            Self::Renew(_) => Answer::Renew(Err(error)),
            Self::Release(_) => Answer::Release(Err(error)),
            Self::Read(_) => Answer::Read(Err(error)),
        }
    }
}
