//! Drives a session and everything attached to it.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::lease::{Begun, Terms};
use super::liveness::Ping;
use super::{
    Cell, Countdown, Flights, Offer, State, Wants, Watches, tell, tell_outcome, wait_until,
};
use crate::clock::Moment;
use crate::keeper::{AttachId, Event, Session, SessionEvent, SessionFlight};
use crate::record::Nonce;
use crate::watchdog::Watchdog;
use crate::{LeaseError, LeaseName, Loss, telemetry};

/// What the holders of attached leases ask for.
pub(crate) enum Command {
    /// Contend for one.
    Attach {
        /// Which the others name.
        number: u64,
        name: LeaseName,
        note: Option<Vec<u8>>,
        cell: Arc<Cell>,
        state: watch::Sender<State>,
        offer: Arc<Offer>,
    },
    /// Whether it may be taken has changed.
    Allow(u64),
    /// Lose it, for this reason.
    GiveUp(u64, Loss),
    /// What it guarded has ended, or nobody wants it any more.
    Detach(u64),
}

struct Attachment {
    number: u64,
    cell: Arc<Cell>,
    state: watch::Sender<State>,
    offer: Arc<Offer>,
    held: bool,
}

/// Contends for the session, holds it and what is attached, gives all of it back.
pub(crate) async fn keep_session(
    terms: Terms,
    cell: Arc<Cell>,
    state: watch::Sender<State>,
    mut wants: watch::Receiver<Wants>,
    offer: Arc<Offer>,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let Terms { backend, wish, settings, once: _, liveness, watchdog } = terms;
    let name = wish.name.clone();
    let seed = Nonce::random().bits() as u64;
    let mut session =
        Session::new(wish, settings.clone(), seed, Moment::now()).at_store(&backend.info());
    let timeouts = (settings.operation_timeout, session.keeper().renew_timeout());
    let mut flights = Flights::new(Arc::clone(&backend), timeouts.0, timeouts.1);
    let mut watches = Watches::new(backend);
    let mut watches_at = Moment::ZERO;
    let mut attachments: BTreeMap<AttachId, Attachment> = BTreeMap::new();
    let mut numbers: BTreeMap<u64, AttachId> = BTreeMap::new();
    // Whose offer is to be looked at.
    let mut called: Vec<AttachId> = Vec::new();
    let mut held: usize = 0;
    // A deadline moved, and the watchdog has to follow.
    let mut moved = false;
    let mut guard: Option<Watchdog> = None;
    let mut sign = Ping::default();
    let mut wanted = true;
    let mut countdown = Countdown::new(&name);

    loop {
        while let Some((flight, request)) = session.poll(Moment::now(), Nonce::random()) {
            match flight {
                SessionFlight::Sweep(_) => {
                    flights.send_within(session.sweep_timeout(), flight, request);
                }
                _ => flights.send(flight, request),
            }
        }
        while let Some(event) = session.next_event() {
            match event {
                SessionEvent::Session(Event::Won { token, claim, note, former, deadlines }) => {
                    tracing::info!(session = %name, %token, "session won");
                    telemetry::won(&name, token, former.as_ref());
                    if watchdog {
                        guard = Some(Watchdog::new());
                    }
                    cell.set(deadlines);
                    moved = true;
                    let begun = Begun { token, claim, note, former };
                    tell_outcome(&offer, &state, Ok(Some(begun)));
                }
                SessionEvent::Session(Event::Renewed(deadlines)) => {
                    cell.set(deadlines);
                    moved = true;
                }
                SessionEvent::Session(Event::Ping) => {
                    sign = liveness.ask(settings.operation_timeout)
                }
                SessionEvent::Session(Event::NoteWritten(number)) => {
                    tell(&state, |state| state.note = number);
                }
                SessionEvent::Session(Event::Lost(loss)) => {
                    cell.end();
                    // First whom it concerns; a log may be slow.
                    tell(&state, |state| state.loss = Some(loss.clone()));
                    tracing::warn!(session = %name, reason = %loss, "session lost");
                    telemetry::lost(&name, &loss);
                }
                SessionEvent::Session(Event::Unexpected(record)) => {
                    let unexpected = LeaseError::Unexpected(record.map(Box::new));
                    tell_outcome(&offer, &state, Err(unexpected));
                }
                SessionEvent::Session(Event::Trouble(trouble)) => {
                    tell(&state, |state| state.trouble = trouble);
                }
                SessionEvent::Session(Event::Done) => {
                    cell.end();
                    tell(&state, |state| state.done = true);
                    return;
                }
                SessionEvent::Attached(id, event) => {
                    let Some(attachment) = attachments.get_mut(&id) else { continue };
                    moved = true;
                    let before = attachment.held;
                    attachment.happened(event);
                    called.push(id);
                    held = held + usize::from(attachment.held) - usize::from(before);
                    if attachment.state.borrow().done {
                        numbers.remove(&attachment.number);
                        attachments.remove(&id);
                    }
                }
            }
        }
        // Only now, when all that happened is known.
        for id in called.drain(..) {
            if let Some(attachment) = attachments.get_mut(&id) {
                let before = attachment.held;
                attachment.hand_over(&mut session, id);
                held = held + usize::from(attachment.held) - usize::from(before);
            }
        }
        if moved {
            telemetry::attached(&name, held);
        }
        if session.has_events() {
            continue;
        }
        if std::mem::take(&mut moved)
            && let Some(guard) = &guard
        {
            let working = attachments.values().filter(|attachment| attachment.held);
            let earliest = working.map(|attachment| attachment.cell.kill_at()).min();
            guard.arm(cell.kill_at().min(earliest.unwrap_or(Moment::NEVER)));
        }
        countdown.tell(&cell);
        // Ten thousand waiters are worth watching, but not worth listing at every step.
        if Moment::now() >= watches_at {
            watches.set(session.watched());
            watches_at = Moment::now() + WATCHES_EVERY;
        }

        tokio::select! {
            biased;
            (flight, answer) = flights.next() => session.answer(Moment::now(), flight, answer),
            changed = wants.changed(), if wanted => match changed {
                Ok(()) => {
                    let wants = wants.borrow_and_update().clone();
                    if let Some(loss) = wants.give_up {
                        session.give_up_all(Moment::now(), loss);
                    }
                    if let Some((number, note)) = wants.note
                        && number > state.borrow().note
                    {
                        session.write_note(Moment::now(), number, note);
                    }
                }
                Err(_) => {
                    wanted = false;
                    if session.keeper().token().is_some() {
                        tracing::info!(session = %name, "giving the session back");
                        telemetry::lost(&name, &Loss::Released);
                    }
                    session.ended(Moment::now());
                }
            },
            alive = sign.answer() => match alive {
                true => session.pong(Moment::now()),
                false => session.silent(Moment::now()),
            },
            // None once the session's handle and all attached tenures are gone.
            Some(command) = commands.recv() => match command {
                Command::Attach { number, name, note, cell, state: told, offer } => {
                    let attachment = Attachment { number, cell, state: told, offer, held: false };
                    match session.attach(Moment::now(), name, note) {
                        Some(id) => {
                            session.allow(Moment::now(), id, attachment.offer.allowed());
                            numbers.insert(number, id);
                            attachments.insert(id, attachment);
                        }
                        None => {
                            let loss = state.borrow().loss.clone().unwrap_or(Loss::Released);
                            attachment.over(loss);
                        }
                    }
                }
                Command::Allow(number) => {
                    if let Some(id) = numbers.get(&number)
                        && let Some(attachment) = attachments.get(id)
                    {
                        session.allow(Moment::now(), *id, attachment.offer.allowed());
                        called.push(*id);
                        moved = true;
                        // Somebody may wait for what is offered already.
                        tell(&attachment.state, |_| {});
                    }
                }
                Command::GiveUp(number, loss) => {
                    if let Some(id) = numbers.get(&number) {
                        session.give_up(Moment::now(), *id, loss);
                    }
                }
                Command::Detach(number) => {
                    if let Some(id) = numbers.get(&number)
                        && let Some(attachment) = attachments.get_mut(id)
                    {
                        attachment.cell.end();
                        // Its work has ended, whenever the store hears of it.
                        held -= usize::from(std::mem::take(&mut attachment.held));
                        moved = true;
                        session.detach(Moment::now(), *id);
                    }
                }
            },
            names = watches.changed() => {
                names.iter().for_each(|name| session.woken(Moment::now(), name));
            }
            () = wait_until(session.next_at()) => {}
        }
        if !wanted {
            guard.take_if(|_| held == 0);
        }
    }
}

impl Attachment {
    /// Passes an event on.
    fn happened(&mut self, event: Event) {
        match event {
            Event::Won { token, claim, note, former, deadlines } => {
                self.held = true;
                self.cell.set(deadlines);
                let begun = Begun { token, claim, note, former };
                tell_outcome(&self.offer, &self.state, Ok(Some(begun)));
            }
            Event::Renewed(deadlines) => self.cell.set(deadlines),
            Event::Lost(loss) => {
                self.cell.end();
                self.over(loss);
            }
            Event::Trouble(trouble) => tell(&self.state, |state| state.trouble = trouble),
            Event::Done => {
                self.cell.end();
                self.held = false;
                tell(&self.state, |state| state.done = true);
            }
            Event::Ping | Event::NoteWritten(_) | Event::Unexpected(_) => {
                unreachable!("attached leases are not renewed and expect nothing")
            }
        }
    }

    /// It is lost; or its session was, before anything was won.
    fn over(&self, loss: Loss) {
        self.offer.put(Err(LeaseError::Over(loss.clone())));
        tell(&self.state, |state| state.loss = Some(loss));
    }

    /// Declines what was won, if nobody has taken it and nobody should.
    fn hand_over(&mut self, session: &mut Session, id: AttachId) {
        let loss = self.state.borrow().loss.clone();
        if !self.offer.withdraw(loss.is_none()) {
            return;
        }
        self.cell.end();
        self.held = false;
        if session.decline(Moment::now(), id) {
            tell(&self.state, |state| state.loss = None);
        } else {
            self.over(loss.unwrap_or(Loss::Released));
        }
    }
}

const WATCHES_EVERY: Duration = Duration::from_millis(50);
