//! What happens to files that are cut, changed or deleted.

use super::*;
use crate::backend::StoreErrorKind;

#[test]
fn a_damaged_record_is_an_error_and_never_a_free_lease() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    let token = won(disk.take_at_once(&acquire(1)));
    let version = disk.read(&name()).unwrap().unwrap().version;
    let (_, path) = scratch.head();
    let whole = fs::read(&path).unwrap();
    let check = |what: &str| {
        let takeover = Acquire { takeover: Some(version.clone()), ..acquire(2) };
        let error = disk.take_at_once(&takeover).unwrap_err();
        let kind = error.kind();
        assert!(
            matches!(kind, StoreErrorKind::Damaged | StoreErrorKind::NewerFormat),
            "{what}: {error}"
        );
        if kind == StoreErrorKind::Damaged {
            let text = error.to_string();
            assert!(text.contains(path.to_str().unwrap()) && text.contains("remove"), "{text}");
        }
        assert_eq!(disk.renew(&renew(1, token, 1, 11)).unwrap_err().kind(), kind);
        assert_eq!(disk.release(&release(1, 1)).unwrap_err().kind(), kind);
        assert_eq!(disk.read(&name()).unwrap_err().kind(), kind);
    };
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        check(&format!("cut at {cut}"));
        let mut changed = whole.clone();
        changed[cut] ^= 1;
        fs::write(&path, changed).unwrap();
        check(&format!("changed at {cut}"));
    }
    fs::remove_file(&path).unwrap();
    check("missing");
    fs::write(&path, "tenure-lease 2 0\n{}").unwrap();
    check("newer");
    fs::write(&path, &whole).unwrap();
    assert_eq!(disk.renew(&renew(1, token, 1, 11)), Ok(Renewed::Yes));
}

#[test]
fn a_head_that_makes_no_sense_is_an_error() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    won(disk.take_at_once(&acquire(1)));
    for (file, kind) in [
        ("lease1-held-", StoreErrorKind::Damaged),
        ("lease9-sealed", StoreErrorKind::NewerFormat),
        (&snapshot(&disk.register(&name())).head.released(Nonce::random()).to_string(), {
            StoreErrorKind::Damaged
        }),
    ] {
        let path = scratch.lease().join(file);
        fs::write(&path, "").unwrap();
        assert_eq!(disk.take_at_once(&acquire(2)).unwrap_err().kind(), kind);
        fs::remove_file(path).unwrap();
    }
    assert!(lost(disk.take_at_once(&acquire(2))).is_some());
}

#[test]
fn a_deleted_directory_ends_the_tenure_and_no_term_comes_back() {
    let scratch = Scratch::new();
    let disk = scratch.disk();
    let first = won(disk.take_at_once(&acquire(1)));
    fs::remove_dir_all(&scratch.path).unwrap();
    assert_eq!(disk.renew(&renew(1, first, 1, 11)), Ok(Renewed::Refused(None)));
    assert!(disk.holdings.lifeline(Nonce::from_bits(1)).is_none());
    assert_eq!(disk.release(&release(1, 1)), Ok(Released::Refused));
    let second = won(disk.take_at_once(&acquire(2)));
    assert!(second > first, "{first} {second}");
}

#[test]
fn a_deleted_head_ends_the_tenure_but_not_the_waiting() {
    let scratch = Scratch::new();
    let (holder, other) = (scratch.disk(), scratch.disk());
    let above = u64::MAX / 2;
    let first = won(holder.take_at_once(&Acquire { above, ttl: LONG, ..acquire(1) }));
    fs::remove_file(scratch.head().0).unwrap();
    assert_eq!(other.read(&name()), Ok(None));
    assert_eq!(lost(other.take_at_once(&acquire(2))), None, "its holder has not noticed yet");
    assert_eq!(holder.renew(&renew(1, first, 1, 11)), Ok(Renewed::Refused(None)));
    assert_eq!(lost(other.take_at_once(&acquire(2))), None, "its holder has not ended yet");
    assert_eq!(holder.release(&release(1, 1)), Ok(Released::Refused));
    let second = won(other.take_at_once(&acquire(2)));
    assert_eq!(second.term, first.term + 1, "the highest term that could be read, and one");
    assert_eq!(scratch.files().len(), 3, "{:?}", scratch.files());

    fs::remove_file(scratch.head().0).unwrap();
    drop(other);
    let third = won(holder.take_at_once(&Acquire { ttl: SHORT, ..acquire(3) }));
    assert_eq!(third.term, second.term + 1);
    fs::remove_file(scratch.head().0).unwrap();
    let (since, other) = (Moment::now(), scratch.disk());
    assert_eq!(lost(other.take_at_once(&acquire(4))), None);
    wait_until(since + SHORT * 2);
    assert!(
        won(other.take_at_once(&acquire(4))) > third,
        "a stopped process blocks nobody for ever"
    );
}

#[test]
fn a_file_is_no_directory() {
    let scratch = Scratch::new();
    let path = scratch.path.join("file");
    fs::write(&path, "").unwrap();
    let error = FileStore::open(&path).err().unwrap();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    fs::write(scratch.lease(), "").unwrap();
    let error = scratch.disk().take_at_once(&acquire(1)).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsuitable, "{error}");
}
