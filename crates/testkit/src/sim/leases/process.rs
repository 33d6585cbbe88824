use std::collections::VecDeque;

use tenure_lease::backend::{Answer, Request};
use tenure_lease::keeper::{AttachId, Event, Keeper, Session, SessionEvent, SessionFlight, Wish};
use tenure_lease::{LeaseName, Loss, Moment, Nonce, Owner, Settings, Token};

use crate::sim::clock::Clock;

/// A simulated process: its clock, its keeper and what it does.
pub(super) struct Process {
    pub(super) owner: Owner,
    pub(super) clock: Clock,
    pub(super) agent: Agent,
    pub(super) halted: bool,
    pub(super) halted_until: Moment,
    /// What arrived while it stood still.
    pub(super) inbox: VecDeque<Arrival>,
    /// The work under way, and when it must have ended by its own clock.
    pub(super) active: Option<Token>,
    /// Counts its wake-ups, so that an outdated one does nothing.
    pub(super) wakes: u64,
    /// Counts its lives, so that what was sent by a former one is not answered.
    pub(super) life: u64,
    /// Its runtime does not answer liveness calls for now.
    pub(super) unresponsive: bool,
    /// Until then the store does not answer it, and what it sends is lost or waits.
    pub(super) cut_until: Moment,
    pub(super) cut_loses: bool,
    /// Whether it may take the lease, as far as it knows.
    pub(super) allowed: bool,
    /// It has won, and will decline that.
    pub(super) declines: bool,
    /// The acquisition that it has under way.
    pub(super) acquiring: Option<Flight>,
}

/// What the world brings to a process.
#[allow(clippy::large_enum_variant)] // Most of them are answers.
pub(super) enum Arrival {
    Answer(Flight, Answer),
    Pong,
    Changed(LeaseName),
    Allow(bool),
    WorkEnds(Token),
}

/// The number of a request, whatever sent it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Flight {
    Keeper(u64),
    Session(SessionFlight),
}

/// What happened to the lease that the process wants.
pub(super) enum Happened {
    Won(Token),
    Lost(Loss),
    Ping,
    /// The tenure is over, and a new one may begin.
    Done,
}

pub(super) enum Agent {
    Lease(Box<Keeper>),
    Session {
        session: Box<Session>,
        lease: LeaseName,
        attached: Option<AttachId>,
        allowed: bool,
        over: bool,
    },
}

impl Agent {
    pub(super) fn new(
        lease: LeaseName,
        owner: Owner,
        session: Option<LeaseName>,
        settings: &Settings,
        seed: u64,
        now: Moment,
        allowed: bool,
    ) -> Self {
        match session {
            None => {
                let wish = Wish::new(lease, owner);
                let mut keeper = Keeper::new(wish, settings.clone(), seed, now);
                keeper.allow(now, allowed);
                Self::Lease(Box::new(keeper))
            }
            Some(name) => {
                let wish = Wish::new(name, owner);
                let session = Box::new(Session::new(wish, settings.clone(), seed, now));
                Self::Session { session, lease, attached: None, allowed, over: false }
            }
        }
    }

    pub(super) fn poll(&mut self, now: Moment, fresh: Nonce) -> Option<(Flight, Request)> {
        match self {
            Self::Lease(keeper) => {
                let (flight, request) = keeper.poll(now, fresh)?;
                Some((Flight::Keeper(flight), request))
            }
            Self::Session { session, .. } => {
                let (flight, request) = session.poll(now, fresh)?;
                Some((Flight::Session(flight), request))
            }
        }
    }

    pub(super) fn arrive(&mut self, now: Moment, arrival: Arrival) {
        match (self, arrival) {
            (Self::Lease(keeper), Arrival::Answer(Flight::Keeper(flight), answer)) => {
                keeper.answer(now, flight, answer);
            }
            (Self::Session { session, .. }, Arrival::Answer(Flight::Session(flight), answer)) => {
                session.answer(now, flight, answer);
            }
            (Self::Lease(keeper), Arrival::Pong) => keeper.pong(now),
            (Self::Session { session, .. }, Arrival::Pong) => session.pong(now),
            (Self::Lease(keeper), Arrival::Changed(_)) => keeper.woken(now),
            (Self::Session { session, .. }, Arrival::Changed(name)) => session.woken(now, &name),
            (Self::Lease(keeper), Arrival::Allow(yes)) => keeper.allow(now, yes),
            (Self::Session { session, attached, allowed, .. }, Arrival::Allow(yes)) => {
                *allowed = yes;
                if let Some(id) = *attached {
                    session.allow(now, id, yes);
                }
            }
            (_, Arrival::WorkEnds(_) | Arrival::Answer(..)) => {}
        }
    }

    /// What was won is not wanted now; `false`: it is over anyway.
    pub(super) fn decline(&mut self, now: Moment) -> bool {
        match self {
            Self::Lease(keeper) => {
                keeper.decline(now);
                true
            }
            Self::Session { session, attached, .. } => {
                attached.is_some_and(|id| session.decline(now, id))
            }
        }
    }

    /// The guarded work has ended, or is not wanted any more.
    pub(super) fn work_ended(&mut self, now: Moment) {
        match self {
            Self::Lease(keeper) => keeper.ended(now),
            Self::Session { session, attached, over, .. } => {
                if let Some(id) = attached.take() {
                    session.detach(now, id);
                }
                // Half of the time the whole session would go on; here a tenure takes it along
                // only when it was lost.
                if *over {
                    session.ended(now);
                }
            }
        }
    }

    pub(super) fn next_event(&mut self, now: Moment) -> Option<Happened> {
        match self {
            Self::Lease(keeper) => loop {
                match keeper.next_event()? {
                    Event::Won { token, .. } => return Some(Happened::Won(token)),
                    Event::Lost(loss) => return Some(Happened::Lost(loss)),
                    Event::Ping => return Some(Happened::Ping),
                    Event::Done => return Some(Happened::Done),
                    Event::Renewed(_)
                    | Event::NoteWritten(_)
                    | Event::Unexpected(_)
                    | Event::Trouble(_) => {}
                }
            },
            Self::Session { session, lease, attached, allowed, over } => loop {
                match session.next_event()? {
                    SessionEvent::Session(Event::Won { .. }) => {
                        *attached = attach(session, now, lease, *allowed);
                    }
                    SessionEvent::Session(Event::Lost(loss)) => {
                        *over = true;
                        return Some(Happened::Lost(loss));
                    }
                    SessionEvent::Session(Event::Ping) => return Some(Happened::Ping),
                    SessionEvent::Session(Event::Done) => return Some(Happened::Done),
                    SessionEvent::Attached(id, event) if *attached == Some(id) => match event {
                        Event::Won { token, .. } => return Some(Happened::Won(token)),
                        Event::Lost(loss) => return Some(Happened::Lost(loss)),
                        _ => {}
                    },
                    SessionEvent::Session(_) | SessionEvent::Attached(..) => {}
                }
            },
        }
    }

    pub(super) fn next_at(&self) -> Moment {
        match self {
            Self::Lease(keeper) => keeper.next_at(),
            Self::Session { session, .. } => session.next_at(),
        }
    }

    /// Asks for the lease again, if the session lives on without it.
    pub(super) fn want_again(&mut self, now: Moment) {
        if let Self::Session { session, lease, attached, allowed, over: false } = self
            && attached.is_none()
        {
            *attached = attach(session, now, lease, *allowed);
        }
    }

    /// The token of the tenure that it holds or knows another to hold.
    pub(super) fn sees(&self) -> Option<Token> {
        match self {
            Self::Lease(keeper) => keeper.sees(),
            Self::Session { session, attached, .. } => session.sees((*attached)?),
        }
    }

    pub(super) fn watched(&self) -> Vec<LeaseName> {
        match self {
            Self::Lease(keeper) => keeper.watched(),
            Self::Session { session, .. } => session.watched(),
        }
    }
}

fn attach(
    session: &mut Session,
    now: Moment,
    lease: &LeaseName,
    allowed: bool,
) -> Option<AttachId> {
    let id = session.attach(now, lease.clone(), None)?;
    session.allow(now, id, allowed);
    Some(id)
}
