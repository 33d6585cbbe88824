//! A node's own certificate: taken up when it has changed, and spoken of when its end is near.

use std::sync::Arc;

use rustls::pki_types::UnixTime;
use tenure_lease::Moment;
use tokio::time::{MissedTickBehavior, interval};

use super::Shared;
use crate::transport::expiry::{ExpiryLog, ExpiryStage};
use crate::transport::{Identity, telemetry};

/// Looks at the files in a while, until the transport is closed.
pub(super) async fn watch_certificate(shared: Arc<Shared>, identity: Identity) {
    let mut ticks = interval(shared.settings.certificate_check);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut logs = [ExpiryLog::default(), ExpiryLog::default()];
    let mut complaint: Option<String> = None;
    while shared.ending.unless(ticks.tick()).await.is_some() {
        let (before, looked) = (identity.tls(), identity.clone());
        // Files may be slow, and this runtime is for heartbeats.
        let Ok(reloaded) = tokio::task::spawn_blocking(move || looked.reload()).await else {
            return; // The runtime is shutting down.
        };
        let error = match reloaded {
            Ok(changed) => {
                if changed {
                    let own = identity.tls().leaf != before.leaf;
                    let name = &shared.local.name;
                    tracing::info!(name, "new links use the changed certificate");
                    shared.renewals.send_modify(|renewal| {
                        renewal.files += 1;
                        renewal.own += u64::from(own);
                    });
                }
                // Files that were bad and are looked at no more are still bad.
                if changed { None } else { complaint.take() }
            }
            Err(error) => Some(error.to_string()),
        };
        // Once, however often it is looked at.
        if let Some(error) = &error
            && complaint.as_ref() != Some(error)
        {
            tracing::error!("the former certificate stays in use: {error}");
        }
        complaint = error;
        tell_expiry(&identity, &mut logs);
    }
}

/// Says how long this node's certificate and its authority's are good for.
fn tell_expiry(identity: &Identity, logs: &mut [ExpiryLog; 2]) {
    let now = UnixTime::now(); // Certificates are dated by the wall clock.
    for (expiry, log) in identity.tls().expiries.iter().zip(logs) {
        let left = expiry.seconds_left(now);
        telemetry::certificate_expires(expiry.file, left);
        let stage = ExpiryStage::at(now.as_secs(), expiry.validity);
        if log.admit(Moment::now(), stage) {
            let file = identity.path(expiry.file).display().to_string();
            match stage {
                ExpiryStage::Over => tracing::error!(
                    file,
                    "the certificate has expired: new links fail; renew it (tenure certs renew)"
                ),
                _ => tracing::warn!(
                    file,
                    hours = left / 3600,
                    "the certificate expires soon; renew it (tenure certs renew)"
                ),
            }
        }
    }
}
