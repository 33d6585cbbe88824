//! Several renewals of one tenure under way at once.

use super::*;
use crate::backend::Request;

/// A record of this very tenure that carries the nonce of one of its renewals.
fn our_record(carried: u128) -> Record {
    let mut record = foreign_record();
    record.token = Token::new(5, 0);
    let holder = record.holder.as_mut().unwrap();
    (holder.owner, holder.claim, holder.nonce) =
        (owner("me"), Some(nonce(1)), Some(nonce(carried)));
    record
}

fn yes() -> Answer {
    Answer::Renew(Ok(Renewed::Yes))
}

fn refused(record: Option<Record>) -> Answer {
    Answer::Renew(Ok(Renewed::Refused(record)))
}

fn deadlines_from(sent: Moment) -> Deadlines {
    Deadlines { lost: sent + Duration::from_millis(7_750), kill: sent + Duration::from_secs(9) }
}

#[test]
fn a_renewal_without_an_answer_is_followed_by_others_on_fresh_connections() {
    let mut keeper = holder();
    let (first, _, renew) = renewal(&mut keeper, 2);
    assert!(!renew.fresh_connection);
    let mut before = first;
    for number in 3..10_u32 {
        let (sent, _, renew) = renewal(&mut keeper, u128::from(number));
        assert!(renew.fresh_connection);
        let known: Vec<_> = (1..number).map(|bits| nonce(u128::from(bits))).collect();
        assert_eq!(renew.known, known, "any of them may stand in the record");
        let most = TTL / 15;
        let doubled = Duration::from_millis(250) * 2_u32.pow(number - 3);
        let pause = sent.since(before);
        assert!(pause <= doubled.min(most) && pause >= doubled.min(most) * 4 / 5, "{pause:?}");
        before = sent;
    }
}

#[test]
fn each_renewal_has_a_sign_of_life_of_its_own() {
    let mut keeper = holder();
    renewal(&mut keeper, 2);
    let now = keeper.next_at();
    keeper.tick(now);
    assert_eq!(events(&mut keeper), [Event::Ping]);
    assert_eq!(keeper.poll(now, nonce(3)), None);
    keeper.pong(now);
    assert!(matches!(keeper.poll(now, nonce(3)), Some((_, Request::Renew(_)))));
    assert_eq!(keeper.poll(now, nonce(4)), None);
}

#[test]
fn the_deadline_counts_from_the_confirmed_send_and_never_moves_back() {
    let mut keeper = holder();
    let (first, early, _) = renewal(&mut keeper, 2);
    let (second, late, _) = renewal(&mut keeper, 3);
    keeper.answer(second, early, yes());
    assert_eq!(events(&mut keeper), [Event::Renewed(deadlines_from(first))]);
    keeper.answer(second, late, yes());
    assert_eq!(events(&mut keeper), [Event::Renewed(deadlines_from(second))]);

    let mut keeper = holder();
    let (_, early, _) = renewal(&mut keeper, 2);
    let (second, late, _) = renewal(&mut keeper, 3);
    keeper.answer(second, late, yes());
    assert_eq!(events(&mut keeper), [Event::Renewed(deadlines_from(second))]);
    keeper.answer(second, early, yes());
    assert_eq!(events(&mut keeper), []);
    assert_eq!(keeper.deadlines(), Some(deadlines_from(second)));
}

#[test]
fn a_confirmed_renewal_leaves_the_later_ones_known() {
    let mut keeper = holder();
    let (_, early, _) = renewal(&mut keeper, 2);
    let (now, _, _) = renewal(&mut keeper, 3);
    keeper.answer(now, early, yes());
    assert_eq!(renewal(&mut keeper, 4).2.known, [nonce(2), nonce(3)]);
}

#[test]
fn a_refusal_that_shows_another_renewal_of_ours_is_no_loss() {
    let mut keeper = holder();
    let (_, early, _) = renewal(&mut keeper, 2);
    let (now, late, _) = renewal(&mut keeper, 3);
    keeper.answer(now, early, refused(Some(our_record(3))));
    assert_eq!(events(&mut keeper), []);
    // Whose answer was lost, and who was refused, may stand in the record.
    let (now, _, renew) = renewal(&mut keeper, 4);
    assert_eq!(renew.known, [nonce(1), nonce(2), nonce(3)]);
    keeper.answer(now, late, yes());
    assert!(matches!(events(&mut keeper)[..], [Event::Renewed(_)]));
}

/// Renewals 2, 3 and 4: 3 was applied, then 2 was refused, then 4 was applied and confirmed. The
/// refusal of 2 comes last.
#[test]
fn a_late_refusal_that_shows_an_older_renewal_of_ours_is_no_loss() {
    let mut keeper = holder();
    let (_, second, _) = renewal(&mut keeper, 2);
    let (_, third, request) = renewal(&mut keeper, 3);
    let (now, fourth, _) = renewal(&mut keeper, 4);
    keeper.answer(now, third, no_answer(&Request::Renew(request)));
    keeper.answer(now, fourth, yes());
    events(&mut keeper);
    keeper.answer(now, second, refused(Some(our_record(3))));
    assert_eq!(events(&mut keeper), []);
}

#[test]
fn a_refusal_that_shows_a_clone_is_final_also_when_it_comes_late() {
    for record in [Some(our_record(99)), Some(foreign_record()), None] {
        let mut keeper = holder();
        let (_, early, _) = renewal(&mut keeper, 2);
        let (now, late, _) = renewal(&mut keeper, 3);
        keeper.answer(now, late, yes());
        events(&mut keeper);
        keeper.answer(now, early, refused(record));
        assert!(matches!(events(&mut keeper)[..], [Event::Lost(_)]));
    }
}

#[test]
fn what_is_given_back_names_every_renewal_that_may_stand_in_the_record() {
    let mut keeper = holder();
    for number in 2..5 {
        renewal(&mut keeper, number);
    }
    let now = keeper.next_at();
    keeper.ended(now);
    let Some((_, Request::Release(release))) = keeper.poll(now, nonce(9)) else { panic!() };
    assert_eq!(release.known, [1, 2, 3, 4].map(nonce));
}

#[test]
fn a_note_is_written_once_by_whichever_renewal_is_confirmed_first() {
    let mut keeper = holder();
    keeper.write_note(seconds(0.2), 7, vec![1]);
    let note_of = |keeper: &mut Keeper, fresh| {
        let (now, flight, renew) = renewal(keeper, fresh);
        assert_eq!(renew.note, Some(vec![1]));
        (now, flight)
    };
    let mut flights = Vec::new();
    events(&mut keeper);
    keeper.pong(seconds(0.2));
    let Some((flight, Request::Renew(renew))) = keeper.poll(seconds(0.2), nonce(2)) else {
        panic!()
    };
    assert_eq!(renew.note, Some(vec![1]));
    flights.push(flight);
    let (now, flight) = note_of(&mut keeper, 3);
    keeper.answer(now, flight, yes());
    let told = events(&mut keeper);
    assert!(matches!(told[..], [Event::Renewed(_), Event::NoteWritten(7)]), "{told:?}");
    keeper.answer(now, flights[0], yes());
    assert_eq!(events(&mut keeper), [], "it is no news");
    assert_eq!(renewal(&mut keeper, 4).2.note, None);
}

/// An outage that begins at any moment and lasts for half a ttl.
#[test]
fn an_outage_of_half_a_ttl_ends_no_tenure_whenever_it_begins() {
    for phase in 0..200 {
        let mut keeper =
            Keeper::new(Wish::new(name("a"), owner("me")), Settings::new(TTL), phase, seconds(0.0));
        let (flight, _) = keeper.poll(seconds(0.0), nonce(1)).unwrap();
        keeper.answer(seconds(0.0), flight, won(5));
        let away = seconds(20.0 + phase as f64 / 50.0);
        let back = away + TTL / 2;
        let mut fresh = 1;
        while keeper.next_at() < seconds(60.0) {
            let now = keeper.next_at();
            keeper.tick(now);
            for event in events(&mut keeper) {
                match event {
                    Event::Ping => keeper.pong(now),
                    Event::Lost(loss) => panic!("phase {phase}: {loss} at {now:?}"),
                    _ => {}
                }
            }
            fresh += 1;
            if let Some((flight, _)) = keeper.poll(now, nonce(fresh))
                && (now < away || now > back)
            {
                keeper.answer(now, flight, yes());
            }
        }
    }
}
