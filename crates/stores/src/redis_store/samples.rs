//! Hashes that must be readable for ever: the fields of common.lua and their values, as an `HSET`.
//! Scripts run in Redis alone; here their text says which fields there are and what is answered.

use std::collections::BTreeMap;

use ::redis::{Cmd, parse_redis_value};
use tenure_lease::record::FORMAT;

use super::*;
use crate::records::samples;

type Hash = BTreeMap<String, Vec<u8>>;

const COMMON: &str = include_str!("common.lua");

/// What stands between these two in common.lua, word by word.
fn words(begin: &str, end: char) -> Vec<String> {
    let list = COMMON.split_once(begin).unwrap().1.split_once(end).unwrap().0;
    let word = |word: &str| word.trim().trim_matches('\'').to_owned();
    list.split(',').map(word).collect()
}

fn held() -> Hash {
    let request = samples::request();
    let session = request.session.as_ref().unwrap();
    let value = |field: &str| match field {
        "format" => FORMAT.to_string().into(),
        "state" => "held".into(),
        "term" => samples::TERM.to_string().into(),
        "claim" => request.claim.to_string().into(),
        "nonce" => samples::NONCE.to_string().into(),
        "owner" => request.owner.to_string().into(),
        "ttl_ms" => millis(request.ttl).into(),
        "session" => session.name.to_string().into(),
        "session_term" => session.term.to_string().into(),
        "until_us" => "1767323045000006".into(),
        "note" => samples::note(),
        other => panic!("there is no sample of the field {other}"),
    };
    let fields = words("local FIELDS = {", '}').into_iter();
    fields.map(|field| (field.clone(), value(&field))).collect()
}

fn write(hash: &Hash) -> Vec<u8> {
    let mut command = Cmd::new();
    command.arg("HSET").arg("{tenure:nightly}:kept");
    for (field, value) in hash {
        command.arg(field).arg(value);
    }
    command.get_packed_command()
}

/// What read.lua answers to it, understood.
fn read(bytes: &[u8]) -> Result<Option<Record>, StoreError> {
    let parts: Vec<Vec<u8>> = ::redis::from_redis_value(parse_redis_value(bytes).unwrap()).unwrap();
    let (pairs, []) = parts[2..].as_chunks::<2>() else { panic!("a field without a value") };
    let text = |field: &Vec<u8>| String::from_utf8(field.clone()).unwrap();
    let mut hash: Hash = pairs.iter().map(|[field, it]| (text(field), it.clone())).collect();
    let computed = [("version", "v"), ("expiry", "observe"), ("left", "0"), ("foreign", "")];
    hash.extend(computed.map(|(field, value)| (field.to_owned(), value.into())));
    let field = |word: &String| {
        let word = word.trim_start_matches("tostring(").trim_end_matches(')');
        // As common.lua reads a field that is not there.
        hash.get(word.strip_prefix("record.").unwrap()).cloned().unwrap_or_default()
    };
    let answered = words("return {word, record.state", '}');
    let fields: Vec<_> = answered.iter().skip(1).map(field).collect();
    record(&samples::name(), &[vec![hash["state"].clone()], fields].concat())
}

#[test]
fn samples_can_be_read() {
    let mut hash = held();
    samples::check("Redis::held", write(&hash), &samples::held("v"), read);
    hash.extend([("state".into(), "released".into()), ("until_us".into(), "0".into())]);
    samples::check("Redis::released", write(&hash), &samples::released("v"), read);
}

#[test]
fn a_newer_format_is_refused() {
    assert!(COMMON.contains(&format!("local FORMAT = {FORMAT}\n")));
    let newer = word(&samples::name(), &["newer".into(), "2".into()]).unwrap_err();
    assert_eq!(newer.kind(), StoreErrorKind::NewerFormat);
}
