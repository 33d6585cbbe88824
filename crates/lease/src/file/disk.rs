//! The contract's steps, on a disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use super::content::Content;
use super::domain::Domain;
use super::head::Head;
use super::holdings::{Holdings, lock};
use super::nursery::{self, Nursery};
use super::register::{Draft, Register, Sight, Snapshot, sync_directory};
use super::{driver, trouble};
use crate::backend::{
    Acquire, Acquired, LIST_MAX, Release, Released, Renew, Renewed, StoreError, StoreErrorKind,
};
use crate::clock::Moment;
use crate::record::{Expiry, Holder, Nonce, Record, Token, Version};
use crate::{LeaseName, check_note};

/// A directory of leases, and what this process holds in it.
pub(super) struct Disk {
    pub(super) root: PathBuf,
    domain: Domain,
    pub(super) holdings: Holdings,
    /// Since when a lease is known to have lost its head.
    headless: Mutex<BTreeMap<LeaseName, Moment>>,
}

impl Disk {
    pub(super) fn new(root: PathBuf, domain: Domain) -> Self {
        Self { root, domain, holdings: Holdings::default(), headless: Mutex::default() }
    }

    pub(super) fn register(&self, name: &LeaseName) -> Register {
        Register::at(self.root.join(name.as_str()))
    }

    /// What is left to do may be done after the answer was given, or never.
    pub(super) fn acquire(&self, request: &Acquire) -> Result<(Acquired, Tidy), StoreError> {
        check_note(request.note.as_deref())?;
        let register = self.register(&request.name);
        for _ in 0..RACES_MAX {
            let now = Moment::now();
            let sight = register.sight()?;
            let Sight::Current(snapshot) = sight else {
                let headless = matches!(sight, Sight::Headless);
                if !request.allowed_by(None, false)
                    || headless && self.waits_out(&register, request, now)?
                {
                    return Ok((Acquired::Lost(None), Box::new(|| ())));
                }
                if let Some((token, tidy)) = self.create(&register, request, headless, now)? {
                    return Ok((Acquired::Won { token, former: None }, tidy));
                }
                continue;
            };
            lock(&self.headless).remove(&request.name);
            let former = self.record(&register, &snapshot, now);
            let expired =
                former.holder.is_some() && former.expiry == Expiry::ByStore(Duration::ZERO);
            if !request.allowed_by(Some(&former), expired) {
                return Ok((Acquired::Lost(Some(former)), Box::new(|| ())));
            }
            if let Some((token, tidy)) = self.take(&register, request, snapshot, now)? {
                return Ok((Acquired::Won { token, former: Some(former) }, tidy));
            }
        }
        Err(trouble::busy(register.path()))
    }

    pub(super) fn renew(&self, request: &Renew) -> Result<Renewed, StoreError> {
        check_note(request.note.as_deref())?;
        let register = self.register(&request.name);
        for _ in 0..RACES_MAX {
            let now = Moment::now();
            let snapshot = match register.sight()? {
                Sight::Current(snapshot) => snapshot,
                Sight::Absent => {
                    self.holdings.drop_lock(request.claim);
                    return Ok(Renewed::Refused(None));
                }
                // The work has not ended yet: the lock still tells newcomers to wait.
                Sight::Headless => return Ok(Renewed::Refused(None)),
            };
            if !is_of(&snapshot, request.claim, &request.known)
                || Token::new(snapshot.content.term, 0) != request.token
            {
                let record = self.record(&register, &snapshot, now);
                if !record.is_of(request.claim) {
                    self.holdings.drop_lock(request.claim);
                }
                return Ok(Renewed::Refused(Some(record)));
            }
            if self.prolong(&register, request, &snapshot, now)? {
                return Ok(Renewed::Yes);
            }
        }
        Err(trouble::busy(register.path()))
    }

    pub(super) fn release(&self, request: &Release) -> Result<Released, StoreError> {
        if self.holdings.is_in_flight(request.claim) {
            return Err(StoreError::unavailable(format!(
                "{} is still being acquired under this claim",
                request.name
            )));
        }
        let register = self.register(&request.name);
        for _ in 0..RACES_MAX {
            let released = match register.sight()? {
                Sight::Current(snapshot) if is_of(&snapshot, request.claim, &request.known) => {
                    let released = snapshot.head.released(Nonce::random());
                    if !register.swap(&snapshot.head, &released)? {
                        continue;
                    }
                    register.discard_alive(&snapshot);
                    Released::Yes
                }
                _ => Released::Refused,
            };
            self.holdings.drop_lock(request.claim);
            return Ok(released);
        }
        Err(trouble::busy(register.path()))
    }

    pub(super) fn read(&self, name: &LeaseName) -> Result<Option<Record>, StoreError> {
        let register = self.register(name);
        Ok(match register.sight()? {
            Sight::Current(snapshot) => Some(self.record(&register, &snapshot, Moment::now())),
            Sight::Absent | Sight::Headless => None,
        })
    }

    /// The names of the leases that have a record, also of one that cannot be read.
    pub(super) fn list(&self) -> Result<Vec<LeaseName>, StoreError> {
        let mut names = BTreeSet::new();
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(trouble::failed("list", &self.root, &error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| trouble::failed("list", &self.root, &error))?;
            // The nursery, and what others keep here, are no names of leases.
            let name = entry.file_name().to_str().and_then(|name| LeaseName::new(name).ok());
            let Some(name) = name else { continue };
            let there = entry.file_type().is_ok_and(|kind| kind.is_dir())
                && !matches!(self.register(&name).sight(), Ok(Sight::Absent | Sight::Headless));
            if there && names.insert(name) && names.len() > LIST_MAX {
                names.pop_last();
            }
        }
        Ok(names.into_iter().collect())
    }

    fn record(
        &self,
        register: &Register,
        Snapshot { head, content }: &Snapshot,
        now: Moment,
    ) -> Record {
        let dead = || {
            content.domain.is_same_boot(&self.domain)
                && content.alive.is_some_and(|alive| register.is_dead(head.claim, alive))
        };
        let expiry = if !head.held {
            Expiry::ByStore(Duration::ZERO)
        } else if content.session.is_some() {
            Expiry::ByObservation
        } else if dead() {
            Expiry::ByStore(Duration::ZERO)
        } else if content.domain == self.domain {
            Expiry::ByStore(head.expires.since(now))
        } else {
            Expiry::ByObservation
        };
        Record {
            version: Version(head.to_string()),
            token: Token::new(content.term, 0),
            holder: head.held.then(|| Holder {
                owner: content.owner.clone(),
                claim: Some(head.claim),
                nonce: Some(head.nonce),
                session: content.session.clone(),
            }),
            ttl: content.ttl,
            expiry,
            note: content.note.clone(),
        }
    }

    /// Takes a lease that has a head; `None`: it changed meanwhile.
    fn take(
        &self,
        register: &Register,
        request: &Acquire,
        former: Box<Snapshot>,
        now: Moment,
    ) -> Result<Option<(Token, Tidy)>, StoreError> {
        let term = next_term(former.content.term, request)?;
        let note = request.note.clone().unwrap_or_else(|| former.content.note.clone());
        let number = former.head.number.saturating_add(1);
        let drafts = self.draft(register, request, term, note, number, now);
        let Some(drafts) = or_race(register, drafts)? else { return Ok(None) };
        if !register.is_current(&former.head)? {
            return Ok(None);
        }
        drafts.record.sync().map_err(|error| trouble::failed("sync", register.path(), &error))?;
        let swapped = register.swap(&former.head, &drafts.head);
        if matches!(swapped, Ok(false)) {
            return Ok(None);
        }
        let Drafts { head, content, record, alive } = drafts;
        // Also if it failed: the head may name them.
        let record = record.keep();
        if let Some(alive) = alive {
            self.holdings.keep(&request.name, request.claim, alive.keep());
        }
        swapped?;
        drop(record);
        self.holdings.won(&request.name, request.claim);
        register.sync()?;
        let register = register.clone();
        let tidy = move || {
            register.discard_record(&former);
            register.discard_alive(&former);
            register.sweep(&head, &content);
        };
        Ok(Some((Token::new(term, 0), Box::new(tidy))))
    }

    /// Creates a lease; `None`: somebody else did.
    fn create(
        &self,
        register: &Register,
        request: &Acquire,
        headless: bool,
        now: Moment,
    ) -> Result<Option<(Token, Tidy)>, StoreError> {
        let leftovers = if headless { register.leftovers()? } else { Vec::new() };
        let highest = leftovers.iter().map(|content| content.term).max().unwrap_or(0);
        let term = next_term(highest.max(driver::wall_micros()), request)?;
        let note = request.note.clone().unwrap_or_default();
        let Some(nursery) = or_race(register, Nursery::open(&self.root))? else { return Ok(None) };
        let drafts = self.draft(&nursery.register, request, term, note, 0, now);
        let Some(drafts) = or_race(register, drafts)? else { return Ok(None) };
        let prepared = drafts.record.sync().and_then(|()| nursery.register.begin(&drafts.head));
        if or_race(register, prepared.map(Some))?.is_none() {
            return Ok(None);
        }
        nursery.register.sync_records()?;
        nursery.register.sync()?;
        if headless {
            register.clear();
        }
        let moved = nursery.move_to(register);
        if matches!(moved, Ok(false)) {
            return Ok(None);
        }
        let Drafts { record, alive, .. } = drafts;
        let record = record.keep();
        if let Some(alive) = alive {
            self.holdings.keep(&request.name, request.claim, alive.keep());
        }
        moved.map_err(|error| trouble::failed("create", register.path(), &error))?;
        drop(record);
        self.holdings.won(&request.name, request.claim);
        sync_directory(&self.root)?;
        let root = self.root.clone();
        Ok(Some((Token::new(term, 0), Box::new(move || nursery::sweep(&root)))))
    }

    /// Writes the files that the next head names.
    fn draft(
        &self,
        register: &Register,
        request: &Acquire,
        term: u64,
        note: Vec<u8>,
        number: u64,
        now: Moment,
    ) -> io::Result<Option<Drafts>> {
        let id = Nonce::random();
        let mut alive = None;
        if request.session.is_none() && !request.unattended {
            alive = register.draft_alive(request.claim, id)?;
            if alive.is_none() {
                return Ok(None);
            }
        }
        let content = Content {
            term,
            claim: request.claim,
            owner: request.owner.clone(),
            ttl: request.ttl,
            session: request.session.clone(),
            domain: self.domain.clone(),
            alive: alive.as_ref().map(|alive| alive.identity(id)).transpose()?,
            note,
        };
        let Some(record) = register.draft(id, &content)? else { return Ok(None) };
        let expires = if request.session.is_some() { Moment::NEVER } else { now + request.ttl };
        let head = Head {
            number,
            held: true,
            claim: request.claim,
            record: id,
            nonce: request.claim,
            expires,
        };
        Ok(Some(Drafts { head, content, record, alive }))
    }

    /// Prolongs a tenure that is ours; `false`: it changed meanwhile.
    fn prolong(
        &self,
        register: &Register,
        request: &Renew,
        former: &Snapshot,
        now: Moment,
    ) -> Result<bool, StoreError> {
        let attached = former.content.session.is_some();
        let expires = if attached { Moment::NEVER } else { now + request.ttl };
        let head = former.head.renewed(request.nonce, expires);
        let content = Content {
            ttl: request.ttl,
            domain: self.domain.clone(),
            note: request.note.clone().unwrap_or_else(|| former.content.note.clone()),
            ..former.content.clone()
        };
        if content == former.content {
            return register.swap(&former.head, &head);
        }
        let head = Head { record: Nonce::random(), ..head };
        let Some(draft) = or_race(register, register.draft(head.record, &content))? else {
            return Ok(false);
        };
        draft.sync().map_err(|error| trouble::failed("sync", register.path(), &error))?;
        let swapped = register.swap(&former.head, &head);
        if matches!(swapped, Ok(false)) {
            return Ok(false);
        }
        let record = draft.keep();
        swapped?;
        drop(record);
        register.sync()?;
        register.discard_record(former);
        Ok(true)
    }

    /// Whether the tenure of a deleted head may still be running: somebody is alive there, and it
    /// has not been waited out.
    fn waits_out(
        &self,
        register: &Register,
        request: &Acquire,
        now: Moment,
    ) -> Result<bool, StoreError> {
        if !register.is_anyone_alive()? {
            return Ok(false);
        }
        let longest = register.leftovers()?.iter().map(|content| content.ttl).max();
        let since = *lock(&self.headless).entry(request.name.clone()).or_insert(now);
        Ok(now.since(since) < longest.unwrap_or(request.ttl))
    }
}

/// Deletes what a new tenure replaced, and what killed processes left.
pub(super) type Tidy = Box<dyn FnOnce() + Send>;

/// What is to become of a lease.
struct Drafts {
    head: Head,
    content: Content,
    record: Draft,
    alive: Option<Draft>,
}

fn is_of(Snapshot { head, .. }: &Snapshot, claim: Nonce, known: &[Nonce]) -> bool {
    head.held && head.claim == claim && known.contains(&head.nonce)
}

fn next_term(last: u64, request: &Acquire) -> Result<u64, StoreError> {
    last.max(request.above).checked_add(1).ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Unsuitable,
            format!("there is no term above {} for {}", u64::MAX, request.name),
        )
    })
}

/// A file that vanished under our hands: the lease changed, or was deleted.
fn or_race<T>(register: &Register, result: io::Result<Option<T>>) -> Result<Option<T>, StoreError> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map_err(|error| trouble::failed("write to", register.path(), &error)),
    }
}

/// Each race that is lost means that somebody changed the lease.
const RACES_MAX: usize = 1000;
