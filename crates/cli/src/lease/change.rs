//! `tenure lease release`, `break` and `raise`, by the contract that every store keeps.
//!
//! Drives: it draws the claims of the requests that it makes.
#![allow(clippy::disallowed_methods)]

use std::fmt;
use std::io::Write as _;
use std::time::Duration;

use serde::Serialize;
use tenure_lease::backend::{Acquire, Acquired, Release, Released};
use tenure_lease::record::Holder;
use tenure_lease::{Nonce, Owner, Record, Store, Token};

use super::{Break, Raise, Target, confirmed};
use crate::exit::{Failure, HELD};
use crate::output;

/// What `--json` prints; its shape is stable.
#[derive(Serialize)]
struct Changed {
    name: String,
    /// `released`, `broken`, `raised`, or `none` if there was nothing to do.
    change: &'static str,
    /// Who held it.
    owner: Option<String>,
    token: Option<Token>,
    /// How long until it is free.
    free_in_ms: u64,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, change, .. } = self;
        match (&self.owner, self.token) {
            (Some(owner), _) => write!(f, "{name}: {change}; {owner} held it; ")?,
            (None, Some(token)) => write!(f, "{name}: {change} to term {}; ", token.term)?,
            (None, None) => write!(f, "{name}: nobody held it; ")?,
        }
        match self.free_in_ms {
            0 => f.write_str("it is free"),
            millis => write!(f, "it is free in {:?}", Duration::from_millis(millis)),
        }
    }
}

pub(super) async fn release(target: &Target) -> Result<(), Failure> {
    let store = target.lease.store.look_shared().await?;
    let Some((record, holder)) = target.held(&store).await? else { return Ok(()) };
    let (Some(claim), Some(nonce)) = (holder.claim, holder.nonce) else {
        return Err(Failure::new(
            HELD,
            format!("{} is held by a foreign tool; use its own means", target.lease.name),
        ));
    };
    let request = Release { name: target.lease.name.clone(), claim, known: vec![nonce] };
    match store.backend().release(request).await? {
        Released::Yes => {
            target.changed("released", Some(&record), Some(record.token), Duration::ZERO)
        }
        Released::Refused => Err(moved_on(target)),
    }
}

pub(super) async fn break_lease(args: &Break) -> Result<(), Failure> {
    let target = &args.target;
    let store = target.lease.store.look_shared().await?;
    let Some((record, holder)) = target.held(&store).await? else { return Ok(()) };
    let wait = free_after(&record, store.info().ttl_max);
    let when = if args.now {
        "It is free at once, and the holder's work may overlap the next one's.".to_owned()
    } else {
        format!("It is free in {wait:?}.")
    };
    let question = format!("Take {} away from {}? {when}", target.lease.name, holder.owner);
    if !args.yes && !confirmed(&question)? {
        return Ok(());
    }
    let claim = Nonce::random();
    let request = Acquire {
        name: target.lease.name.clone(),
        claim,
        owner: Owner::named(format!("operator {}", Owner::this_process().name)),
        ttl: wait,
        session: None,
        note: None,
        create: false,
        takeover: Some(record.version.clone()),
        expected: None,
        above: 0,
        unattended: true,
    };
    let Acquired::Won { token, .. } = store.backend().acquire(request).await? else {
        return Err(moved_on(target));
    };
    if !args.now {
        return target.changed("broken", Some(&record), Some(token), wait);
    }
    let request = Release { name: target.lease.name.clone(), claim, known: vec![claim] };
    store.backend().release(request).await?;
    tracing::warn!(
        holder = %holder.owner,
        "the former holder may be active until its next renewal"
    );
    target.changed("broken", Some(&record), Some(token), Duration::ZERO)
}

pub(super) async fn raise(args: &Raise) -> Result<(), Failure> {
    let target = &args.target;
    if args.above > ABOVE_MAX {
        return Err(Failure::usage(format!(
            "--above {} leaves no terms for later tenures: stores keep signed 64-bit numbers; \
             {ABOVE_MAX} is the highest that does",
            args.above
        )));
    }
    let store = target.lease.store.open_shared().await?;
    let name = target.lease.name.as_str();
    // A store that is away, or a record that cannot be read, is said at once.
    let record = target.read(&store).await?;
    let lease = store.lease(name).above(args.above);
    let tenure = match lease.try_acquire().await? {
        Some(tenure) => tenure,
        None => {
            let holder = record.as_ref().and_then(Record::owner).map(ToString::to_string);
            let holder = holder.unwrap_or_else(|| "somebody".to_owned());
            // Nobody may be reading.
            let _ = writeln!(std::io::stderr(), "waiting for {name}, which {holder} holds …");
            lease.acquire().await?
        }
    };
    let token = tenure.token();
    tenure.release().await;
    target.changed("raised", None, Some(token), Duration::ZERO)
}

impl Target {
    /// The record, if it is held; otherwise says that there is nothing to do.
    async fn held(&self, store: &Store) -> Result<Option<(Record, Holder)>, Failure> {
        let record = self.read(store).await?;
        if let Some(record) = record
            && let Some(holder) = record.holder.clone()
        {
            return Ok(Some((record, holder)));
        }
        self.changed("none", None, None, Duration::ZERO)?;
        Ok(None)
    }

    fn changed(
        &self,
        change: &'static str,
        former: Option<&Record>,
        token: Option<Token>,
        free_in: Duration,
    ) -> Result<(), Failure> {
        let changed = Changed {
            name: self.lease.name.to_string(),
            change,
            owner: former.and_then(Record::owner).map(|owner| owner.name.clone()),
            token,
            free_in_ms: u64::try_from(free_in.as_millis()).unwrap_or(u64::MAX),
        };
        output::print(&changed, self.json)
    }
}

/// How long after its record was taken a holder has surely stopped. An attached lease is not renewed:
/// its holder notices when it next reads the record, a proof interval (by default the ttl) later.
fn free_after(record: &Record, ttl_max: Duration) -> Duration {
    let ttls = if record.session().is_some() { 2 } else { 1 };
    (record.ttl * ttls).min(ttl_max.max(record.ttl))
}

fn moved_on(target: &Target) -> Failure {
    let name = &target.lease.name;
    Failure::new(HELD, format!("{name} has changed meanwhile; look at it and try again"))
}

/// Stores keep terms as signed 64-bit numbers, and each later tenure needs one.
const ABOVE_MAX: u64 = i64::MAX as u64 - (1 << 32);
