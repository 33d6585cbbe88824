//! `tenure lease watch`. Drives: it waits for the store, and looks besides, since pushes get lost.
#![allow(clippy::disallowed_methods)]

use std::time::Duration;

use tenure_lease::Store;
use tenure_lease::backend::Watch;

use super::{Target, View};
use crate::exit::Failure;
use crate::output;

pub(super) async fn watch(target: &Target) -> Result<(), Failure> {
    let store: Store = target.lease.store.look_shared().await?;
    let mut pushes = None;
    let mut shown = None;
    let mut trouble = false;
    loop {
        if pushes.is_none() {
            pushes = store.backend().watch(&target.lease.name);
        }
        match store.inspect(target.lease.name.as_str()).await {
            Ok(record) => {
                trouble = false;
                let view = View::new(&target.lease.name, &store.info(), record.as_ref()).lasting();
                if shown.as_ref() != Some(&view) {
                    if shown.is_some() && !target.json {
                        output::text(&"")?;
                    }
                    target.print(&store, record.as_ref())?;
                    shown = Some(view);
                }
            }
            Err(error) if shown.is_none() => return Err(error.into()),
            Err(error) => {
                if !std::mem::replace(&mut trouble, true) {
                    tracing::warn!(%error, "the store does not answer; trying on");
                }
            }
        }
        let _ = tokio::time::timeout(LOOK_EVERY, changed(&mut pushes)).await;
    }
}

async fn changed(pushes: &mut Option<Box<dyn Watch>>) {
    match pushes {
        Some(pushes) => pushes.changed().await,
        None => std::future::pending().await,
    }
}

const LOOK_EVERY: Duration = Duration::from_secs(1);
