//! What went wrong, in the words of the contract.

use std::error::Error as _;

use tenure_lease::backend::{StoreError, StoreErrorKind};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// What a failed statement or connection means. The server's words contain no password, and ours
/// are not asked.
pub(super) fn store_error(place: &str, error: &Error) -> StoreError {
    let Some(code) = error.code() else {
        return StoreError::unavailable(said(place, error));
    };
    let kind = kind(code);
    let advice = match kind {
        StoreErrorKind::Denied if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            "; the role needs SELECT, INSERT and UPDATE on tenure_leases and SELECT on \
             tenure_terms, and, where they do not exist yet, CREATE on their schema"
        }
        StoreErrorKind::Unsuitable if *code == SqlState::INVALID_SCHEMA_NAME => {
            "; create it, or name another with schema=NAME"
        }
        _ if said(place, error).contains("startup parameter: options") => {
            "; a pooler takes no options, and no schema for a fence: leave it out of the URL, and \
             ALTER ROLE … SET search_path instead"
        }
        _ => "",
    };
    StoreError::new(kind, format!("{}{advice}", said(place, error)))
}

/// The same in a sentence, without advice.
pub(super) fn said(place: &str, error: &Error) -> String {
    match error.as_db_error() {
        Some(answer) => {
            format!("postgres at {place}: {} ({})", answer.message(), answer.code().code())
        }
        None => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            format!("postgres at {place}: {error}{cause}")
        }
    }
}

fn kind(code: &SqlState) -> StoreErrorKind {
    if [SqlState::INSUFFICIENT_PRIVILEGE].contains(code) {
        return StoreErrorKind::Denied;
    }
    if [SqlState::NUMERIC_VALUE_OUT_OF_RANGE].contains(code) {
        return StoreErrorKind::Damaged;
    }
    if [SqlState::INVALID_CATALOG_NAME, SqlState::INVALID_SCHEMA_NAME, SqlState::DISK_FULL]
        .contains(code)
    {
        return StoreErrorKind::Unsuitable;
    }
    match code.code().get(..2) {
        Some("28") => StoreErrorKind::Denied,
        // Data that do not fit, a statement that the server does not understand: a table of another
        // make, a server that is too old.
        Some("0A" | "22" | "23" | "42") => StoreErrorKind::Unsuitable,
        _ => StoreErrorKind::Unavailable,
    }
}

/// The server takes no writes: it is a standby by now.
pub(super) fn is_read_only(error: &Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// The table, or its schema, is not there: whatever was asked for was certainly not done.
pub(super) fn is_absent_table(error: &Error) -> bool {
    error.code() == Some(&SqlState::UNDEFINED_TABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        for (code, expected) in [
            ("28P01", StoreErrorKind::Denied),
            ("42501", StoreErrorKind::Denied),
            ("22003", StoreErrorKind::Damaged),
            ("3D000", StoreErrorKind::Unsuitable),
            ("42703", StoreErrorKind::Unsuitable),
            ("53100", StoreErrorKind::Unsuitable),
            // A standby, a shutdown, a deadlock, too many connections, a pooler's own.
            ("25006", StoreErrorKind::Unavailable),
            ("57P01", StoreErrorKind::Unavailable),
            ("40P01", StoreErrorKind::Unavailable),
            ("53300", StoreErrorKind::Unavailable),
            ("08P01", StoreErrorKind::Unavailable),
        ] {
            assert_eq!(kind(&SqlState::from_code(code)), expected, "{code}");
        }
    }
}
