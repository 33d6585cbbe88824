//! `tenure lease list`. Drives: it waits for the store, and not for ever.
#![allow(clippy::disallowed_methods)]

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tenure_lease::backend::{LIST_MAX, StoreError, StoreErrorKind};
use tenure_lease::{LeaseName, Record, Store};

use super::{List, View};
use crate::exit::{Failure, UNAVAILABLE};
use crate::output;

/// What `--json` prints, in the order of the names.
#[derive(Serialize)]
#[serde(transparent)]
struct Leases(Vec<View>);

pub(super) async fn list(args: &List) -> Result<(), Failure> {
    let store = args.store.look_shared().await?;
    let Some(names) = store.backend().list() else {
        return Err(Failure::usage(format!(
            "a {} store cannot list its leases; `tenure lease show --name NAME` shows one",
            store.info().kind
        )));
    };
    let names = answered(names).await?;
    let mut leases = Leases(Vec::new());
    let mut unreadable = Vec::new();
    for batch in names.chunks(BATCH) {
        let records = match read(&store, batch).await {
            // Of one that cannot be read the others must not be hidden.
            Err(error) if is_of_one_record(&error) => {
                read_singly(&store, batch, &mut unreadable).await?
            }
            records => records?,
        };
        for (name, record) in batch.iter().zip(records) {
            // What was deleted meanwhile is no lease of this store any more.
            leases.0.extend(record.map(|record| View::new(name, &store.info(), Some(&record))));
        }
    }
    output::print(&leases, args.json)?;
    if names.len() >= LIST_MAX {
        tracing::warn!("these are the first {LIST_MAX} leases; there may be more");
    }
    match unreadable.as_slice() {
        [] => Ok(()),
        [first, ..] => Err(Failure::new(
            UNAVAILABLE,
            format!("{} of the records cannot be read; the first: {first}", unreadable.len()),
        )),
    }
}

async fn read_singly(
    store: &Store,
    names: &[LeaseName],
    unreadable: &mut Vec<String>,
) -> Result<Vec<Option<Record>>, Failure> {
    let mut records = Vec::new();
    for name in names {
        match read(store, std::slice::from_ref(name)).await {
            Ok(record) => records.push(record.into_iter().next().flatten()),
            Err(error) if is_of_one_record(&error) => {
                unreadable.push(format!("{name}: {error}"));
                records.push(None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(records)
}

fn is_of_one_record(error: &StoreError) -> bool {
    matches!(error.kind(), StoreErrorKind::Damaged | StoreErrorKind::NewerFormat)
}

async fn read(store: &Store, names: &[LeaseName]) -> Result<Vec<Option<Record>>, StoreError> {
    answered(store.backend().read(names.to_vec())).await
}

async fn answered<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(|_| {
        Err(StoreError::unavailable(format!("the store did not answer within {PATIENCE:?}")))
    })
}

impl fmt::Display for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = ["NAME", "HOLDER", "TOKEN", "TTL", "EXPIRES"].map(str::to_owned);
        let rows: Vec<[String; 5]> =
            std::iter::once(heading).chain(self.0.iter().map(View::row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths = [0, 1, 2, 3].map(|column| width(column).unwrap_or(0));
        for (number, [name, holder, token, ttl, expires]) in rows.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            let [names, holders, tokens, ttls] = widths;
            write!(f, "{name:names$}  {holder:holders$}  {token:tokens$}  {ttl:ttls$}  {expires}")?;
        }
        Ok(())
    }
}

/// How many records are asked for at once.
const BATCH: usize = 100;
/// How long a store may take to answer one question.
const PATIENCE: Duration = Duration::from_secs(20);
