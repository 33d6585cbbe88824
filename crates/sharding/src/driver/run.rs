//! An entity at work: one call of its methods, which may take a while.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tenure_cluster::Node;
use tenure_cluster::messaging::reliable::Delivery;
use tenure_cluster::messaging::{Received, Reply};

use super::routes::{Back, Item};
use crate::id::EntityId;
use crate::{BoxError, Entity, Hosted, StopReason};

/// An entity that exists.
pub(super) struct Cell<E> {
    pub(super) entity: E,
    pub(super) hosted: Hosted,
}

/// What to do with it.
pub(super) enum Call<M> {
    Start,
    Receive(Item<M>),
    Stop(StopReason),
}

/// One call, from its begin to its end.
pub(super) struct Run<E> {
    id: EntityId,
    call: Pin<Box<dyn Future<Output = Left<E>> + Send>>,
}

/// How a call came out.
pub(super) struct Outcome<E> {
    pub(super) id: EntityId,
    pub(super) result: Left<E>,
}

/// What is left after a call: an entity, none since it has stopped, or none since it has failed.
type Left<E> = Result<Option<Box<Cell<E>>>, BoxError>;

impl<E: Entity> Run<E> {
    pub(super) fn new(cell: Box<Cell<E>>, call: Call<E::Message>, me: &Node) -> Self {
        let id = cell.hosted.entity().clone();
        let call: Pin<Box<dyn Future<Output = _> + Send>> = match call {
            Call::Start => Box::pin(start(cell)),
            Call::Stop(reason) => Box::pin(stop(cell, reason)),
            Call::Receive(Item { from, message, back, .. }) => {
                let from = from.unwrap_or_else(|| me.clone());
                match back {
                    Back::Nobody => {
                        let reply = Reply::nobody();
                        Box::pin(receive(cell, Received { message, from, reply }))
                    }
                    Back::Reply(reply) => {
                        Box::pin(receive(cell, Received { message, from, reply }))
                    }
                    Back::Numbered(delivery) => Box::pin(deliver(cell, message, delivery)),
                }
            }
        };
        Self { id, call }
    }

    /// Goes on as far as it can without waiting: most calls end here.
    pub(super) fn try_end(mut self) -> Result<Outcome<E>, Self> {
        // Whoever polls it next, and it is polled at once, is woken.
        match Pin::new(&mut self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Ok(outcome),
            Poll::Pending => Err(self),
        }
    }
}

impl<E: Entity> Future for Run<E> {
    type Output = Outcome<E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<E>> {
        let call = &mut self.call;
        // What panicked is dropped with the entity inside.
        let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context)));
        let result = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(result)) => result,
            Err(_) => Err("it panicked".into()),
        };
        Poll::Ready(Outcome { id: self.id.clone(), result })
    }
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

/// What makes entities.
pub(crate) type Factory<E> = Arc<dyn Fn(&str) -> E + Send + Sync>;

async fn start<E: Entity>(mut cell: Box<Cell<E>>) -> Left<E> {
    let Cell { entity, hosted } = &mut *cell;
    entity.started(hosted).await?;
    Ok(Some(cell))
}

async fn receive<E: Entity>(mut cell: Box<Cell<E>>, received: Received<E::Message>) -> Left<E> {
    let Cell { entity, hosted } = &mut *cell;
    entity.receive(received, hosted).await?;
    Ok(Some(cell))
}

async fn deliver<E: Entity>(
    mut cell: Box<Cell<E>>,
    message: E::Message,
    delivery: Box<Delivery<()>>,
) -> Left<E> {
    let Cell { entity, hosted } = &mut *cell;
    entity.deliver(message, *delivery, hosted).await?;
    Ok(Some(cell))
}

async fn stop<E: Entity>(mut cell: Box<Cell<E>>, reason: StopReason) -> Left<E> {
    cell.entity.stopped(reason).await;
    Ok(None)
}
