//! What the checks of `Remember` are worth: each thing that it must do left out, they notice.

mod remember;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use tenure_lease::Token;
use tenure_sharding::{Place, Remember, RememberError, Remembering, Shard};

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    LoadIsNotFenced,
    LoadRaisesNothing,
    ChangeIsNotFenced,
    ChangeRaises,
    StepsDoNotCount,
    NothingIsRemoved,
    ShardsAreOne,
    KindsAreOne,
}

/// By kind and shard: the fence, and the ids.
type Rows = BTreeMap<(String, Shard), (Token, BTreeSet<String>)>;

#[derive(Clone)]
struct Remembers {
    fault: Fault,
    rows: Arc<Mutex<Rows>>,
}

impl Remembers {
    fn new(fault: Fault) -> Self {
        Self { fault, rows: Arc::default() }
    }

    fn at<T>(
        &self,
        place: Place<'_>,
        unfenced: Fault,
        raises: bool,
        act: impl FnOnce(&mut BTreeSet<String>) -> T,
    ) -> Remembering<'_, T>
    where
        T: Send + 'static,
    {
        let kind = if self.fault == Fault::KindsAreOne { "" } else { place.kind };
        let shard = if self.fault == Fault::ShardsAreOne { Shard(0) } else { place.shard };
        let held = match self.fault {
            Fault::StepsDoNotCount => Token::new(place.token.term, 0),
            _ => place.token,
        };
        let mut rows = self.rows.lock().unwrap();
        let (fence, ids) = rows.entry((kind.to_owned(), shard)).or_default();
        if raises {
            *fence = held.max(*fence);
        }
        let done = if held < *fence && self.fault != unfenced {
            Err(RememberError::Refused { held, fence: *fence })
        } else if held > *fence && unfenced == Fault::ChangeIsNotFenced && self.fault != unfenced {
            Err(RememberError::RaiseLost { held, fence: Some(*fence) })
        } else {
            Ok(act(ids))
        };
        Box::pin(async { done })
    }
}

impl Remember for Remembers {
    fn load(&self, place: Place<'_>) -> Remembering<'_, Vec<String>> {
        let read = |ids: &mut BTreeSet<String>| ids.iter().cloned().collect();
        let raises = self.fault != Fault::LoadRaisesNothing;
        self.at(place, Fault::LoadIsNotFenced, raises, read)
    }

    fn change(
        &self,
        place: Place<'_>,
        added: Vec<String>,
        removed: Vec<String>,
    ) -> Remembering<'_, ()> {
        let keeps = self.fault == Fault::NothingIsRemoved;
        let raises = self.fault == Fault::ChangeRaises;
        self.at(place, Fault::ChangeIsNotFenced, raises, |ids| {
            ids.extend(added);
            ids.retain(|id| keeps || !removed.contains(id));
        })
    }
}

#[tokio::test]
async fn each_is_noticed() {
    for fault in [
        Fault::LoadIsNotFenced,
        Fault::LoadRaisesNothing,
        Fault::ChangeIsNotFenced,
        Fault::ChangeRaises,
        Fault::StepsDoNotCount,
        Fault::NothingIsRemoved,
        Fault::ShardsAreOne,
        Fault::KindsAreOne,
    ] {
        let remembers = Remembers::new(fault);
        let checked = tokio::task::LocalSet::new()
            .run_until(async move {
                let check = async move { remember::conforms(&remembers, &remembers.clone()).await };
                tokio::task::spawn_local(check).await
            })
            .await;
        assert!(checked.is_err_and(|error| error.is_panic()), "{fault:?} is not noticed");
    }
    let sound = Remembers::new(Fault::Nothing);
    remember::conforms(&sound, &sound.clone()).await;
}
