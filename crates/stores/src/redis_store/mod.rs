//! Leases in Redis or Valkey: `redis://[user:password@]host:port/db?prefix=…`, `rediss://` with
//! TLS. **Best effort**: a failover of Redis may lose a lease and its token.
//!
//! Two keys per lease, in one hash slot: a *kept* hash `{PREFIX:NAME}:kept` that never expires and
//! holds the whole record (term, note, claim, nonce, …), and a *live* key `{PREFIX:NAME}:live` with
//! the claim in it, which Redis expires after the ttl. Each step is one Lua script, which Redis
//! runs without interruption: it compares claim, term and nonce, and then writes.
//!
//! **Time.** A tenure that is not renewed ends when its live key has expired *and* the time that
//! the kept hash names has passed, both by Redis's own clock. So a live key that an operator
//! deleted, or that was evicted, frees nothing before its time: its holder's renewal is refused,
//! and contenders wait. Redis has only a wall clock: a step of it shortens or lengthens a tenure by
//! as much. This is one of the reasons for the label.
//!
//! **Terms** are Redis's clock in microseconds at the acquisition, or one above the former term, or
//! one above what was asked for, whichever is highest: a deleted record does not start at 1. They
//! are compared as decimal text, because Lua's numbers end at 2^53.
//!
//! **Attached leases** have no live key and do not expire. **Wake-ups** at the beginning and the end
//! of a tenure are published on one channel for all leases of a prefix; renewals, and what others
//! do, are seen by a look at all that the process waits for, once a second; see `driver`.

mod driver;
mod link;
#[cfg(test)]
mod samples;
mod url;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ::redis::{Script, ScriptInvocation, Value};

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Expected, LIST_MAX, Promise, Release, Released, Renew,
    Renewed, StoreError, StoreErrorKind, StoreInfo, Watch,
};
use tenure_lease::record::{Expiry, Holder, Record, SessionRef, Token, Version};
use tenure_lease::{LeaseName, OpenError, check_note};

use driver::{Hub, RedisWatch};
use link::{Age, Link};
use url::Options;

use crate::records;

/// Leases in Redis. Clones share their connections.
#[derive(Clone)]
pub struct RedisStore {
    link: Link,
    /// For renewals and releases, which wait for nothing else.
    first_link: Link,
    prefix: Arc<str>,
    hub: Arc<Hub>,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

impl RedisStore {
    /// A store by its URL, `redis://[user:password@]host:port/db?prefix=…` or `rediss://…`. It
    /// connects when it is first asked something.
    ///
    /// ```
    /// use tenure_lease::Store;
    /// use tenure_stores::redis_store::RedisStore;
    /// let store = Store::new(RedisStore::new("redis://127.0.0.1:6379/0?prefix=shop")?);
    /// # Ok::<(), tenure_lease::OpenError>(())
    /// ```
    pub fn new(url: &str) -> Result<Self, OpenError> {
        let Options { client, place, prefix } = Options::parse(url)?;
        tracing::warn!(
            store = "redis",
            %place,
            "leases in Redis are best effort: a failover of Redis, or a step of its clock, may \
             give one lease to two holders; only fenced writes are safe then"
        );
        let link = Link::new(client, place);
        let hub = Arc::new(Hub::new(link.clone(), channel(&prefix)));
        Ok(Self { first_link: link.another(), link, prefix: prefix.into(), hub })
    }

    fn keys(&self, name: &LeaseName) -> Keys {
        let slot = format!("{{{}:{name}}}", self.prefix);
        Keys { live: format!("{slot}:live"), kept: format!("{slot}:kept") }
    }

    async fn try_acquire(&self, request: &Acquire) -> Result<Acquired, StoreError> {
        check_note(request.note.as_deref())?;
        let Acquire { name, claim, owner, ttl, session, note, create, .. } = request;
        let expected = match request.expected {
            None => String::new(),
            Some(Expected::Absent) => "absent".to_owned(),
            Some(Expected::Term(term)) => term.to_string(),
        };
        // An empty version is nobody's.
        let takeover = request.takeover.as_ref().map_or("", |version| version.0.as_str());
        let mut call = self.call(&scripts().acquire, name);
        call.arg(claim.to_string())
            .arg(owner.to_string())
            .arg(millis(*ttl))
            .arg(session.as_ref().map_or("", |session| session.name.as_str()))
            .arg(session.as_ref().map_or(String::new(), |session| session.term.to_string()))
            .arg(if note.is_some() { "1" } else { "0" })
            .arg(note.as_deref().unwrap_or_default())
            .arg(if *create { "1" } else { "0" })
            .arg(takeover)
            .arg(expected)
            .arg(request.above.to_string())
            .arg(channel(&self.prefix))
            .arg(name.as_str());
        let answer = self.link.run(Age::Any, &call).await?;
        match word(name, &answer)? {
            ("won", [term, former @ ..]) => {
                let token = Token::new(number(name, term)?, 0);
                Ok(Acquired::Won { token, former: record(name, former)? })
            }
            ("lost", fields) => Ok(Acquired::Lost(record(name, fields)?)),
            _ => Err(damaged(name)),
        }
    }

    async fn try_renew(&self, request: &Renew) -> Result<Renewed, StoreError> {
        check_note(request.note.as_deref())?;
        let Renew { name, claim, token, known, nonce, ttl, note, .. } = request;
        // No token of a plain lease has a step; this one matches no term.
        let term = if token.step == 0 { token.term.to_string() } else { token.to_string() };
        let mut call = self.call(&scripts().renew, name);
        call.arg(claim.to_string())
            .arg(term)
            .arg(nonce.to_string())
            .arg(millis(*ttl))
            .arg(if note.is_some() { "1" } else { "0" })
            .arg(note.as_deref().unwrap_or_default());
        for nonce in known {
            call.arg(nonce.to_string());
        }
        let age = match request.fresh_connection {
            true => Age::AtMost(FRESH_FOR.min(*ttl / 30)),
            false => Age::Any,
        };
        let answer = self.first_link.run(age, &call).await?;
        match word(name, &answer)? {
            ("yes", _) => Ok(Renewed::Yes),
            ("refused", fields) => Ok(Renewed::Refused(record(name, fields)?)),
            _ => Err(damaged(name)),
        }
    }

    async fn try_release(&self, request: &Release) -> Result<Released, StoreError> {
        let Release { name, claim, known } = request;
        let mut call = self.call(&scripts().release, name);
        call.arg(claim.to_string()).arg(channel(&self.prefix)).arg(name.as_str());
        for nonce in known {
            call.arg(nonce.to_string());
        }
        let answer = self.first_link.run(Age::Any, &call).await?;
        match word(name, &answer)? {
            ("yes", _) => Ok(Released::Yes),
            ("refused", _) => Ok(Released::Refused),
            _ => Err(damaged(name)),
        }
    }

    async fn read_all(&self, names: Vec<LeaseName>) -> Result<Vec<Option<Record>>, StoreError> {
        let mut records = Vec::with_capacity(names.len());
        for names in names.chunks(READ_MAX) {
            // Loading it along spares a second trip when the server does not know it any more.
            let mut pipeline = ::redis::pipe();
            pipeline.load_script(&scripts().read).ignore();
            for name in names {
                pipeline.invoke_script(&self.call(&scripts().read, name));
            }
            let answers = self.link.send(&pipeline).await?;
            for (name, answer) in names.iter().zip(answers) {
                let answer: Vec<Vec<u8>> =
                    ::redis::from_redis_value(answer).map_err(|_| damaged(name))?;
                match word(name, &answer)? {
                    ("read", fields) => records.push(record(name, fields)?),
                    _ => return Err(damaged(name)),
                }
            }
        }
        Ok(records)
    }

    async fn list_names(&self) -> Result<Vec<LeaseName>, StoreError> {
        // The prefix has no character that a pattern gives a meaning to.
        let (head, tail) = (format!("{{{}:", self.prefix), "}:kept");
        let mut names = BTreeSet::new();
        let mut cursor = 0;
        loop {
            let mut scan = ::redis::pipe();
            scan.cmd("SCAN").arg(cursor).arg("MATCH").arg(format!("{head}*{tail}"));
            scan.arg("COUNT").arg(SCAN_COUNT);
            let answer = self.link.send(&scan).await?.into_iter().next();
            let page = answer.map(::redis::from_redis_value::<(u64, Vec<Vec<u8>>)>);
            let Some(Ok((next, keys))) = page else {
                let what = "Redis answered SCAN with something else";
                return Err(StoreError::new(StoreErrorKind::Damaged, what));
            };
            for key in keys {
                let key = String::from_utf8_lossy(&key);
                let name = key.strip_prefix(&head).and_then(|key| key.strip_suffix(tail));
                names.extend(name.and_then(|name| LeaseName::new(name).ok()));
            }
            if next == 0 || names.len() >= LIST_MAX {
                return Ok(names.into_iter().take(LIST_MAX).collect());
            }
            cursor = next;
        }
    }

    fn call<'a>(&self, script: &'a Script, name: &LeaseName) -> ScriptInvocation<'a> {
        let Keys { live, kept } = self.keys(name);
        let mut call = script.prepare_invoke();
        call.key(live).key(kept);
        call
    }
}

impl Backend for RedisStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "redis",
            promise: Promise::BestEffort,
            ttl_min: Duration::from_millis(100),
            ttl_max: Duration::from_secs(24 * 3600),
            ttl_step: Duration::from_millis(1),
            frees_after_ttls: 1,
            pushes: true,
            pushes_renewals: true,
            reads_everything: false,
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
        Box::pin(self.read_all(names))
    }

    fn list(&self) -> Option<Boxed<'_, Result<Vec<LeaseName>, StoreError>>> {
        Some(Box::pin(self.list_names()))
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        let keys = self.keys(name);
        Some(Box::new(RedisWatch::new(Arc::clone(&self.hub), name.clone(), keys)))
    }
}

/// The keys of one lease.
#[derive(Clone)]
struct Keys {
    live: String,
    kept: String,
}

/// What changes when a lease changes hands or is renewed, for each of these.
async fn states(link: &Link, of: &[(LeaseName, Keys)]) -> Result<Vec<Vec<Value>>, StoreError> {
    let mut pipeline = ::redis::pipe();
    for (_, keys) in of {
        pipeline.cmd("HMGET").arg(&keys.kept).arg(&["claim", "state", "nonce"]);
        pipeline.cmd("EXISTS").arg(&keys.live);
    }
    let answers = link.send(&pipeline).await?;
    Ok(answers.chunks(2).map(<[Value]>::to_vec).collect())
}

struct Scripts {
    acquire: Script,
    renew: Script,
    release: Script,
    read: Script,
}

fn scripts() -> &'static Scripts {
    static SCRIPTS: OnceLock<Scripts> = OnceLock::new();
    SCRIPTS.get_or_init(|| {
        let script = |own: &str| Script::new(&format!("{}\n{own}", include_str!("common.lua")));
        Scripts {
            acquire: script(include_str!("acquire.lua")),
            renew: script(include_str!("renew.lua")),
            release: script(include_str!("release.lua")),
            read: script(include_str!("read.lua")),
        }
    })
}

fn channel(prefix: &str) -> String {
    format!("{prefix}:changed")
}

fn millis(ttl: Duration) -> String {
    ttl.as_millis().to_string()
}

/// The first word of a script's answer, and the rest of it.
fn word<'a>(
    name: &LeaseName,
    answer: &'a [Vec<u8>],
) -> Result<(&'a str, &'a [Vec<u8>]), StoreError> {
    let (word, rest) = answer.split_first().ok_or_else(|| damaged(name))?;
    match std::str::from_utf8(word) {
        Ok("newer") => {
            let format = rest.first().map(|format| String::from_utf8_lossy(format));
            Err(records::newer(name, format.unwrap_or_default()))
        }
        Ok("damaged") | Err(_) => Err(damaged(name)),
        Ok(word) => Ok((word, rest)),
    }
}

/// The record that a script returned; see `answer` in common.lua.
fn record(name: &LeaseName, fields: &[Vec<u8>]) -> Result<Option<Record>, StoreError> {
    let [state, rest @ ..] = fields else { return Err(damaged(name)) };
    if state == b"absent" {
        return Ok(None);
    }
    let [
        term,
        claim,
        nonce,
        owner,
        ttl,
        session,
        session_term,
        note,
        version,
        expiry,
        left,
        foreign,
    ] = rest
    else {
        return Err(damaged(name));
    };
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let foreign = (!foreign.is_empty()).then(|| records::foreign(foreign));
    let holder = if state != b"held" {
        None
    } else if foreign.is_some() {
        foreign
    } else {
        let bits = |field: &[u8]| text(field).parse().map_err(|_| damaged(name));
        let session = if session.is_empty() {
            None
        } else {
            let term = number(name, session_term)?;
            let name = LeaseName::new(&text(session)).map_err(|_| damaged(name))?;
            Some(SessionRef { name, term })
        };
        Some(Holder {
            owner: records::owner(&text(owner)),
            claim: Some(bits(claim)?),
            nonce: Some(bits(nonce)?),
            session,
        })
    };
    let left = Duration::from_millis(number(name, left)?);
    Ok(Some(Record {
        version: Version(text(version)),
        token: Token::new(number(name, term)?, 0),
        holder,
        ttl: Duration::from_millis(number(name, ttl)?),
        expiry: if expiry == b"store" { Expiry::ByStore(left) } else { Expiry::ByObservation },
        note: note.clone(),
    }))
}

fn number(name: &LeaseName, field: &[u8]) -> Result<u64, StoreError> {
    let text = std::str::from_utf8(field).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| damaged(name))
}

fn damaged(name: &LeaseName) -> StoreError {
    StoreError::new(
        StoreErrorKind::Damaged,
        format!("the record of {name} in Redis cannot be understood; look at it, and delete it"),
    )
}

/// So many records are read by one pipeline, and one trip.
const READ_MAX: usize = 1000;
/// So many keys Redis goes through in one step of a list.
const SCAN_COUNT: usize = 1000;
/// A connection that was opened within this time is newer than a renewal that has had no answer for
/// long enough to be followed by another.
const FRESH_FOR: Duration = Duration::from_millis(100);
