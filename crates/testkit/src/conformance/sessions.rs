//! Many leases, one renewal: what is attached to a session lives and dies with it, and is proved by
//! reading it.

use tenure_lease::{Loss, Moment, Session, Settings};

use super::context::{Checked, Context, Stop, failed, sleep_until, within};
use super::replies::holds;
use crate::faults::{Faults, Operation, Outage};

checks![
    attached_leases_die_with_their_session,
    a_released_session_frees_what_was_attached,
    a_dropped_session_is_given_back,
    an_attached_lease_is_released_alone,
    a_deleted_attached_record_is_noticed,
    a_stolen_attached_record_is_noticed,
];

/// When a session's process is cut off, its attached leases are lost in time; whoever wants one
/// takes the session's own record over first, so that all of them end at once.
async fn attached_leases_die_with_their_session(cx: Context) -> Checked {
    let (session, faults, name) = session(&cx, "dies").await?;
    let (first, second) = (cx.name("dies-first"), cx.name("dies-second"));
    let attached = [
        session.lease(first.as_str()).note(b"kept".to_vec()).acquire().await?,
        session.lease(second.as_str()).acquire().await?,
    ];
    let term = session.tenure().token().term;
    let rivals = cx.factory.open().await;
    let rival = cx.lease(&rivals, &cx.name("rival-session"), "b").session().await?;
    let plain = cx.lease(&rivals, &second, "b");
    let lost = async {
        // Longer than any lease lasts that is not renewed; the session is.
        let later = sleep_until(Moment::now() + cx.ttl().mul_f64(1.4));
        holds(&attached[0], holds(&attached[1], later)).await??;
        faults.outage(Some(Outage::Hangs));
        let losses = tokio::join!(attached[0].lost(), attached[1].lost());
        Ok::<_, Stop>((losses, Moment::now()))
    };
    let won = async {
        let (a, b) = tokio::join!(rival.lease(first.as_str()).acquire(), plain.acquire());
        (a, b, Moment::now(), attached.iter().any(|tenure| tenure.is_held()))
    };
    let both = async { tokio::join!(lost, won) };
    let limit = cx.frees_within() * 3;
    let (lost, (a, b, won_at, overlapped)) = within(limit, "lost and won", both).await?;
    let ((losses, lost_at), a, b) = (lost?, a?, b?);
    ensure!(!overlapped && lost_at <= won_at, "two held them: won {won_at:?}, lost {lost_at:?}");
    let expired = |loss: &Loss| matches!(loss, Loss::Expired | Loss::Paused);
    ensure!(expired(&losses.0) && expired(&losses.1), "the reasons are {losses:?}");
    let client = cx.client().await;
    let record = client.record(&name).await?;
    ensure!(
        record.token.term > term,
        "the attached leases were taken, and their session still has term {term}"
    );
    ensure!(a.token() > attached[0].token(), "token {} again", a.token());
    ensure!(b.token() > attached[1].token(), "token {} again", b.token());
    let note = client.record(&first).await?.note;
    ensure!(note == b"kept" && a.note() == b"kept", "the note became {note:?}");
    Ok(())
}

/// A session that is given back frees all that was attached, without anybody's waiting.
async fn a_released_session_frees_what_was_attached(cx: Context) -> Checked {
    let (session, _, _) = long_session(&cx, "gives-back").await?;
    let name = cx.name("gives-back-attached");
    let attached = session.lease(name.as_str()).acquire().await?;
    let guarded = tokio::spawn(async move { attached.lost().await });
    within(cx.slack(), "given back", session.release()).await?;
    let loss = guarded.await.map_err(|error| failed(error.to_string()))?;
    ensure!(loss == Loss::Released, "the reason is {loss}");
    let store = cx.factory.open().await;
    let next = cx.lease(&store, &name, "b");
    drop(within(cx.slack(), "the next tenure", next.acquire()).await??);
    Ok(())
}

/// A session that is dropped is given back as well.
async fn a_dropped_session_is_given_back(cx: Context) -> Checked {
    let (session, _, name) = long_session(&cx, "dropped-session").await?;
    drop(session);
    cx.client().await.released(&cx, &name).await?;
    Ok(())
}

/// One attached lease can be given back without its session.
async fn an_attached_lease_is_released_alone(cx: Context) -> Checked {
    let (session, _, _) = long_session(&cx, "alone").await?;
    let (goes, stays) = (cx.name("alone-goes"), cx.name("alone-stays"));
    let going = session.lease(goes.as_str()).acquire().await?;
    let staying = session.lease(stays.as_str()).acquire().await?;
    within(cx.slack(), "given back", going.release()).await?;
    let client = cx.client().await;
    client.win(cx.request(&goes, "b")).await?;
    client.lose(cx.request(&stays, "b")).await?;
    ensure!(staying.is_held() && session.tenure().is_held(), "the session went along");
    Ok(())
}

/// A session's renewal does not show that an attached record is gone; reading it does, within the
/// proof interval. The session lives on.
async fn a_deleted_attached_record_is_noticed(cx: Context) -> Checked {
    let (session, faults, _) = session(&cx, "proves").await?;
    let (gone, stays) = (cx.name("proves-gone"), cx.name("proves-stays"));
    let attached = session.lease(gone.as_str()).acquire().await?;
    let staying = session.lease(stays.as_str()).acquire().await?;
    proved(&cx, &faults).await?;
    cx.delete(&gone).await?;
    let limit = cx.settings().proof_interval + cx.slack() / 4;
    let loss = within(limit, "lost", attached.lost()).await?;
    ensure!(loss == Loss::Deleted, "the reason is {loss:?}");
    let later = sleep_until(Moment::now() + cx.settings().proof_interval);
    holds(&staying, later).await?;
    ensure!(session.tenure().is_held(), "the session went along");
    Ok(())
}

/// The same for one that another took.
async fn a_stolen_attached_record_is_noticed(cx: Context) -> Checked {
    let (session, faults, _) = session(&cx, "proves").await?;
    let name = cx.name("proves-stolen");
    let attached = session.lease(name.as_str()).acquire().await?;
    proved(&cx, &faults).await?;
    let thief = cx.client().await;
    let stolen = thief.steal(&cx.request(&name, "thief")).await?;
    let limit = cx.settings().proof_interval + cx.slack() / 4;
    let loss = within(limit, "lost", attached.lost()).await?;
    ensure!(matches!(&loss, Loss::Stolen { by: Some(by) } if by.name == "thief"), "it is {loss:?}");
    within(cx.slack(), "given back", attached.release()).await?;
    let record = thief.record(&name).await?;
    ensure!(record.is_of(stolen.claim), "the deposed holder left {record:?}");
    ensure!(session.tenure().is_held(), "the session went along");
    Ok(())
}

/// Waits until the attached records were read once more.
async fn proved(cx: &Context, faults: &Faults) -> Checked {
    let read = faults.counts().applied(Operation::Read) + 1;
    let limit = cx.settings().proof_interval + cx.slack();
    within(limit, "a sweep", faults.counts().reached(Operation::Read, read)).await
}

type Opened = (Session, Faults, tenure_lease::LeaseName);

async fn session(cx: &Context, stem: &str) -> Checked<Opened> {
    let (faults, name) = (cx.faults().await, cx.name(stem));
    let session = cx.lease(&faults.store(), &name, "a").session().await?;
    Ok((session, faults, name))
}

/// One that does not end by time within the check.
async fn long_session(cx: &Context, stem: &str) -> Checked<Opened> {
    let (faults, name) = (cx.faults().await, cx.name(stem));
    let settings = Settings { ttl: cx.long_ttl(), ..cx.settings() };
    let session = cx.lease(&faults.store(), &name, "a").settings(settings).session().await?;
    Ok((session, faults, name))
}
