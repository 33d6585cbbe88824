//! A store that never answers: whoever has it can form no cluster and reads no note, so that it
//! joins by what it discovers or not at all.

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError, StoreInfo,
};
use tenure_lease::{LeaseName, MemoryStore, Record, Store};

#[derive(Default)]
struct Away(MemoryStore);

pub(crate) fn store() -> Store {
    Store::new(Away::default())
}

fn silent<T: Send + 'static>() -> Boxed<'static, Result<T, StoreError>> {
    Box::pin(async { Err(StoreError::unavailable("the store is away")) })
}

impl Backend for Away {
    fn info(&self) -> StoreInfo {
        self.0.info()
    }

    fn acquire(&self, _: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        silent()
    }

    fn renew(&self, _: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        silent()
    }

    fn release(&self, _: Release) -> Boxed<'_, Result<Released, StoreError>> {
        silent()
    }

    fn read(&self, _: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        silent()
    }
}
