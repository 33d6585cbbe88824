//! Why a request is refused: a status, a word for programs, and a sentence for people.

use hyper::StatusCode;
use serde_json::{Value, json};
use tenure_lease::{LeaseError, LeaseName};

/// A request that is not carried out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// Stable; in docs/with.md.
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    pub(super) fn body(&self) -> Value {
        json!({ "error": { "code": self.code, "message": self.message } })
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(super) fn no_lease(id: &str) -> Self {
        let message = format!(
            "no process between this one and the command holds a lease with the id {id:?}: it was \
             given back, or it is another process's"
        );
        Self::new(StatusCode::NOT_FOUND, "no_lease", message)
    }

    pub(super) fn too_many(whose: &str, most: usize) -> Self {
        let message = format!(
            "{whose} holds or waits for {most} leases already, which is the most: give some back"
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_leases", message)
    }

    pub(super) fn already_waiting(name: &LeaseName) -> Self {
        let message = format!("a request with this key waits for the lease {name} already");
        Self::new(StatusCode::CONFLICT, "already_waiting", message)
    }

    pub(super) fn key_taken(name: &LeaseName) -> Self {
        let message = format!("this key stands for the lease {name}, which this process holds");
        Self::new(StatusCode::CONFLICT, "key_taken", message)
    }

    pub(super) fn held(name: &LeaseName) -> Self {
        Self::new(StatusCode::CONFLICT, "held", format!("another holds the lease {name}"))
    }

    pub(super) fn timed_out(name: &LeaseName, wait_ms: u64) -> Self {
        let message = format!("the lease {name} could not be had within {wait_ms} ms");
        Self::new(StatusCode::CONFLICT, "held", message)
    }

    pub(super) fn ended(pid: i32) -> Self {
        let message = format!(
            "the process {pid} that opened this connection has ended: connect again from the process that asks"
        );
        Self::new(StatusCode::FORBIDDEN, "process_ended", message)
    }

    pub(super) fn guardian(why: &str) -> Self {
        let message = format!(
            "the guardian, which would end this process if tenure could not, does not answer ({why}); \
             the lease was given back"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "guardian", message)
    }
}

impl From<LeaseError> for Refusal {
    fn from(error: LeaseError) -> Self {
        let (status, code) = match &error {
            LeaseError::Name(_) | LeaseError::Settings(_) => {
                (StatusCode::BAD_REQUEST, "bad_request")
            }
            LeaseError::Over(_) => (StatusCode::CONFLICT, "lost"),
            _ => (StatusCode::SERVICE_UNAVAILABLE, "store"),
        };
        Self::new(status, code, error.to_string())
    }
}
