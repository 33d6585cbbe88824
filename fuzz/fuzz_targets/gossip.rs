//! What nodes believe can be merged in any order and any number of times, and they come to believe the
//! same; whoever is gone stays out. On views that came to be by what nodes really do.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use tenure_cluster::{Status, View, fuzzing};
use tenure_fuzz::world::World;

fuzz_target!(|input: &[u8]| {
    let mut input = Unstructured::new(input);
    let mut world = World::default();
    for step in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.check();
        if step % 8 == 0 {
            laws(&world);
        }
    }
    laws(&world);
});

fn laws(world: &World) {
    let merge = |a: &View, b: &View| fuzzing::merged(a, b, world.now, &world.settings);
    for one in world.views() {
        for other in world.views() {
            let same = one.says_the_same(other);
            assert_eq!(one.digest() == other.digest(), same, "{one:?}\n{other:?}");
        }
    }
    let views = world.views_that_count();
    for a in &views {
        same(&merge(a, a), a, "merging with itself");
        for b in &views {
            let ab = merge(a, b);
            same(&merge(b, a), &ab, "the order of two");
            same(&merge(&ab, b), &ab, "merging twice");
            stays_out(&ab, [a, b], world);
            for c in &views {
                let (one, other) = (merge(&ab, c), merge(a, &merge(b, c)));
                let generation = a.verdict().generation;
                if [b, c].iter().all(|view| view.verdict().generation == generation) {
                    same(&one, &other, "the order of three");
                } else {
                    settles(&one, &other, [a, b, c], merge);
                }
            }
        }
    }
}

fn same(one: &View, other: &View, law: &str) {
    assert_eq!(one.digest(), other.digest(), "{law}: {one:?}\n{other:?}");
    assert!(one.says_the_same(other), "{law}: {one:?}\n{other:?}");
}

/// Across verdicts the order of three may decide about one who was let in on both sides of a verdict:
/// it is down where the older side's word came first. Nothing else may differ; once the two orders meet
/// they agree; and what was heard before changes nothing any more.
fn settles(one: &View, other: &View, heard: [&View; 3], merge: impl Fn(&View, &View) -> View) {
    let both = merge(one, other);
    same(&merge(other, one), &both, "the two orders of three");
    for view in [one, other] {
        let known = (view.members().len(), both.members().len());
        assert_eq!(known.0, known.1, "the two orders of three: {view:?}\n{both:?}");
        for (node, member) in both.members() {
            let status = view.member(node).map(|member| member.status);
            let survives = both.verdict().survivors.contains(node);
            let downed = member.status == Status::Down && !survives;
            let same = status == Some(member.status) || downed;
            assert!(same, "the two orders of three, about {node}: {view:?}\n{both:?}");
        }
    }
    for view in heard {
        for whole in [one, other, &both] {
            same(&merge(whole, view), whole, "what was heard before");
        }
    }
}

fn stays_out(merged: &View, of: [&View; 2], world: &World) {
    let known = of[0].members().len() + of[1].members().len();
    assert!(merged.members().len() <= known, "nobody is made up");
    for view in of {
        for (node, _) in fuzzing::removed(view, world.now) {
            assert!(merged.member(&node).is_none(), "{node} came back");
        }
    }
}

const MOST_STEPS: usize = 200;
