//! What every `Remember` that Tenure has must do.

use tenure_lease::Token;
use tenure_sharding::{Place, Remember, RememberError, Shard};

/// Two of the same database, as two nodes have them.
pub(crate) async fn conforms(one: &dyn Remember, other: &dyn Remember) {
    let at = |term, step| Place { kind: "cart", shard: Shard(0), token: Token::new(term, step) };
    let ids = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<Vec<String>>();

    // Nothing is there; both begin at once, and make the tables.
    let (first, second) =
        tokio::join!(one.load(at(1, 1)), other.load(Place { shard: Shard(1), ..at(1, 2) }));
    assert!(first.unwrap().is_empty() && second.unwrap().is_empty());

    // Whatever an id may be; and said twice is said once.
    let odd = ids(&["a", "b", "ß \u{0} '; --", "日"]);
    one.change(at(1, 1), odd.clone(), Vec::new()).await.unwrap();
    one.change(at(1, 1), ids(&["a"]), ids(&["nobody"])).await.unwrap();
    assert_eq!(sorted(other.load(at(2, 0)).await), odd);

    // A lower token neither writes nor reads, whatever it wants.
    let fence = Token::new(2, 0);
    for late in [
        one.change(at(1, 1), ids(&["late"]), Vec::new()).await.unwrap_err(),
        one.change(at(1, 9), Vec::new(), ids(&["a"])).await.unwrap_err(),
        one.change(at(1, 9), Vec::new(), Vec::new()).await.unwrap_err(),
        one.load(at(1, 9)).await.unwrap_err(),
    ] {
        let RememberError::Refused { held, fence: seen } = late else { panic!("{late}") };
        assert!(held < fence && seen == fence, "{held} and {seen}");
    }
    assert_eq!(sorted(other.load(at(2, 0)).await), odd, "nothing came of it");

    // A write raises nothing: who has not loaded, or whose load the database has forgotten, knows
    // less than there is, or more.
    for place in [at(2, 5), Place { shard: Shard(77), ..at(1, 0) }] {
        let lost = other.change(place, ids(&["lost"]), Vec::new()).await.unwrap_err();
        assert!(matches!(lost, RememberError::RaiseLost { .. }), "{lost}");
    }
    assert_eq!(sorted(other.load(at(2, 5)).await), odd);
    other.change(at(2, 5), ids(&["c"]), ids(&["a", "ß \u{0} '; --"])).await.unwrap();
    assert!(matches!(other.load(at(2, 4)).await, Err(RememberError::Refused { .. })));
    assert_eq!(sorted(one.load(at(u64::MAX >> 1, 0)).await), ids(&["b", "c", "日"]));

    // Shards and kinds are apart, and so are their fences.
    let beside = Place { shard: Shard(u32::MAX), ..at(1, 0) };
    assert!(one.load(beside).await.unwrap().is_empty());
    one.change(beside, ids(&["a"]), Vec::new()).await.unwrap();
    assert_eq!(sorted(other.load(beside).await), ids(&["a"]));
    let other_kind = Place { kind: "order", ..at(1, 0) };
    assert!(other.load(other_kind).await.unwrap().is_empty());

    // Many at once, on both, of many shards.
    let many = |shard| Place { kind: "many", shard: Shard(shard), token: Token::new(1, 0) };
    let all: Vec<String> = (0..1000).map(|id| format!("entity-{id:04}")).collect();
    let (mine, theirs) = tokio::join!(
        async {
            for shard in 0..20 {
                one.load(many(shard)).await.unwrap();
                one.change(many(shard), all.clone(), Vec::new()).await.unwrap();
            }
        },
        async {
            for shard in 20..40 {
                other.load(many(shard)).await.unwrap();
                other.change(many(shard), all.clone(), Vec::new()).await.unwrap();
            }
        }
    );
    ((), ()) = (mine, theirs);
    for shard in 0..40 {
        assert_eq!(sorted(one.load(many(shard)).await), all, "shard {shard}");
    }
}

fn sorted(ids: Result<Vec<String>, RememberError>) -> Vec<String> {
    let mut ids = ids.unwrap();
    ids.sort();
    ids
}
