//! What a service works on: a database with fences, effects on an outside world, and who works on
//! what at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::Token;

use super::core::{Core, State};
use super::process;

/// What is outside of all processes, besides the store of leases.
#[derive(Default)]
pub(super) struct Outside {
    resources: BTreeMap<String, Resource>,
    effects: Vec<Effect>,
    working: BTreeMap<u64, Activity>,
    next_activity: u64,
}

#[derive(Default)]
struct Resource {
    fence: Option<Token>,
    rows: BTreeMap<String, String>,
}

struct Activity {
    what: String,
    process: usize,
    life: u64,
    /// Its process was stopped meanwhile: nothing is promised about how long it believes.
    was_paused: bool,
}

/// Something that a service did to the outside world: a mail sent, a payment made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// When, since the beginning of the world.
    pub at: Duration,
    /// Which process did it.
    pub by: String,
    /// What it did.
    pub what: String,
}

/// A pretended database whose tables have fences, as
/// [`tenure_lease::fence`] puts them into real ones. Clones are the same one.
#[derive(Clone)]
pub struct Database {
    core: Arc<Core>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

/// A resource whose fence was raised.
#[derive(Clone)]
pub struct Opened {
    core: Arc<Core>,
    resource: String,
    token: Token,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened")
            .field("resource", &self.resource)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// A higher token has raised the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The token that was refused.
    pub token: Token,
    /// The token that stands at the fence.
    pub fence: Token,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: token {} is below the fence, {}", self.token, self.fence)
    }
}

impl std::error::Error for Stale {}

impl Database {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Opens a resource: raises its fence to this token, before anything is read.
    pub async fn open(&self, resource: &str, token: Token) -> Result<Opened, Stale> {
        let opened = Opened { core: self.core.clone(), resource: resource.into(), token };
        opened.at_the_fence(|resource| resource.fence = Some(token)).await?;
        Ok(opened)
    }

    /// Writes a row without looking at the fence: what a service should not do.
    pub async fn write_beside_the_fence(&self, resource: &str, key: &str, value: &str) {
        round_trip(&self.core).await;
        self.core.with(|state| {
            let resource = state.outside.resources.entry(resource.into()).or_default();
            resource.rows.insert(key.into(), value.into());
        });
        round_trip(&self.core).await;
    }

    /// A row as it is, at once: for a test that looks.
    pub fn row(&self, resource: &str, key: &str) -> Option<String> {
        self.core.with(|state| state.outside.resources.get(resource)?.rows.get(key).cloned())
    }
}

impl Opened {
    /// Reads a row.
    pub async fn read(&self, key: &str) -> Result<Option<String>, Stale> {
        self.at_the_fence(|resource| resource.rows.get(key).cloned()).await
    }

    /// Writes a row, unless a higher token has raised the fence.
    pub async fn write(&self, key: &str, value: &str) -> Result<(), Stale> {
        self.at_the_fence(|resource| drop(resource.rows.insert(key.into(), value.into()))).await
    }

    /// Changes a row in one step, and gives out what it became.
    pub async fn change(
        &self,
        key: &str,
        change: impl FnOnce(Option<&str>) -> String,
    ) -> Result<String, Stale> {
        self.at_the_fence(|resource| {
            let changed = change(resource.rows.get(key).map(String::as_str));
            resource.rows.insert(key.into(), changed.clone());
            changed
        })
        .await
    }

    async fn at_the_fence<T>(&self, act: impl FnOnce(&mut Resource) -> T) -> Result<T, Stale> {
        round_trip(&self.core).await;
        let done = self.core.with(|state| {
            let resource = state.outside.resources.entry(self.resource.clone()).or_default();
            match resource.fence {
                Some(fence) if fence > self.token => Err(Stale { token: self.token, fence }),
                _ => Ok(act(resource)),
            }
        });
        round_trip(&self.core).await;
        done
    }
}

/// Half of the way to a database and back.
async fn round_trip(core: &Core) {
    let delay = core.with(|state| Duration::from_millis(state.random.within(1..8)));
    tokio::time::sleep(delay).await;
}

/// Says that work goes on; dropped when it has ended.
pub struct Working {
    core: Arc<Core>,
    number: u64,
}

impl std::fmt::Debug for Working {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Working").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.core.with(|state| state.outside.working.remove(&self.number));
    }
}

impl Working {
    /// This process works on something that only one may work on at a time.
    pub(super) fn begin(core: &Arc<Core>, process: usize, what: &str) -> Self {
        let number = core.with(|state| state.begin_work(process, what));
        Self { core: core.clone(), number }
    }
}

impl State {
    fn begin_work(&mut self, process: usize, what: &str) -> u64 {
        let conflict = self.outside.working.values().find(|other| {
            other.what == what
                && !other.was_paused
                && self.processes[other.process].is_running
                && self.processes[other.process].life == other.life
        });
        if let Some(other) = conflict {
            let (one, two) = (self.name(other.process), self.name(process));
            self.violated(format!("{what} works on {one} and on {two} at a time"));
        }
        let was_paused = self.processes[process].is_paused;
        let life = self.processes[process].life;
        self.outside.next_activity += 1;
        let number = self.outside.next_activity;
        let activity = Activity { what: what.into(), process, life, was_paused };
        self.outside.working.insert(number, activity);
        number
    }

    /// From now on nothing is promised about what this process still does.
    pub(super) fn excuse(&mut self, process: usize) {
        for activity in self.outside.working.values_mut().filter(|it| it.process == process) {
            activity.was_paused = true;
        }
    }

    /// Who works on something, by name.
    pub(super) fn workers(&self, what: &str) -> Vec<String> {
        let all = self.outside.working.values().filter(|it| it.what == what);
        all.map(|it| self.name(it.process)).collect()
    }

    pub(super) fn effect(&mut self, what: String) {
        let by = process::current().map_or_else(|| "world".to_owned(), |it| self.name(it));
        self.tell(&by, format!("effect: {what}"));
        self.outside.effects.push(Effect { at: self.now, by, what });
    }

    pub(super) fn effects(&self) -> &[Effect] {
        &self.outside.effects
    }
}
