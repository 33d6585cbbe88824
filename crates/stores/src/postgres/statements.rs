//! The statements, one per step, and the rows that they answer with.
//!
//! Each is a single statement that commits by itself, so that it works behind a pooler that hands
//! out a server connection per transaction, and each is sent without a name: a prepared statement
//! would stay behind on a server connection that is somebody else's next.
//!
//! All of them decide and write under the row's lock, at the isolation `READ COMMITTED`: a
//! statement that waited for another's write looks at the row again as that left it, and its
//! conditions are judged anew. What it shows besides, the record in the way, comes from its snapshot, which may be
//! older than what it waited for; the store notices that (a refusal by a record that allows) and
//! reads once more. An attempt that is refused by its snapshot writes nothing and locks nothing.

use std::time::Duration;

use tenure_lease::backend::{LIST_MAX, StoreError, StoreErrorKind};
use tenure_lease::record::{Expiry, FORMAT, Holder, SessionRef, Version};
use tenure_lease::{LeaseName, Nonce, Record, Token};
use tokio_postgres::Row;

use crate::records;

/// The texts, for the schema that the tables are in.
pub(super) struct Statements {
    pub(super) acquire: String,
    pub(super) renew: String,
    pub(super) release: String,
    pub(super) read: String,
    pub(super) list: String,
    /// Creates the tables; several simple statements in one transaction.
    pub(super) create: String,
}

impl Statements {
    /// `schema` is a checked identifier.
    pub(super) fn new(schema: &str) -> Self {
        let text = |template: &str| {
            template
                .replace("{leases}", &format!("\"{schema}\".tenure_leases"))
                .replace("{terms}", &format!("\"{schema}\".tenure_terms"))
                .replace("{record}", RECORD)
                .replace("{version}", VERSION)
                .replace("{format}", &FORMAT.to_string())
                .replace("{term_max}", &u64::MAX.to_string())
                .replace("{list_max}", &LIST_MAX.to_string())
        };
        Self {
            acquire: text(ACQUIRE),
            renew: text(RENEW),
            release: text(RELEASE),
            read: text(READ),
            list: text(LIST),
            create: CREATE.replace("{schema}", schema).replace("{tables}", SCHEMA),
        }
    }
}

/// The record in a row that selects it; `None` if the row has none.
pub(super) fn record(row: &Row) -> Result<Option<Record>, StoreError> {
    let Some(name) = column::<Option<String>>(row, "name")? else { return Ok(None) };
    let damaged = |what: &str| {
        StoreError::new(StoreErrorKind::Damaged, format!("the row of lease {name:?} has {what}"))
    };
    check_format(&name, column(row, "format")?)?;
    let number = |text: String, what| text.parse::<u64>().map_err(|_| damaged(what));
    let owner = column::<Option<String>>(row, "owner")?;
    let session = match column::<Option<String>>(row, "session_name")? {
        None => None,
        Some(session) => Some(SessionRef {
            name: LeaseName::new(&session).map_err(|_| damaged("no name of a session"))?,
            term: number(
                column::<Option<String>>(row, "session_term")?.unwrap_or_default(),
                "no term of its session",
            )?,
        }),
    };
    // What is not of our making is a foreign tool's, which has neither.
    let nonce = |text: Option<String>| text.and_then(|text| text.parse::<Nonce>().ok());
    let (claim, nonce) = (nonce(column(row, "claim")?), nonce(column(row, "nonce")?));
    let holder = owner.map(|owner| Holder { owner: records::owner(&owner), claim, nonce, session });
    let ttl: i64 = column(row, "ttl_ms")?;
    Ok(Some(Record {
        version: Version(column(row, "version")?),
        token: Token::new(number(column(row, "term")?, "no term")?, 0),
        holder,
        ttl: Duration::from_millis(u64::try_from(ttl).map_err(|_| damaged("a negative ttl"))?),
        expiry: Expiry::ByObservation,
        note: column(row, "note")?,
    }))
}

/// Refuses a record that a newer release wrote.
pub(super) fn check_format(name: &str, format: i32) -> Result<(), StoreError> {
    match u32::try_from(format) {
        Ok(format) if format > FORMAT => Err(StoreError::new(
            StoreErrorKind::NewerFormat,
            format!(
                "the record of lease {name:?} has format {format}, and this release knows up to \
                 {FORMAT}: upgrade it"
            ),
        )),
        _ => Ok(()),
    }
}

/// A column of a row.
pub(super) fn column<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    name: &str,
) -> Result<T, StoreError> {
    row.try_get(name).map_err(|_| {
        StoreError::new(
            StoreErrorKind::Unsuitable,
            format!("the table tenure_leases is not ours: its column {name:?} cannot be read"),
        )
    })
}

/// The tables, as they are shipped.
const SCHEMA: &str = include_str!("schema.sql");

/// Two processes that create the tables at once would trip over each other's catalogue rows.
const CREATE: &str = "BEGIN; SET LOCAL client_min_messages TO warning;
SELECT pg_advisory_xact_lock(6074866001784464741);
SET LOCAL search_path TO \"{schema}\";
{tables}
COMMIT";

/// Differs after every write by anybody (`xmin` is the writing transaction), and never recurs (the
/// nonce is random; transaction numbers alone come around).
const VERSION: &str = "xmin::text || '.' || coalesce(nonce, '')";

const RECORD: &str = "name, format, {version} AS version, term::text AS term, owner, claim, nonce, \
    session_name, session_term::text AS session_term, ttl_ms, note";

/// $1 name, $2 claim, $3 owner, $4 lowest term, $5 ttl, $6 and $7 session, $8 note or NULL,
/// $9 whether to create, $10 the version to take over, $11 whether absence is expected, $12 the
/// expected term.
const ACQUIRE: &str = "
WITH seen AS MATERIALIZED (
    SELECT {record} FROM {leases} WHERE name = $1
), former AS MATERIALIZED (
    SELECT {record} FROM {leases}
    WHERE name = $1 AND format <= {format} AND term < {term_max}
        AND NOT $11 AND ($12 IS NULL OR term = $12::numeric)
        AND (owner IS NULL OR {version} = $10)
    FOR UPDATE
), taken AS (
    UPDATE {leases} AS l
    SET format = {format}, term = greatest(l.term + 1, $4::numeric), owner = $3, claim = $2,
        nonce = $2, session_name = $6, session_term = $7::numeric, ttl_ms = $5,
        note = coalesce($8, l.note), acquired = clock_timestamp(), renewed = clock_timestamp()
    FROM former WHERE l.name = former.name
    RETURNING l.term
), created AS (
    INSERT INTO {leases}
        (name, format, term, owner, claim, nonce, session_name, session_term, ttl_ms, note)
    SELECT $1, {format},
        greatest(
            floor(extract(epoch FROM clock_timestamp()) * 1000000)::numeric,
            $4::numeric,
            (SELECT term + 1 FROM {terms})
        ),
        $3, $2, $2, $6, $7::numeric, $5, coalesce($8, '')
    WHERE $9 AND $12 IS NULL AND NOT EXISTS (SELECT FROM seen)
    ON CONFLICT (name) DO NOTHING
    RETURNING term
)
SELECT coalesce((SELECT term FROM taken), (SELECT term FROM created))::text AS won, record.*
FROM (VALUES (1)) AS one LEFT JOIN (
    SELECT * FROM former UNION ALL SELECT * FROM seen WHERE NOT EXISTS (SELECT FROM former)
) AS record ON true";

/// $1 name, $2 claim, $3 term, $4 known nonces, $5 nonce, $6 ttl, $7 note or NULL. Sends the record
/// only with a refusal.
const RENEW: &str = "
WITH renewed AS (
    UPDATE {leases}
    SET nonce = $5, ttl_ms = $6, note = coalesce($7, note), renewed = clock_timestamp()
    WHERE name = $1 AND format <= {format} AND owner IS NOT NULL
        AND claim = $2 AND term = $3::numeric AND nonce = ANY ($4)
    RETURNING 1
)
SELECT EXISTS (SELECT FROM renewed) AS done, record.*
FROM (VALUES (1)) AS one LEFT JOIN (
    SELECT {record} FROM {leases} WHERE name = $1 AND NOT EXISTS (SELECT FROM renewed)
) AS record ON true";

/// $1 name, $2 claim, $3 known nonces.
const RELEASE: &str = "
WITH released AS (
    UPDATE {leases}
    SET owner = NULL, claim = NULL, nonce = NULL, session_name = NULL, session_term = NULL,
        renewed = clock_timestamp()
    WHERE name = $1 AND format <= {format} AND owner IS NOT NULL
        AND claim = $2 AND nonce = ANY ($3)
    RETURNING 1
)
SELECT EXISTS (SELECT FROM released) AS done,
    (SELECT format FROM {leases} WHERE name = $1) AS format";

/// $1 names. One row for each of them, in their order, also for those that have no record.
const READ: &str = "
SELECT pg_is_in_recovery() AS standby, record.*
FROM unnest($1) WITH ORDINALITY AS wanted (wanted, position)
LEFT JOIN (SELECT {record} FROM {leases}) AS record ON record.name = wanted.wanted
ORDER BY wanted.position";

/// One row for each record; one without a name if there is none.
const LIST: &str = "
SELECT pg_is_in_recovery() AS standby, record.name
FROM (VALUES (1)) AS one
LEFT JOIN (SELECT name FROM {leases} ORDER BY name COLLATE \"C\" LIMIT {list_max}) AS record ON true
ORDER BY record.name COLLATE \"C\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_fill_in() {
        let texts = Statements::new("public");
        for text in
            [&texts.acquire, &texts.renew, &texts.release, &texts.read, &texts.list, &texts.create]
        {
            assert!(!text.contains('{') && !text.contains('}'), "{text}");
        }
    }
}
