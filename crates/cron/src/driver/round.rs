//! One tenure: does what the core says, until it is over.
#![allow(clippy::disallowed_methods)]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::{LeaseError, Moment, Settings, Store, Tenure};
use tokio::sync::watch;

use super::{CurrentRun, sleep_until, sleep_until_wall, wall_clock};
use crate::ledger::Ledger;
use crate::orders::Orders;
use crate::plan::Job;
use crate::round::{JobRound, RoundEffect, RoundEvent, SlotRun, WriteAnswer};
use crate::scheduled::{CronError, SlotRunner};
use crate::{SlotId, WallTime, telemetry};

/// Why a round is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundOver {
    /// Nothing is to be done before this time: the lease is to be given back.
    Rested(Option<WallTime>),
    /// The process was told to stop.
    Stopped,
    /// The lease was lost.
    Lost,
}

/// What a round has to do with.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) job: &'a Arc<Job>,
    pub(super) tenure: &'a Tenure,
    pub(super) store: &'a Store,
    pub(super) timing: &'a Settings,
}

pub(super) async fn keep_round<R: SlotRunner>(
    context: Context<'_>,
    read_orders: Orders,
    orders: &mut watch::Receiver<Arc<Orders>>,
    mut stop: Pin<&mut impl Future<Output = String>>,
    runner: &mut R,
) -> Result<RoundOver, CronError> {
    let Context { job, tenure, timing, .. } = context;
    let (owner, term) = (tenure.owner().name.clone(), tenure.token().term);
    let ledger = Ledger::parse(tenure.note())?;
    let mut round = JobRound::new(Arc::clone(job), owner, term, ledger, read_orders, wall_clock());
    let mut is_stopped = false;
    loop {
        let effect = round.poll(Moment::now(), wall_clock());
        report(job, &mut round);
        match effect {
            Some(RoundEffect::WriteLedger(ledger)) => match write(context, ledger).await {
                Written::Answer(answer) => round.handle_write_answer(answer),
                Written::Over => return Ok(RoundOver::Lost),
                Written::Refused(error) => return Err(error.into()),
            },
            Some(RoundEffect::ReadLedger) => match read_back(context).await {
                ReadBack::Ours(note) => round.handle_read_answer(note.as_deref()),
                ReadBack::Over => return Ok(RoundOver::Lost),
            },
            // The process may have stood still since the claim was answered.
            Some(RoundEffect::StartRun(_)) if !tenure.is_held() => return Ok(RoundOver::Lost),
            Some(RoundEffect::StartRun(run)) => {
                let over =
                    carry_run(context, run, &mut round, stop.as_mut(), &mut is_stopped, runner);
                if over.await {
                    return Ok(RoundOver::Lost);
                }
            }
            // It is said while something runs, and taken in there.
            Some(RoundEffect::StopRun(_)) => {}
            Some(RoundEffect::Release) => return Ok(RoundOver::Stopped),
            None => {
                let until = round.rests_until();
                if let Some(until) = until
                    && !is_soon(until, timing.ttl)
                {
                    return Ok(RoundOver::Rested(until));
                }
                tokio::select! {
                    biased;
                    why = stop.as_mut(), if !is_stopped => {
                        is_stopped = true;
                        round.handle_terminate(why);
                    }
                    _ = tenure.lost() => return Ok(RoundOver::Lost),
                    () = sleep_until_wall(until.flatten()), if until.is_some() => {}
                    () = sleep_until(round.wake_at()) => {}
                    Ok(()) = orders.changed() => {
                        let latest = Orders::clone(&orders.borrow_and_update());
                        round.handle_orders(latest);
                    }
                }
            }
        }
    }
}

/// Whether the lease is held until the next slot.
fn is_soon(until: Option<WallTime>, ttl: Duration) -> bool {
    until.is_some_and(|until| until.since(wall_clock()) <= ttl)
}

/// Runs one attempt to its end; whether the lease was lost.
async fn carry_run<R: SlotRunner>(
    context: Context<'_>,
    run: SlotRun,
    round: &mut JobRound,
    mut stop: Pin<&mut impl Future<Output = String>>,
    is_stopped: &mut bool,
    runner: &mut R,
) -> bool {
    let Context { job, tenure, .. } = context;
    let began = Moment::now();
    let (stop_sender, stop_receiver) = watch::channel(false);
    let current = CurrentRun { tenure, run, stop: stop_receiver };
    let mut work = pin!(runner.run_slot(&current));
    let mut tick = tokio::time::interval(TOLD_EVERY);
    let mut is_lost = false;
    let end = loop {
        tokio::select! {
            biased;
            end = &mut work => break Some(end),
            _ = tenure.lost(), if !is_lost => {
                is_lost = true;
                stop_sender.send_replace(true);
            }
            // Whoever runs it has stopped it by now, or it is dropped where it awaits.
            () = tokio::time::sleep(tenure.time_to_stop()), if is_lost => break None,
            why = stop.as_mut(), if !*is_stopped => {
                *is_stopped = true;
                round.handle_terminate(why);
            }
            () = sleep_until(round.wake_at()) => {}
            _ = tick.tick() => {
                telemetry::running(job.name(), Moment::now().since(began).as_secs_f64());
            }
        }
        if let Some(RoundEffect::StopRun(cause)) = round.poll(Moment::now(), wall_clock()) {
            tracing::warn!(job = job.name(), slot = %current.slot(), ?cause, "stopping the run");
            stop_sender.send_replace(true);
        }
    };
    telemetry::running(job.name(), 0.0);
    match end {
        Some(end) if !is_lost && tenure.is_held() => {
            round.handle_run_end(Moment::now(), wall_clock(), end);
            false
        }
        _ => true,
    }
}

enum Written {
    Answer(WriteAnswer),
    Over,
    Refused(LeaseError),
}

async fn write(context: Context<'_>, ledger: Vec<u8>) -> Written {
    let Context { tenure, timing, .. } = context;
    match tokio::time::timeout(timing.operation_timeout, tenure.write_note(ledger)).await {
        Ok(Ok(())) => Written::Answer(WriteAnswer::Written),
        Ok(Err(LeaseError::Over(_))) => Written::Over,
        Ok(Err(error)) => Written::Refused(error),
        Err(_) => Written::Answer(WriteAnswer::Unknown),
    }
}

enum ReadBack {
    /// The note of this tenure's record; `None` if it could not be read.
    Ours(Option<Vec<u8>>),
    Over,
}

async fn read_back(context: Context<'_>) -> ReadBack {
    let Context { job, tenure, store, timing } = context;
    let read = tokio::time::timeout(timing.operation_timeout, store.inspect(job.name()));
    let answer = tokio::select! {
        biased;
        _ = tenure.lost() => return ReadBack::Over,
        answer = read => answer,
    };
    match answer {
        Ok(Ok(Some(record))) if record.is_of(tenure.claim()) => ReadBack::Ours(Some(record.note)),
        Ok(Ok(_)) => ReadBack::Over,
        Ok(Err(_)) | Err(_) => {
            tokio::time::sleep(READ_AGAIN).await;
            ReadBack::Ours(None)
        }
    }
}

/// Logs and counts what was claimed and settled.
fn report(job: &Job, round: &mut JobRound) {
    let name = job.name();
    for event in round.take_events() {
        match event {
            RoundEvent::Claimed(open) => {
                if let SlotId::At(slot) = open.slot
                    && open.attempt == 1
                {
                    let late = wall_clock().since(WallTime::of(slot));
                    telemetry::late(name, late.as_secs_f64());
                }
                telemetry::overdue(name, 0.0);
                tracing::info!(job = name, slot = %open.slot, attempt = open.attempt, "claimed");
            }
            RoundEvent::WillRetry(open) => {
                tracing::warn!(job = name, slot = %open.slot, attempt = open.attempt, "failed; will retry");
            }
            RoundEvent::Settled(line) => {
                telemetry::settled(name, &line);
                let (slot, count, outcome) = (line.slot, line.count, &line.outcome);
                tracing::info!(job = name, %slot, count, %outcome, "settled");
            }
        }
    }
}

/// How often the time of a run is told.
const TOLD_EVERY: Duration = Duration::from_secs(1);
const READ_AGAIN: Duration = Duration::from_millis(500);
