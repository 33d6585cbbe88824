//! Drives one tenure of one lease.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;

use tokio::sync::watch;

use super::liveness::Ping;
use super::{
    Cell, Countdown, Flights, Liveness, Offer, State, Wants, Watches, tell, tell_outcome,
    wait_until,
};
use crate::backend::Backend;
use crate::clock::Moment;
use crate::keeper::{Event, Keeper, Wish};
use crate::record::{Nonce, Record, Token};
use crate::watchdog::Watchdog;
use crate::{LeaseError, Loss, Settings, telemetry};

/// What a tenure is begun with.
pub(crate) struct Terms {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) wish: Wish,
    pub(crate) settings: Settings,
    /// Give up at the first definite no, and at the first missing answer.
    pub(crate) once: bool,
    pub(crate) liveness: Liveness,
    pub(crate) watchdog: bool,
}

/// What a won tenure begins with.
pub(crate) struct Begun {
    pub(crate) token: Token,
    pub(crate) claim: Nonce,
    pub(crate) note: Vec<u8>,
    pub(crate) former: Option<Record>,
}

/// Contends, holds, gives back. How contending came out is put into `offer`.
pub(crate) async fn keep(
    terms: Terms,
    cell: Arc<Cell>,
    state: watch::Sender<State>,
    mut wants: watch::Receiver<Wants>,
    offer: Arc<Offer>,
) {
    let Terms { backend, wish, settings, once, liveness, watchdog } = terms;
    let name = wish.name.clone();
    let seed = Nonce::random().bits() as u64;
    let mut keeper =
        Keeper::new(wish, settings.clone(), seed, Moment::now()).at_store(&backend.info());
    let timeouts = (settings.operation_timeout, keeper.renew_timeout());
    let mut flights = Flights::new(Arc::clone(&backend), timeouts.0, timeouts.1);
    let mut watches = Watches::new(backend);
    let mut guard: Option<Watchdog> = None;
    let mut sign = Ping::default();
    let mut wanted = true;
    let mut countdown = Countdown::new(&name);

    loop {
        keeper.allow(Moment::now(), offer.allowed());
        while let Some((flight, request)) = keeper.poll(Moment::now(), Nonce::random()) {
            flights.send(flight, request);
        }
        while let Some(event) = keeper.next_event() {
            match event {
                Event::Won { token, claim, note, former, deadlines } => {
                    tracing::info!(lease = %name, %token, "lease won");
                    telemetry::won(&name, token, former.as_ref());
                    if watchdog {
                        guard = Some(Watchdog::new());
                    }
                    cell.set(deadlines);
                    guard.iter().for_each(|guard| guard.arm(deadlines.kill));
                    let begun = Begun { token, claim, note, former };
                    tell_outcome(&offer, &state, Ok(Some(begun)));
                }
                Event::Renewed(deadlines) => {
                    cell.set(deadlines);
                    guard.iter().for_each(|guard| guard.arm(deadlines.kill));
                }
                Event::Ping => sign = liveness.ask(settings.operation_timeout),
                Event::NoteWritten(number) => tell(&state, |state| state.note = number),
                Event::Lost(loss) => {
                    cell.end();
                    // First whom it concerns; a log may be slow.
                    tell(&state, |state| state.loss = Some(loss.clone()));
                    tracing::warn!(lease = %name, reason = %loss, "lease lost");
                    telemetry::lost(&name, &loss);
                }
                Event::Unexpected(record) => {
                    let unexpected = LeaseError::Unexpected(record.map(Box::new));
                    tell_outcome(&offer, &state, Err(unexpected));
                }
                Event::Trouble(trouble) => tell(&state, |state| state.trouble = trouble),
                Event::Done => {
                    cell.end();
                    tell(&state, |state| state.done = true);
                    return;
                }
            }
        }
        if offer.withdraw(keeper.token().is_some()) {
            if keeper.token().is_some() {
                tracing::info!(lease = %name, "lease given back, since it is not allowed any more");
                telemetry::lost(&name, &Loss::Released);
            }
            guard = None;
            cell.end();
            tell(&state, |state| state.loss = None);
            keeper.decline(Moment::now());
            continue;
        }
        if keeper.is_contending() && once && !offer.is_answered() {
            let answer = match keeper.trouble() {
                Some(trouble) => Some(Err(trouble.clone().into())),
                None => keeper.lost_once().then_some(Ok(None)),
            };
            if let Some(answer) = answer {
                tell_outcome(&offer, &state, answer);
                keeper.ended(Moment::now());
                continue;
            }
        }
        watches.set(if keeper.lost_once() { keeper.watched() } else { Vec::new() });
        countdown.tell(&cell);

        tokio::select! {
            biased;
            (flight, answer) = flights.next() => keeper.answer(Moment::now(), flight, answer),
            changed = wants.changed(), if wanted => match changed {
                Ok(()) => {
                    let wants = wants.borrow_and_update().clone();
                    // Whether it is allowed may be what has changed, and somebody waits for that.
                    tell(&state, |_| {});
                    keeper.hurry(Moment::now());
                    if let Some(loss) = wants.give_up {
                        keeper.give_up(Moment::now(), loss);
                    }
                    if let Some((number, note)) = wants.note
                        && number > state.borrow().note
                    {
                        keeper.write_note(Moment::now(), number, note);
                    }
                }
                Err(_) => {
                    // The holder is gone: what was guarded has ended.
                    wanted = false;
                    guard = None;
                    cell.end();
                    if keeper.token().is_some() {
                        tracing::info!(lease = %name, "giving the lease back");
                        telemetry::lost(&name, &Loss::Released);
                    }
                    keeper.ended(Moment::now());
                }
            },
            alive = sign.answer() => match alive {
                true => keeper.pong(Moment::now()),
                false => keeper.silent(Moment::now()),
            },
            _ = watches.changed() => keeper.woken(Moment::now()),
            () = wait_until(keeper.next_at()) => {}
        }
    }
}
