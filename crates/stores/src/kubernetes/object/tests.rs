use serde_json::json;

use tenure_lease::Owner;

use super::*;
use crate::records::samples;

fn object(value: serde_json::Value) -> LeaseObject {
    let mut value = value;
    value["metadata"]["uid"] = "u".into();
    value["metadata"]["name"] = "cron".into();
    if value["metadata"]["resourceVersion"].is_null() {
        value["metadata"]["resourceVersion"] = "500".into();
    }
    serde_json::from_value(value).unwrap()
}

fn request(owner: &str) -> Acquire {
    Acquire {
        name: LeaseName::new("cron").unwrap(),
        claim: Nonce::from_bits(7),
        owner: Owner { name: owner.to_owned(), incarnation: 1 },
        ttl: Duration::from_secs(15),
        session: None,
        note: Some(b"note".to_vec()),
        create: true,
        takeover: None,
        expected: None,
        above: 0,
        unattended: false,
    }
}

fn held() -> LeaseObject {
    let mut unheld = LeaseObject::unheld(&LeaseName::new("cron").unwrap());
    unheld.metadata.uid = Some("u".to_owned());
    unheld.metadata.resource_version = Some("500".to_owned());
    assert_eq!(unheld.record(), Ok(None), "a Lease that nobody has held counts as absent");
    let (object, token) = unheld.acquired(&request("a"), None, "t".to_owned()).unwrap();
    assert_eq!(token, Token::new(500, 0));
    object
}

fn record(object: &LeaseObject) -> Record {
    object.record().unwrap().unwrap()
}

/// As client-go would: `spec` is replaced, `metadata` stays.
fn taken(mut object: LeaseObject, identity: &str, seconds: i32, transitions: i32) -> LeaseObject {
    object.spec.holder_identity = Some(identity.to_owned());
    object.spec.lease_duration_seconds = Some(seconds);
    object.spec.lease_transitions = Some(transitions);
    object
}

#[test]
fn an_acquired_lease_reads_as_others_read_it() {
    let object = held();
    let value = serde_json::to_value(&object).unwrap();
    assert_eq!(value["apiVersion"], "coordination.k8s.io/v1");
    assert_eq!(
        value["spec"],
        json!({
            "holderIdentity": "a#0000000000000001",
            "leaseDurationSeconds": 15,
            "acquireTime": "t",
            "renewTime": "t",
            "leaseTransitions": 1,
        })
    );
    let record = record(&object);
    assert!(record.is_of(Nonce::from_bits(7)));
    assert_eq!(record.owner(), Some(&request("a").owner));
    assert_eq!((record.ttl, record.note.as_slice()), (Duration::from_secs(15), &b"note"[..]));
}

/// What is not the holder's leaves the version as it is; a renewal changes it, and so do a release,
/// a takeover and whatever a foreign elector writes.
#[test]
fn the_version_is_of_what_holders_write() {
    let held = held();
    let version = record(&held).version;
    let mut labelled = held.clone();
    labelled.metadata.resource_version = Some("501".to_owned());
    labelled.metadata.labels = Some([("team".to_owned(), "shop".to_owned())].into());
    labelled.annotations().insert("other".to_owned(), "1".to_owned());
    assert_eq!(
        (&record(&labelled).version, labelled.held_version().as_ref()),
        (&version, Some(&version))
    );
    let renew = Renew {
        name: LeaseName::new("cron").unwrap(),
        claim: Nonce::from_bits(7),
        token: Token::new(500, 0),
        known: vec![Nonce::from_bits(7)],
        nonce: Nonce::from_bits(8),
        ttl: Duration::from_secs(15),
        note: None,
        fresh_connection: false,
    };
    // At the very same moment of the wall clock.
    let renewed = held.clone().renewed(&renew, "t".to_owned()).unwrap();
    let released = held.clone().released("t".to_owned()).unwrap();
    let foreign = taken(held, "elector_6f1c", 15, 2);
    let mut foreign_renewed = foreign.clone();
    foreign_renewed.spec.renew_time = Some("u".to_owned());
    let versions = [&renewed, &released, &foreign, &foreign_renewed].map(|it| record(it).version);
    for (index, one) in versions.iter().enumerate() {
        assert!(*one != version && !versions[..index].contains(one), "{one:?}");
    }
    assert_eq!(released.held_version(), None);
}

#[test]
fn what_tenure_wrote_is_told_from_the_rest() {
    let shell = LeaseObject::unheld(&LeaseName::new("cron").unwrap());
    let shell = object(serde_json::to_value(shell).unwrap());
    let foreign = object(json!({"metadata": {}, "spec": {"holderIdentity": "x"}}));
    let newer = r#"{"format":99}"#;
    let newer = object(json!({"metadata": {"annotations": {RECORD: newer}}}));
    assert_eq!([held(), newer, shell, foreign].map(|it| it.is_ours()), [true, true, false, false]);
}

#[test]
fn a_release_has_the_shape_of_client_go_and_keeps_what_lasts() {
    let object = held().released("later".to_owned()).unwrap();
    assert_eq!(object.spec.holder_identity.as_deref(), Some(""));
    assert_eq!(object.spec.lease_duration_seconds, Some(1));
    assert_eq!(object.spec.lease_transitions, Some(1));
    let record = record(&object);
    assert_eq!((record.holder, record.token.term), (None, 500));
    assert_eq!((record.ttl, record.note.as_slice()), (Duration::from_secs(15), &b"note"[..]));
}

#[test]
fn a_lease_that_another_blanked_is_a_released_one() {
    let record = record(&taken(held(), "", 1, 1));
    assert_eq!((record.holder, record.token.term), (None, 500));
    assert_eq!(record.note, b"note");
}

#[test]
fn a_foreign_takeover_makes_the_annotations_stale() {
    let record = record(&taken(held(), "elector_6f1c", 30, 2));
    let holder = record.holder.unwrap();
    assert_eq!(holder.owner, Owner { name: "elector_6f1c".to_owned(), incarnation: 0 });
    assert_eq!((holder.claim, holder.nonce, holder.session), (None, None, None));
    assert_eq!((record.token.term, record.ttl), (501, Duration::from_secs(30)));
    assert!(record.note.is_empty(), "a note of another tenure is not believed");
}

#[test]
fn an_edited_holder_is_foreign_even_with_the_same_transitions() {
    let record = record(&taken(held(), "elector_6f1c", 15, 1));
    assert_eq!(record.holder.as_ref().unwrap().claim, None);
    assert_eq!(record.token.term, 501, "it is not the tenure that it replaced");
    assert_eq!(record.note, b"note", "nobody else's tenure was counted");
}

#[test]
fn a_lease_of_foreign_electors_only_is_a_record() {
    let spec = json!({"holderIdentity": "x", "leaseDurationSeconds": 30, "leaseTransitions": 3});
    let held = record(&object(json!({"metadata": {}, "spec": spec})));
    assert_eq!((held.token.term, held.ttl), (3, Duration::from_secs(30)));
    let unsaid = record(&object(json!({"metadata": {}, "spec": {"holderIdentity": "x"}})));
    assert_eq!((unsaid.token.term, unsaid.ttl), (0, UNSAID_TTL));
    assert_eq!(record(&object(json!({"metadata": {}}))).holder, None);
}

#[test]
fn a_shell_that_a_foreign_elector_took_has_its_own_duration() {
    let shell = LeaseObject::unheld(&LeaseName::new("cron").unwrap());
    let shell = object(serde_json::to_value(taken(shell, "x", 1, 1)).unwrap());
    assert_eq!(record(&shell).ttl, Duration::from_secs(1));
}

#[test]
fn terms_are_above_all_that_is_known() {
    let take = |object: LeaseObject, above| {
        let former = record(&object);
        let request = Acquire { above, ..request("b") };
        object.acquired(&request, Some(&former), "t".to_owned()).unwrap()
    };
    let at = |mut object: LeaseObject, revision: &str| {
        object.metadata.resource_version = Some(revision.to_owned());
        object
    };
    assert_eq!(take(at(held(), "730"), 0).1.term, 730, "the version that it replaces");
    assert_eq!(take(at(held(), "20"), 0).1.term, 501, "the last term, after a restored backup");
    assert_eq!(take(at(held(), "730"), 9000).1.term, 9001, "what was asked for");
    assert_eq!(take(at(taken(held(), "x", 9, 4), "20"), 0).1.term, 504, "foreign tenures count");
    let saturated = take(taken(held(), "x", 9, i32::MAX), 0).0;
    assert_eq!(saturated.spec.lease_transitions, Some(i32::MAX));
}

#[test]
fn an_attached_lease_does_not_end_by_time_for_others() {
    let session = SessionRef { name: LeaseName::new("node-1").unwrap(), term: 5 };
    let request = Acquire { session: Some(session.clone()), ..request("a") };
    let (object, _) = held().acquired(&request, None, "t".to_owned()).unwrap();
    assert_eq!(object.spec.lease_duration_seconds, Some(i32::MAX));
    let attached = record(&object);
    assert_eq!((attached.session(), attached.ttl), (Some(&session), Duration::from_secs(15)));
    // An operator who edits only the name leaves the duration; ours is the one to wait out.
    let edited = record(&taken(object, "x", i32::MAX, 2));
    assert_eq!((edited.session(), edited.ttl), (None, Duration::from_secs(15)));
}

#[test]
fn what_is_not_ours_stays() {
    let mut object = object(json!({
        "metadata": {"labels": {"team": "shop"}, "annotations": {"other": "1"}},
        "spec": {"strategy": "OldestEmulationVersion", "aFieldOfTomorrow": {"deep": [1]}},
    }));
    object = object.acquired(&request("a"), None, "t".to_owned()).unwrap().0;
    let value = serde_json::to_value(object.released("t".to_owned()).unwrap()).unwrap();
    assert_eq!(value["metadata"]["labels"]["team"], "shop");
    assert_eq!(value["metadata"]["annotations"]["other"], "1");
    assert_eq!(value["spec"]["strategy"], "OldestEmulationVersion");
    assert_eq!(value["spec"]["aFieldOfTomorrow"], json!({"deep": [1]}));
}

#[test]
fn newer_and_damaged_annotations_are_told_apart() {
    let inscribed = |text: &str| {
        object(json!({"metadata": {"annotations": {RECORD: text}}})).record().unwrap_err().kind()
    };
    assert_eq!(inscribed(r#"{"format":2,"all":"different"}"#), StoreErrorKind::NewerFormat);
    assert_eq!(inscribed(r#"{"format":1}"#), StoreErrorKind::Damaged);
    assert_eq!(inscribed("hello"), StoreErrorKind::Damaged);
    let mut bad_note = held();
    bad_note.annotations().insert(NOTE.to_owned(), "%".to_owned());
    assert_eq!(bad_note.record().unwrap_err().kind(), StoreErrorKind::Damaged);
}

#[test]
fn samples_can_be_read() {
    let mut unheld = LeaseObject::unheld(&samples::name());
    unheld.metadata.uid = Some("u".to_owned());
    unheld.metadata.resource_version = Some(samples::TERM.to_string());
    let (request, time) = (samples::request(), "2026-01-02T03:04:05.000006Z");
    let (acquired, token) = unheld.acquired(&request, None, time.to_owned()).unwrap();
    let renew = Renew {
        name: samples::name(),
        claim: request.claim,
        token,
        known: vec![request.claim],
        nonce: samples::NONCE,
        ttl: request.ttl,
        note: None,
        fresh_connection: false,
    };
    let held = acquired.renewed(&renew, time.to_owned()).unwrap();
    let released = held.clone().released(time.to_owned()).unwrap();
    let (owner, nonce) = (&request.owner, samples::NONCE);
    let held_version = format!("u/{owner}/1/{}/{time}/{time}/{nonce}", i32::MAX);
    let released_version = format!("u//1/1/{time}/{time}/");
    for (name, object, expected) in [
        ("Kubernetes::held", held, samples::held(&held_version)),
        ("Kubernetes::released", released, samples::released(&released_version)),
    ] {
        samples::check_json(name, serde_json::to_vec(&object).unwrap(), &expected, |bytes| {
            serde_json::from_slice::<LeaseObject>(bytes).unwrap().record()
        });
    }
}
