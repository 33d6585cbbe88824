//! Rows that must be readable for ever, as PostgreSQL sends them; and tables, which stay as an earlier
//! release has made them.

use std::path::Path;

use tenure_lease::record::FORMAT;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_postgres::{Config, NoTls};

use super::*;
use crate::records::samples;

/// A column: its name, its type, its value.
type Column = (&'static str, Type, Option<Vec<u8>>);

/// The columns that a statement selects of a record.
fn columns(format: u32, held: bool) -> Vec<Column> {
    let request = samples::request();
    let session = request.session.unwrap();
    let text = |name, text: String| (name, Type::TEXT, Some(text.into_bytes()));
    let of_holder = |name, text: String| (name, Type::TEXT, held.then(|| text.into_bytes()));
    vec![
        text("name", request.name.to_string()),
        ("format", Type::INT4, Some(format.to_be_bytes().into())),
        text("version", "xmin.nonce".to_owned()),
        text("term", samples::TERM.to_string()),
        of_holder("owner", request.owner.to_string()),
        of_holder("claim", request.claim.to_string()),
        of_holder("nonce", samples::NONCE.to_string()),
        of_holder("session_name", session.name.to_string()),
        of_holder("session_term", session.term.to_string()),
        ("ttl_ms", Type::INT8, Some(milliseconds(request.ttl).to_be_bytes().into())),
        ("note", Type::BYTEA, Some(samples::note())),
    ]
}

/// The two messages of the protocol that describe a row and have its values.
fn write(columns: &[Column]) -> Vec<u8> {
    let count = (columns.len() as u16).to_be_bytes();
    let (mut described, mut values) = (count.to_vec(), count.to_vec());
    for (name, kind, value) in columns {
        described.extend([name.as_bytes(), &[0; 7], &kind.oid().to_be_bytes()].concat());
        described.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 1]);
        let length = value.as_ref().map_or(-1, |value| value.len() as i32);
        values.extend(length.to_be_bytes());
        values.extend(value.iter().flatten());
    }
    [message(b'T', &described), message(b'D', &values)].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// The record in a row that a server answers with.
fn read(row: &[u8]) -> Result<Option<Record>, StoreError> {
    let ready = message(b'Z', b"I");
    let welcome = [message(b'R', &[0; 4]), ready.clone()].concat();
    let done = [message(b'C', b"SELECT 1\0"), ready].concat();
    let answer = [&message(b'1', b"")[..], &message(b'2', b""), row, &done].concat();
    let (stream, mut server) = tokio::io::duplex(1 << 20);
    let serve = async {
        for answer in [welcome, answer] {
            assert!(server.read(&mut [0; 4096]).await.unwrap() > 0);
            server.write_all(&answer).await.unwrap();
        }
    };
    let ask = async {
        let (client, connection) =
            Config::new().user("app").connect_raw(stream, NoTls).await.unwrap();
        tokio::select! {
            rows = client.query_typed("", &[]) => rows.unwrap().pop().unwrap(),
            ended = connection => panic!("{ended:?}"),
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    record(&runtime.block_on(async { tokio::join!(ask, serve).0 }))
}

#[test]
fn samples_can_be_read_also_with_a_column_that_a_later_release_adds() {
    let released = samples::released("xmin.nonce");
    for (name, held, expected) in [
        ("Postgres::held", true, samples::held("xmin.nonce")),
        ("Postgres::released", false, released),
    ] {
        let mut columns = columns(FORMAT, held);
        samples::check(name, write(&columns), &expected, read);
        columns.insert(0, ("added", Type::TEXT, Some(b"later".to_vec())));
        assert_eq!(read(&write(&columns)), Ok(Some(expected)));
    }
}

#[test]
fn a_newer_format_is_refused() {
    let newer = read(&write(&columns(FORMAT + 1, true))).unwrap_err();
    assert_eq!(newer.kind(), StoreErrorKind::NewerFormat);
}

/// `CREATE TABLE IF NOT EXISTS` adds nothing to a table that is there: what the statements name must be in
/// every table that was ever made.
#[test]
fn samples_of_tables_suit_the_statements() {
    let schema = include_str!("schema.sql");
    let table = schema.split_once("tenure_leases (\n").unwrap().1.split_once("\n)").unwrap().0;
    let lines = table.lines().map(|line| line.trim().trim_end_matches(','));
    let lines: Vec<_> = lines.filter(|line| !line.starts_with("--")).collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/records.txt");
    let current = vec![("PostgresTable".to_owned(), lines.join("\n").into_bytes())];
    let Statements { acquire, renew, release, read, list, .. } = Statements::new("public");
    let statements = [acquire, renew, release, read, list].join("\n");
    let words: Vec<_> = statements.split(|it: char| it != '_' && !it.is_alphanumeric()).collect();
    let head = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    let named = |line: &&&str| words.contains(&line.split(' ').next().unwrap());
    assert_eq!(lines.iter().filter(named).count(), lines.len(), "{lines:?}");
    tenure_wire::samples::check_bytes(&file, "PostgresTable", current, |bytes| {
        let kept = String::from_utf8_lossy(bytes).into_owned();
        let has = |line: &&&str| kept.lines().any(|kept| head(kept) == head(line));
        match lines.iter().filter(named).find(|line| !has(line)) {
            Some(missing) => Err(format!("there is no {missing}")),
            None => Ok(()),
        }
    });
}
