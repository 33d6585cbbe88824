//! What the checks are written with: clients, requests, and time.
#![allow(clippy::disallowed_methods)] // Leases end by real time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError,
    StoreErrorKind, StoreInfo,
};
use tenure_lease::record::{Expiry, SessionRef};
use tenure_lease::{
    Lease, LeaseError, LeaseName, Moment, Nonce, Owner, Record, Settings, Store, Token,
};

use super::{Check, Factory};
use crate::faults::Faults;

/// How a check ends.
pub(super) type Checked<T = ()> = Result<T, Stop>;

/// Why a check ends before its end.
#[derive(Debug)]
pub(super) enum Stop {
    Failed(String),
    Skipped(String),
}

/// Fails the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::conformance::context::Stop::Failed(format!($($text)+)));
        }
    };
}

/// The checks of a theme, by the names of their functions.
macro_rules! checks {
    ($($name:ident),+ $(,)?) => {
        pub(super) fn checks() -> Vec<$crate::conformance::Check> {
            vec![$($crate::conformance::context::check(stringify!($name), |cx| {
                Box::pin($name(cx))
            })),+]
        }
    };
}

pub(super) fn check(name: &'static str, check: fn(Context) -> Boxed<'static, Checked>) -> Check {
    Check { name, alone: false, check }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Failed(format!("the store did not answer: {error}"))
    }
}

impl From<LeaseError> for Stop {
    fn from(error: LeaseError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// What a check works with.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) factory: Arc<dyn Factory>,
    pub(super) info: StoreInfo,
    remarks: Remarks,
}

/// What a check measured, for people.
#[derive(Clone, Default)]
pub(super) struct Remarks(Arc<Mutex<Vec<String>>>);

impl Remarks {
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Context {
    pub(super) async fn new(factory: Arc<dyn Factory>) -> Self {
        let info = factory.open().await.info();
        Self { factory, info, remarks: Remarks::default() }
    }

    pub(super) fn remarks(&self) -> Remarks {
        self.remarks.clone()
    }

    pub(super) fn remark(&self, text: String) {
        self.remarks.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    pub(super) fn name(&self, stem: &str) -> LeaseName {
        self.factory.fresh_name(stem)
    }

    pub(super) fn ttl(&self) -> Duration {
        self.factory.ttl()
    }

    /// A ttl that does not end within a check; as long as the store allows, and no longer than
    /// four of the usual ones.
    pub(super) fn long_ttl(&self) -> Duration {
        (self.ttl() * 4).min(self.info.ttl_max)
    }

    pub(super) fn settings(&self) -> Settings {
        self.factory.settings()
    }

    /// From the send of a request that succeeded to the end of the belief.
    pub(super) fn held_for(&self, settings: &Settings) -> Duration {
        settings.ttl - settings.margin - settings.stop_budget
    }

    /// What a store, a network and a busy machine may take on top of any exact time.
    pub(super) fn slack(&self) -> Duration {
        self.ttl().max(Duration::from_secs(2))
    }

    /// By when a lease that is not renewed must be free.
    pub(super) fn frees_within(&self) -> Duration {
        self.ttl() * self.info.frees_after_ttls + self.slack()
    }

    /// Between two looks at something that cannot be awaited.
    pub(super) fn pause(&self) -> Duration {
        (self.ttl() / 40).clamp(Duration::from_millis(2), Duration::from_millis(250))
    }

    /// After this long a check hangs.
    pub(super) fn limit(&self) -> Duration {
        self.frees_within() * 6 + Duration::from_secs(20)
    }

    /// A new client.
    pub(super) async fn client(&self) -> Client {
        Client { backend: Arc::clone(self.factory.open().await.backend()) }
    }

    /// A new client with faults in between.
    pub(super) async fn faults(&self) -> Faults {
        Faults::new(Arc::clone(self.factory.open().await.backend()))
    }

    /// A plain attempt under a fresh claim.
    pub(super) fn request(&self, name: &LeaseName, owner: &str) -> Acquire {
        Acquire {
            name: name.clone(),
            claim: Nonce::random(),
            owner: Owner::named(owner),
            ttl: self.ttl(),
            session: None,
            note: None,
            create: true,
            takeover: None,
            expected: None,
            above: 0,
            unattended: false,
        }
    }

    /// The same for a lease that is attached to a session.
    pub(super) fn attached_request(
        &self,
        name: &LeaseName,
        owner: &str,
        session: &Held,
    ) -> Acquire {
        let session = SessionRef { name: session.name.clone(), term: session.token.term };
        Acquire { session: Some(session), ..self.request(name, owner) }
    }

    /// A lease with the timing of the suite.
    pub(super) fn lease(&self, store: &Store, name: &LeaseName, owner: &str) -> Lease {
        store.lease(name.as_str()).settings(self.settings()).owner(owner)
    }

    /// Deletes a record as an operator would, or skips the check.
    pub(super) async fn delete(&self, name: &LeaseName) -> Checked {
        match self.factory.delete(name) {
            Some(deleted) => {
                deleted.await;
                Ok(())
            }
            None => Err(skipped("nobody can delete a record here")),
        }
    }
}

pub(super) fn skipped(why: &str) -> Stop {
    Stop::Skipped(why.to_owned())
}

pub(super) fn failed(why: impl Into<String>) -> Stop {
    Stop::Failed(why.into())
}

/// Fails the check if the future takes longer.
pub(super) async fn within<T>(
    limit: Duration,
    what: &str,
    future: impl Future<Output = T>,
) -> Checked<T> {
    match tokio::time::timeout(limit, future).await {
        Ok(value) => Ok(value),
        Err(_) => Err(failed(format!("{what}: not within {limit:?}"))),
    }
}

pub(super) async fn sleep_until(moment: Moment) {
    tokio::time::sleep(moment.since(Moment::now())).await;
}

/// Puts a request until it is answered; the answer, and whether the request was put before.
///
/// A store may leave a request unanswered at any time, and a keeper copes with that. So do the
/// checks, lest a moment without an answer, of an election say, were a verdict on the store; except
/// where the answer itself is the point. What came of a write that is put again, the record tells.
pub(super) async fn answered<'a, T>(
    mut put: impl FnMut() -> Boxed<'a, Result<T, StoreError>>,
) -> Result<(T, bool), StoreError> {
    for before in 0..REPEATS {
        match put().await {
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {}
            answer => return answer.map(|answer| (answer, before > 0)),
        }
        tokio::time::sleep(REPEAT_AFTER).await;
    }
    put().await.map(|answer| (answer, true))
}

/// Together longer than an election takes.
const REPEATS: usize = 10;
const REPEAT_AFTER: Duration = Duration::from_millis(300);

/// A client of the store, for single requests.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) backend: Arc<dyn Backend>,
}

/// A tenure that a check holds without a keeper.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) name: LeaseName,
    pub(super) claim: Nonce,
    pub(super) token: Token,
    /// What stands in the record.
    pub(super) nonce: Nonce,
    pub(super) ttl: Duration,
    /// What the record said before; unknown if the answer that told it got lost.
    former: Option<Option<Record>>,
    /// When the request that began or last prolonged it was sent.
    pub(super) sent: Moment,
}

impl Held {
    /// A renewal as its holder would send it.
    pub(super) fn renewal(&self) -> Renew {
        Renew {
            name: self.name.clone(),
            claim: self.claim,
            token: self.token,
            known: vec![self.nonce],
            nonce: Nonce::random(),
            ttl: self.ttl,
            note: None,
            fresh_connection: false,
        }
    }

    pub(super) fn release(&self) -> Release {
        Release { name: self.name.clone(), claim: self.claim, known: vec![self.nonce] }
    }

    /// What the record said before, as the answer told; without that answer nothing is learnt.
    pub(super) fn former(&self) -> Checked<Option<&Record>> {
        let lost = || skipped("the answer that shows the former record got lost");
        self.former.as_ref().map(Option::as_ref).ok_or_else(lost)
    }
}

impl Client {
    /// Puts an acquisition that must be won.
    pub(super) async fn win(&self, request: Acquire) -> Checked<Held> {
        match self.try_win(&request).await? {
            Ok(held) => Ok(held),
            Err(record) => Err(failed(format!("lost what was free, to {record:?}"))),
        }
    }

    /// Puts an acquisition, of a claim that has nothing yet, that must be lost.
    pub(super) async fn lose(&self, request: Acquire) -> Checked<Option<Record>> {
        match self.try_win(&request).await? {
            Err(record) => Ok(record),
            Ok(Held { token, .. }) => {
                Err(failed(format!("won what was not free, with token {token}")))
            }
        }
    }

    /// Puts an acquisition. That a claim has won is told by its answer, or by the record to the
    /// same claim that is put again.
    async fn try_win(&self, request: &Acquire) -> Checked<Result<Held, Option<Record>>> {
        let first = Moment::now();
        let mut last = first;
        let put = || {
            last = Moment::now();
            self.backend.acquire(request.clone())
        };
        let (answer, again) = answered(put).await?;
        let (token, former, sent) = match answer {
            Acquired::Won { token, former } => (token, Some(former), last),
            Acquired::Lost(Some(record)) if again && record.is_of(request.claim) => {
                (record.token, None, first)
            }
            Acquired::Lost(record) => return Ok(Err(record)),
        };
        Ok(Ok(Held {
            name: request.name.clone(),
            claim: request.claim,
            token,
            nonce: request.claim,
            ttl: request.ttl,
            former,
            sent,
        }))
    }

    /// Takes a lease as soon as the rules allow it, as a keeper would: when the store frees it, or
    /// when its record has stood still for its ttl.
    pub(super) async fn overtake(&self, cx: &Context, request: &Acquire) -> Checked<Held> {
        let limit = Moment::now() + cx.frees_within();
        let mut request = request.clone();
        let mut seen: Option<(Record, Moment)> = None;
        loop {
            let sent = Moment::now();
            let stood_still = |(record, since): &(Record, Moment)| {
                (sent.since(*since) >= record.ttl).then(|| record.version.clone())
            };
            request.claim = Nonce::random();
            request.takeover = seen.as_ref().and_then(stood_still);
            match self.try_win(&request).await? {
                Ok(held) => return Ok(held),
                Err(Some(record)) if record.expiry == Expiry::ByObservation => {
                    let known = seen.as_ref().map(|(record, _)| &record.version);
                    if known != Some(&record.version) {
                        seen = Some((record, Moment::now()));
                    }
                }
                Err(_) => seen = None,
            }
            ensure!(Moment::now() < limit, "not free {:?} later", cx.frees_within());
            tokio::time::sleep(cx.pause()).await;
        }
    }

    /// Takes a lease that is held and perhaps renewed, by naming its version.
    pub(super) async fn steal(&self, request: &Acquire) -> Checked<Held> {
        for _ in 0..100 {
            let version = self.record(&request.name).await?.version;
            let request = Acquire { takeover: Some(version), ..request.clone() };
            if let Ok(held) = self.try_win(&request).await? {
                return Ok(held);
            }
        }
        Err(failed("the right version never takes the record over"))
    }

    /// Puts a renewal; if it is put again, its nonce may stand there already.
    pub(super) async fn renew(&self, mut request: Renew) -> Checked<Renewed> {
        let put = || {
            let first = request.clone();
            request.known.push(request.nonce);
            self.backend.renew(first)
        };
        Ok(answered(put).await?.0)
    }

    /// Renews as the holder, which must work.
    pub(super) async fn prolong(&self, held: &mut Held) -> Checked {
        self.prolong_with(held, None).await
    }

    /// Renews as the holder, with a note, which must work.
    pub(super) async fn prolong_with(&self, held: &mut Held, note: Option<Vec<u8>>) -> Checked {
        let request = Renew { note, ..held.renewal() };
        let (nonce, sent) = (request.nonce, Moment::now());
        match self.renew(request).await? {
            Renewed::Yes => {
                (held.nonce, held.sent) = (nonce, sent);
                Ok(())
            }
            Renewed::Refused(record) => {
                Err(failed(format!("the holder's renewal was refused by {record:?}")))
            }
        }
    }

    /// Puts a renewal that must be refused; what the store shows instead.
    pub(super) async fn renew_refused(&self, request: Renew) -> Checked<Option<Record>> {
        match self.renew(request).await? {
            Renewed::Refused(record) => Ok(record),
            Renewed::Yes => Err(failed("renewed what must be refused")),
        }
    }

    /// Puts a release; if it is put again, and nobody holds the lease, it was the first that freed
    /// it.
    pub(super) async fn release(&self, request: Release) -> Checked<Released> {
        match answered(|| self.backend.release(request.clone())).await? {
            (Released::Refused, true) => {
                let record = self.read(&request.name).await?;
                let freed = record.is_some_and(|record| record.holder.is_none());
                Ok(if freed { Released::Yes } else { Released::Refused })
            }
            (released, _) => Ok(released),
        }
    }

    /// Gives a tenure back, which must work.
    pub(super) async fn give_back(&self, held: &Held) -> Checked {
        let released = self.release(held.release()).await?;
        ensure!(released == Released::Yes, "the holder's release was refused");
        Ok(())
    }

    pub(super) async fn read(&self, name: &LeaseName) -> Checked<Option<Record>> {
        let records = self.read_all(std::slice::from_ref(name)).await?;
        ensure!(records.len() == 1, "{} records for one name", records.len());
        Ok(records.into_iter().next().flatten())
    }

    pub(super) async fn read_all(&self, names: &[LeaseName]) -> Checked<Vec<Option<Record>>> {
        Ok(answered(|| self.backend.read(names.to_vec())).await?.0)
    }

    /// The record, which must be there.
    pub(super) async fn record(&self, name: &LeaseName) -> Checked<Record> {
        self.read(name).await?.ok_or_else(|| failed(format!("{name} has no record")))
    }

    /// Waits until nobody holds the lease any more.
    pub(super) async fn released(&self, cx: &Context, name: &LeaseName) -> Checked<Record> {
        let released = async {
            loop {
                let record = self.record(name).await?;
                if record.holder.is_none() {
                    return Ok(record);
                }
                tokio::time::sleep(cx.pause()).await;
            }
        };
        within(cx.slack(), "released", released).await?
    }
}
