//! The formation lease, without a network: who forms a cluster, when, and who does not.

use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::formation::{
    Formation, FormationEffect, FormationNote, FormationObstacle, FormationSight, UnreadableNote,
};
use tenure_cluster::wire::{Control, State};
use tenure_cluster::{Address, Effect, Incarnation, Membership, MembershipSettings, Node, Roles};
use tenure_lease::Moment;
use tenure_lease::record::Version;

const TTL: Duration = Duration::from_secs(5);

fn at(seconds: f64) -> Moment {
    Moment::ZERO + Duration::from_secs_f64(seconds)
}

fn detection() -> f64 {
    MembershipSettings::default().detection().as_secs_f64()
}

fn address(name: &str) -> Address {
    Address::new(&format!("{name}:7400")).unwrap()
}

fn membership(name: &str) -> Membership {
    let me = Node { address: address(name), incarnation: Incarnation(1) };
    Membership::new(me, Roles::default(), Arc::new([]), MembershipSettings::default(), 1)
}

/// What a member of cluster 7 on `n0` wrote when it held the lease under this term.
fn note(member: u64) -> FormationNote {
    let contacts = vec![address("n0"), address("n1")];
    FormationNote { cluster: 7, contacts, member: Some(member), next: None, other: Vec::new() }
}

fn sight(version: u64, term: u64, held: bool, note: FormationNote) -> FormationSight {
    FormationSight { version: Version(version.to_string()), term, held, note: Ok(Some(note)) }
}

/// A node in no cluster, and what it does about the lease.
struct Candidate {
    formation: Formation,
    membership: Membership,
}

impl Candidate {
    fn new() -> Self {
        let settings = MembershipSettings::default();
        Self { formation: Formation::by_lease(TTL, &settings), membership: membership("n9") }
    }

    fn poll(&mut self, seconds: f64) -> Vec<FormationEffect> {
        self.formation.poll(&self.membership, at(seconds))
    }

    fn see(&mut self, seconds: f64, sight: &FormationSight) -> Vec<FormationEffect> {
        self.formation.saw(sight, at(seconds));
        self.poll(seconds)
    }

    fn win(&mut self, seconds: f64, term: u64, note: &FormationNote) -> Vec<FormationEffect> {
        self.formation.won(term, Ok(Some(note.clone())), at(seconds));
        self.poll(seconds)
    }

    fn obstacle(&self, seconds: f64) -> Option<FormationObstacle> {
        self.formation.obstacle(&address("n9"), at(seconds))
    }
}

/// Waits beside a cluster for a long time, wins in the moment in which the leader changes, and wins
/// again right after: it gives the lease back both times, or does not contend.
#[test]
fn who_waited_long_beside_a_cluster_gives_the_lease_back() {
    let mut outsider = Candidate::new();
    outsider.poll(0.0);
    for renewal in 0..60_u64 {
        let seconds = 0.5 + renewal as f64;
        outsider.see(seconds, &sight(renewal, 7, true, note(7)));
        assert_eq!(outsider.obstacle(seconds), Some(FormationObstacle::ClusterLives(7)));
    }
    outsider.see(60.0, &sight(60, 7, false, note(7)));
    let effects = outsider.win(60.1, 8, &note(7));
    assert_eq!(effects, [FormationEffect::Withdraw]);
    // The next leader has taken it; the asking begins anew.
    let effects = outsider.see(60.7, &sight(63, 9, true, note(9)));
    assert_eq!(effects, [FormationEffect::Contend]);
    assert_eq!(outsider.win(60.8, 10, &note(9)), [FormationEffect::Withdraw]);
    for step in 0..200 {
        let seconds = 60.9 + f64::from(step) * 0.05;
        let effects = outsider.see(seconds, &sight(70, 10, false, note(9)));
        let is_over = seconds >= 60.7 + 5.0 + detection();
        assert_eq!(effects.contains(&FormationEffect::Contend), is_over, "{seconds}");
        if is_over {
            return;
        }
    }
    panic!("it never contends again");
}

/// Everybody is dead. The candidates win in turn, and see each other do so.
#[test]
fn candidates_do_not_keep_each_other_waiting() {
    let mut first = Candidate::new();
    first.poll(0.0);
    // What the dead leader left, and then the tenures of other candidates, under its note.
    first.see(0.1, &sight(1, 7, true, note(7)));
    first.see(3.0, &sight(1, 7, true, note(7)));
    assert_eq!(first.win(5.2, 8, &note(7)), [FormationEffect::Withdraw]);
    let mut version = 2;
    let mut seconds = 5.3;
    while seconds < 20.0 {
        version += 1;
        let effects = first.see(seconds, &sight(version, 8 + version, true, note(7)));
        if effects.contains(&FormationEffect::Contend) {
            break;
        }
        seconds += 0.25;
    }
    assert!(seconds < 5.2 + detection() + 0.5, "it waited until {seconds}");
    let effects = first.win(seconds + 0.1, 100, &note(7));
    let own = FormationNote {
        cluster: 100,
        contacts: vec![address("n9")],
        member: Some(100),
        next: None,
        other: Vec::new(),
    };
    assert_eq!(effects, [FormationEffect::WriteNote(own.clone())]);
    first.formation.wrote(own);
    assert_eq!(first.poll(seconds + 0.2).last(), Some(&FormationEffect::Form(100)));
}

/// The store did not answer for longer than the ttl: a member may have held the lease, and has had
/// no chance to take it since.
#[test]
fn what_was_not_seen_does_not_count_as_waiting() {
    let mut outsider = Candidate::new();
    outsider.poll(0.0);
    outsider.see(0.1, &sight(1, 7, false, note(7)));
    assert_eq!(outsider.win(0.2, 8, &note(7)), [FormationEffect::Withdraw]);
    let effects = outsider.see(60.0, &sight(2, 8, false, note(7)));
    assert_eq!(effects, [FormationEffect::Contend], "to win for the first time");
    assert_eq!(outsider.win(60.1, 9, &note(7)), [FormationEffect::Withdraw]);
}

#[test]
fn a_note_that_cannot_be_read_is_not_taken_for_none() {
    let mut candidate = Candidate::new();
    candidate.poll(0.0);
    let unreadable = FormationSight {
        version: Version("1".into()),
        term: 7,
        held: false,
        note: FormationNote::parse(br#"{"format":2}"#),
    };
    assert_eq!(unreadable.note, Err(UnreadableNote));
    assert_eq!(candidate.see(0.1, &unreadable)[0], FormationEffect::Withdraw);
    candidate.formation.won(8, unreadable.note, at(60.0));
    assert_eq!(candidate.poll(60.0)[0], FormationEffect::Withdraw);
    let obstacle = candidate.obstacle(600.0);
    assert_eq!(obstacle, Some(FormationObstacle::Unreadable(UnreadableNote)));
}

/// The leader leaves, and names the next one: a candidate stands back, but not for ever.
#[test]
fn the_lease_is_left_to_the_successor_that_the_note_names() {
    let mut candidate = Candidate::new();
    assert!(candidate.poll(0.0).contains(&FormationEffect::Contend));
    let next = FormationNote { next: Some(address("n1")), ..note(7) };
    let effects = candidate.see(0.5, &sight(1, 7, true, next.clone()));
    assert!(effects.contains(&FormationEffect::Withdraw), "{effects:?}");
    let waits = candidate.see(0.5 + detection() - 0.1, &sight(2, 7, false, next.clone()));
    assert!(!waits.contains(&FormationEffect::Contend), "{waits:?}");
    let late = candidate.see(0.5 + detection() + 0.1, &sight(2, 7, false, next));
    assert!(late.contains(&FormationEffect::Contend), "{late:?}");
}

#[test]
fn too_few_contact_points_form_nothing() {
    let mut candidate = Candidate::new();
    candidate.formation = candidate.formation.contacts_min(2);
    candidate.formation.discovered(vec![address("n9")]);
    assert!(!candidate.poll(0.0).contains(&FormationEffect::Contend));
    let few = FormationObstacle::TooFewContacts { known: 1, required: 2 };
    assert_eq!(candidate.obstacle(0.0), Some(few));
    candidate.formation.discovered(vec![address("n9"), address("n1")]);
    assert!(candidate.poll(1.0).contains(&FormationEffect::Contend));
    assert_eq!(candidate.obstacle(1.0), None);
}

/// A leader that finds another cluster in the note replaces it, and says where that one was; the
/// next leader looks for it there. It may have been paused, and nobody else would ever find it.
#[test]
fn where_another_cluster_was_goes_from_leader_to_leader() {
    let mut leader = membership("n1");
    leader.form(5, at(0.0));
    let mut formation = Formation::by_lease(TTL, &MembershipSettings::default());
    formation.won(8, Ok(Some(note(7))), at(1.0));
    let effects = formation.poll(&leader, at(1.0));
    let own = FormationNote {
        cluster: 5,
        contacts: vec![address("n1")],
        member: Some(8),
        next: None,
        other: note(7).contacts.into_iter().filter(|it| *it != address("n1")).collect(),
    };
    assert!(!own.other.is_empty());
    let (meet, write) =
        (FormationEffect::Meet(note(7).contacts), FormationEffect::WriteNote(own.clone()));
    assert_eq!(effects, [meet, write]);
    formation.wrote(own.clone());

    let mut next = Formation::by_lease(TTL, &MembershipSettings::default());
    next.won(9, Ok(Some(own.clone())), at(2.0));
    let effects = next.poll(&leader, at(2.0));
    let written = FormationNote { member: Some(9), ..own.clone() };
    let (meet, write) = (FormationEffect::Meet(own.other), FormationEffect::WriteNote(written));
    assert_eq!(effects, [meet, write]);
}

/// Only one member was told to look for the other cluster: the others follow its word.
#[test]
fn a_member_that_gives_way_tells_the_others() {
    let (mut leader, mut joiner) = (membership("n1"), membership("n0"));
    leader.form(5, at(0.0));
    joiner.join(vec![address("n1")], at(0.0));
    exchange(&mut leader, &mut joiner, at(0.5));
    assert_eq!(joiner.cluster(), Some(5));
    leader.meet(&[address("n7")]);
    let stranger = Node { address: address("n7"), incarnation: Incarnation(7) };
    joiner.receive(&stranger, Control::Ping { cluster: 7 }, at(1.0));
    assert!(!joiner.is_ended(), "it was not told to look there");
    leader.receive(&stranger, Control::Ping { cluster: 7 }, at(1.0));
    assert!(leader.is_ended());
    deliver(&mut leader, &mut joiner, at(1.0));
    assert!(joiner.is_ended());
}

/// A leader that a lower node takes over from says so in the note before it gives the lease back.
#[test]
fn a_leader_names_the_next_one_before_it_gives_the_lease_back() {
    let (mut leader, mut joiner) = (membership("n1"), membership("n0"));
    leader.form(7, at(0.0));
    joiner.join(vec![address("n1")], at(0.0));
    let mut formation = Formation::by_lease(TTL, &MembershipSettings::default());
    formation.poll(&leader, at(0.0));
    formation.won(9, Ok(Some(note(7))), at(0.0));
    let mut effects = Vec::new();
    for tick in 0..100 {
        let now = at(f64::from(tick) * 0.1);
        exchange(&mut leader, &mut joiner, now);
        effects.extend(formation.poll(&leader, now));
        if leader.leader() == Some(joiner.me()) {
            break;
        }
    }
    let written: Vec<&FormationNote> = effects
        .iter()
        .filter_map(|effect| match effect {
            FormationEffect::WriteNote(note) => Some(note),
            _ => None,
        })
        .collect();
    let last = written.last().expect("a note").to_owned().clone();
    assert_eq!((last.member, last.next.clone()), (Some(9), Some(address("n0"))));
    assert!(!effects.contains(&FormationEffect::Withdraw), "not before it stands there");
    formation.wrote(last);
    assert_eq!(formation.poll(&leader, at(20.0)), [FormationEffect::Withdraw]);
}

/// A node that gave way to cluster 9 is let in by a member of cluster 7, which has not heard of it.
#[test]
fn who_knows_of_a_newer_cluster_refuses_the_welcome_of_an_older() {
    for (newest, joins) in [(9, false), (7, true)] {
        let (mut older, mut joiner) = (membership("n0"), membership("n1"));
        older.form(7, at(0.0));
        joiner.refuse_clusters_below(newest);
        joiner.join(vec![address("n0")], at(0.0));
        let mut welcomes = 0;
        for tick in 0..50 {
            welcomes += exchange(&mut older, &mut joiner, at(f64::from(tick) * 0.1));
        }
        assert_eq!(joiner.cluster().is_some(), joins, "{newest}");
        assert_eq!(welcomes, 1, "it does not ask again and again");
    }
}

/// Both do what is due, and all that they say arrives. Returns how many were let in.
fn exchange(one: &mut Membership, other: &mut Membership, now: Moment) -> usize {
    one.poll(now);
    other.poll(now);
    let mut welcomes = 0;
    for _ in 0..10 {
        welcomes += deliver(one, other, now) + deliver(other, one, now);
    }
    welcomes
}

fn deliver(from: &mut Membership, to: &mut Membership, now: Moment) -> usize {
    let effects: Vec<Effect> = from.effects().collect();
    let mut welcomes = 0;
    for effect in effects {
        let message = match effect {
            Effect::Send(receiver, message) if receiver == *to.me() => message,
            Effect::Greet(receiver, message) if receiver == to.me().address => message,
            _ => continue,
        };
        welcomes += usize::from(matches!(message, Control::Welcome(State { .. }, _)));
        to.receive(from.me(), message, now);
    }
    welcomes
}
