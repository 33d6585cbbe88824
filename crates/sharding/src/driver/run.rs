//! An entity at work: one call of its methods, which may take a while.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

use tenure_cluster::messaging::reliable::Delivery;
use tenure_cluster::messaging::{Origin, Received};

use super::turn::LONG;
use crate::id::EntityId;
use crate::{BoxError, Entity, Hosted, StopReason};

/// An entity that exists.
pub(super) struct Cell<E> {
    pub(super) entity: E,
    pub(super) hosted: Hosted,
}

/// One call that goes on in a task of its own.
pub(super) struct Run<E> {
    pub(super) id: EntityId,
    call: Working<E>,
    /// It is expected to keep the thread for long.
    slow: bool,
    /// It did.
    took_long: bool,
    /// Who told what it is at, if it was told.
    pub(super) told: Option<Told>,
}

/// A message that was told, and that is being handled: unless that is finished, it is a dead letter.
/// (Whoever asks is told by the reply.)
pub(super) struct Told {
    /// The node that told it.
    pub(super) from: Origin,
}

type Working<E> = Pin<Box<dyn Future<Output = Left<E>> + Send>>;

/// How a call came out.
pub(super) struct Outcome<E> {
    pub(super) id: EntityId,
    pub(super) result: Left<E>,
}

/// What is left after a call: an entity, none since it has stopped, or none since it has failed.
pub(super) type Left<E> = Result<Option<Box<Cell<E>>>, BoxError>;

impl<E: Entity> Run<E> {
    fn new(id: EntityId, slow: bool, call: Working<E>) -> Self {
        Self { id, call, slow, took_long: false, told: None }
    }

    pub(super) fn start(id: EntityId, cell: Box<Cell<E>>) -> Self {
        let slow = cell.hosted.is_slow();
        Self::new(id, slow, Box::pin(start(cell)))
    }

    pub(super) fn receive(
        id: EntityId,
        cell: Box<Cell<E>>,
        received: Received<E::Message>,
    ) -> Self {
        let slow = cell.hosted.is_slow();
        Self::new(id, slow, Box::pin(receive(cell, received)))
    }

    pub(super) fn stop(id: EntityId, cell: Box<Cell<E>>, reason: StopReason) -> Self {
        let slow = cell.hosted.is_slow();
        Self::new(id, slow, Box::pin(stop(cell, reason)))
    }

    pub(super) fn deliver(
        id: EntityId,
        cell: Box<Cell<E>>,
        message: E::Message,
        delivery: Delivery<()>,
    ) -> Self {
        let slow = cell.hosted.is_slow();
        Self::new(id, slow, Box::pin(deliver(cell, message, delivery)))
    }

    /// Goes on as far as it can without waiting: most calls end here.
    pub(super) fn try_end(mut self) -> Result<Outcome<E>, Self> {
        if self.slow {
            return Err(self);
        }
        match poll_now(self.call.as_mut()) {
            Poll::Ready(result) => Ok(Outcome { id: self.id, result }),
            Poll::Pending => Err(self),
        }
    }
}

impl<E: Entity> Future for Run<E> {
    type Output = Outcome<E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<E>> {
        let began = Instant::now();
        let polled = match self.slow.then(Apart::new).flatten() {
            Some(_apart) => tokio::task::block_in_place(|| poll(self.call.as_mut(), context)),
            None => poll(self.call.as_mut(), context),
        };
        self.took_long |= began.elapsed() >= LONG;
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => {
                Poll::Ready(Outcome::new(self.id.clone(), result, self.took_long))
            }
        }
    }
}

impl<E> Outcome<E> {
    pub(super) fn new(id: EntityId, result: Left<E>, took_long: bool) -> Self {
        if let Ok(Some(cell)) = &result {
            cell.hosted.set_slow(took_long);
        }
        Self { id, result }
    }
}

/// A call that keeps its thread apart: what else waits for that thread goes on at another. So many at a
/// time, on a runtime that can.
struct Apart(usize);

impl Apart {
    fn new() -> Option<Self> {
        if Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
            return None;
        }
        let apart = Self(APART.fetch_add(1, Relaxed));
        (apart.0 < APART_MAX).then_some(apart)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        APART.fetch_sub(1, Relaxed);
    }
}

/// Has entities receive messages, in one place in memory for all calls that do not wait.
pub(super) struct Caller<E: Entity>(Box<dyn Calls<E>>);

impl<E: Entity> Caller<E> {
    pub(super) fn new() -> Self {
        Self(Box::new(Reused { begin: receive::<E>, place: Box::pin(None) }))
    }

    /// The call, or how it came out if it need not wait.
    #[inline]
    pub(super) fn receive(
        &mut self,
        id: EntityId,
        cell: Box<Cell<E>>,
        received: Received<E::Message>,
    ) -> Result<Outcome<E>, Run<E>> {
        match self.0.call(cell, received) {
            Poll::Ready(result) => Ok(Outcome { id, result }),
            Poll::Pending => Err(Run::new(id, false, self.0.take())),
        }
    }
}

/// So that nobody needs to know the type of a call.
trait Calls<E: Entity>: Send {
    fn call(&mut self, cell: Box<Cell<E>>, received: Received<E::Message>) -> Poll<Left<E>>;

    /// The call that waits.
    fn take(&mut self) -> Working<E>;
}

struct Reused<B, F> {
    begin: B,
    place: Pin<Box<Option<F>>>,
}

impl<E, B, F> Calls<E> for Reused<B, F>
where
    E: Entity,
    B: Fn(Box<Cell<E>>, Received<E::Message>) -> F + Send,
    F: Future<Output = Left<E>> + Send + 'static,
{
    fn call(&mut self, cell: Box<Cell<E>>, received: Received<E::Message>) -> Poll<Left<E>> {
        self.place.set(Some((self.begin)(cell, received)));
        let polled = match self.place.as_mut().as_pin_mut() {
            Some(call) => poll_now(call),
            None => Poll::Pending, // Not reached.
        };
        if polled.is_ready() {
            self.place.set(None);
        }
        polled
    }

    fn take(&mut self) -> Working<E> {
        Box::pin(Taken(std::mem::replace(&mut self.place, Box::pin(None))))
    }
}

/// A call that was taken from its place.
struct Taken<F>(Pin<Box<Option<F>>>);

impl<F: Future> Future for Taken<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        match self.0.as_mut().as_pin_mut() {
            Some(call) => call.poll(context),
            None => Poll::Pending, // Not reached: it is taken when it waits.
        }
    }
}

/// Whoever polls it next, and it is polled at once, is woken.
fn poll_now<E>(call: Pin<&mut (impl Future<Output = Left<E>> + ?Sized)>) -> Poll<Left<E>> {
    poll(call, &mut Context::from_waker(Waker::noop()))
}

/// What panicked is dropped with the entity inside.
#[inline]
fn poll<E>(
    call: Pin<&mut (impl Future<Output = Left<E>> + ?Sized)>,
    context: &mut Context<'_>,
) -> Poll<Left<E>> {
    catch_unwind(AssertUnwindSafe(|| call.poll(context)))
        .unwrap_or_else(|_| Poll::Ready(Err("it panicked".into())))
}

/// Makes an entity; a panic there is a failure as any other.
pub(super) fn make<E>(
    make: &(dyn Fn(&str) -> E + Send + Sync),
    hosted: Hosted,
) -> Result<Box<Cell<E>>, BoxError> {
    let made = catch_unwind(AssertUnwindSafe(|| make(hosted.id())));
    match made {
        Ok(entity) => Ok(Box::new(Cell { entity, hosted })),
        Err(_) => Err("it panicked when it was made".into()),
    }
}

/// Drops an entity outside of its calls. If that panics, it costs nobody else: those beside it are still to be
/// dropped, and what they keep of the shard with them.
pub(super) fn discard<E>(cell: Box<Cell<E>>) {
    let (kind, id) = (std::any::type_name::<E>(), cell.hosted.id().to_owned());
    if catch_unwind(AssertUnwindSafe(|| drop(cell))).is_err() {
        tracing::error!(kind, id, "entity panicked when it was dropped");
    }
}

/// What makes entities.
pub(crate) type Factory<E> = Arc<dyn Fn(&str) -> E + Send + Sync>;

/// How many calls keep a thread apart, in this process.
static APART: AtomicUsize = AtomicUsize::new(0);
/// Fewer than a runtime has threads for what blocks.
const APART_MAX: usize = 64;

async fn start<E: Entity>(mut cell: Box<Cell<E>>) -> Left<E> {
    let Cell { entity, hosted } = &mut *cell;
    entity.started(hosted).await?;
    Ok(Some(cell))
}

async fn receive<E: Entity>(mut cell: Box<Cell<E>>, mut received: Received<E::Message>) -> Left<E> {
    let Cell { entity, hosted } = &mut *cell;
    match received.reply.take_receipt() {
        None => entity.receive(received, hosted).await?,
        // Boxed: few have one, and it would make each call larger. Dropped on the way, it says that nobody
        // knows whether this was done.
        Some(receipt) => {
            Box::pin(entity.receive(received, hosted)).await?;
            receipt.handled();
        }
    }
    Ok(Some(cell))
}

async fn deliver<E: Entity>(
    mut cell: Box<Cell<E>>,
    message: E::Message,
    delivery: Delivery<()>,
) -> Left<E> {
    let Cell { entity, hosted } = &mut *cell;
    entity.deliver(message, delivery, hosted).await?;
    Ok(Some(cell))
}

async fn stop<E: Entity>(mut cell: Box<Cell<E>>, reason: StopReason) -> Left<E> {
    cell.entity.stopped(reason).await;
    Ok(None)
}
