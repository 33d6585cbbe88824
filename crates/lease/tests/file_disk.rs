//! The embedded store on a disk that is full, or cannot be written.

mod file_support;

use std::time::Duration;

use file_support::Scratch;
use tenure_lease::backend::{
    Acquire, Acquired, Backend as _, Release, Released, Renew, Renewed, StoreError, StoreErrorKind,
};
use tenure_lease::{FileStore, LeaseName, Nonce, Owner, Token};

fn acquire(name: &str, claim: u128) -> Acquire {
    Acquire {
        name: LeaseName::new(name).unwrap(),
        claim: Nonce::from_bits(claim),
        owner: Owner::this_process(),
        ttl: Duration::from_secs(3600),
        session: None,
        note: None,
        create: true,
        takeover: None,
        expected: None,
        above: 0,
        unattended: false,
    }
}

fn renew(claim: u128, token: Token, known: u128, nonce: u128) -> Renew {
    Renew {
        name: LeaseName::new("nightly").unwrap(),
        claim: Nonce::from_bits(claim),
        token,
        known: vec![Nonce::from_bits(known)],
        nonce: Nonce::from_bits(nonce),
        ttl: Duration::from_secs(3600),
        note: None,
        fresh_connection: false,
    }
}

fn release(claim: u128, known: u128) -> Release {
    Release {
        name: LeaseName::new("nightly").unwrap(),
        claim: Nonce::from_bits(claim),
        known: vec![Nonce::from_bits(known)],
    }
}

fn won(answer: Result<Acquired, StoreError>) -> Token {
    match answer {
        Ok(Acquired::Won { token, .. }) => token,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_full_disk_is_named_and_what_is_held_stays_held() {
    let Some(scratch) = Scratch::mounted("256k") else { return };
    let store = FileStore::open(&scratch.path).unwrap();
    let token = won(store.acquire(acquire("nightly", 1)).await);
    let files = scratch.files();
    let filler = scratch.path.join("filler");
    let _ = std::fs::write(&filler, vec![0; 1 << 20]);

    let check = |error: StoreError| {
        let text = error.to_string();
        assert_eq!(error.kind(), StoreErrorKind::Unsuitable, "{text}");
        assert!(text.contains("disk is full") && text.contains(scratch.path.to_str().unwrap()));
    };
    let note = Renew { note: Some(vec![7; 4096]), ..renew(1, token, 1, 11) };
    check(store.renew(note).await.unwrap_err());
    assert_eq!(scratch.files().len(), files.len() + 1, "nothing but the filler was left");
    for nonce in 1..100 {
        assert_eq!(store.renew(renew(1, token, nonce, nonce + 1)).await, Ok(Renewed::Yes));
    }
    assert_eq!(store.release(release(1, 100)).await, Ok(Released::Yes));
    check(store.acquire(acquire("nightly", 2)).await.unwrap_err());
    check(store.acquire(acquire("other", 3)).await.unwrap_err());
    assert_eq!(scratch.files().len(), 3, "head, record, filler: {:?}", scratch.files());

    std::fs::remove_file(filler).unwrap();
    assert_eq!(won(store.acquire(acquire("nightly", 2)).await).term, token.term + 1);
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_named() {
    let Some(scratch) = Scratch::mounted("256k") else { return };
    let store = FileStore::open(&scratch.path).unwrap();
    // Without an alive file: what is open for writing keeps a mount writable.
    let unattended = Acquire { unattended: true, ..acquire("nightly", 1) };
    let token = won(store.acquire(unattended).await);
    assert!(scratch.mount(&["-o", "remount,ro"]));
    let check = |error: StoreError| {
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(scratch.path.to_str().unwrap()), "{error}");
    };
    let lost = store.acquire(acquire("nightly", 2)).await.unwrap();
    assert!(matches!(lost, Acquired::Lost(Some(_))), "it can still be read");
    check(store.renew(renew(1, token, 1, 11)).await.unwrap_err());
    check(store.release(release(1, 1)).await.unwrap_err());
    check(store.acquire(acquire("other", 3)).await.unwrap_err());
    assert!(scratch.mount(&["-o", "remount,rw"]));
    assert_eq!(store.renew(renew(1, token, 1, 11)).await, Ok(Renewed::Yes));
}
