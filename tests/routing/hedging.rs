//! Two attempts at once: the walk with one started beside another (routing spec 5.9).

use crate::support::*;
use omniroute::classify::Reason;
use omniroute::routing::{Exclusion, ExclusionReason, Failure, Seeded, Step, Walk};
use omniroute::snapshot::Strategy;

#[test]
fn of_two_attempts_at_once_neither_leaves_a_trace_with_the_strategy() {
    let mut shared = combo("c", Strategy::QuotaWeighted, &["a/m", "b/m"]);
    shared.options.quota_share = true;
    let mut outer = combo("outer", Strategy::Priority, &["c", "z/m"]);
    outer.attempts.max = 9;
    let mut bench = Bench::new(snapshot(vec![shared, outer]));
    let broken = verdict(Reason::ServerError);
    let failure = Failure { verdict: &broken, status: 500, message: "no", quality: false, timeout: false, passable: true, latency_ms: 1 };
    let full = Exclusion::of(ExclusionReason::ConcurrencyCap);
    let ends: [fn(&mut Walk, &Failure<'_>, Exclusion); 5] = [
        |walk, _, _| walk.decide(true, START),
        |walk, _, _| walk.decide(false, START),
        |walk, failure, _| walk.settle_aside(START, |walk| walk.failed(failure, START)),
        |walk, failure, _| {
            walk.failed(failure, START);
            walk.settle_aside(START, |walk| walk.failed(failure, START));
        },
        |walk, _, full| walk.settle_aside(START, |walk| walk.refused_locally(full, None)),
    ];
    let world = World::default();
    for (name, third) in [("c", false), ("outer", true)] {
        for end in ends {
            let mut walk = Walk::new(&bench.router, &bench.router.resolve(name), name, chat()).unwrap();
            let mut rng = Seeded(1);
            let Step::Dispatch(first) = walk.next(&world, START, &mut rng) else { panic!("all are open") };
            let second = walk.hedge(&world, START, &mut rng).unwrap();
            assert!(first.label != second.label && second.attempt == 2);
            // The last one is full: the next is asked for, and where there is none everything stays as it is.
            walk.refused_locally(full, None);
            let other = walk.hedge(&world, START, &mut rng);
            assert_eq!(other.is_some(), third);
            end(&mut walk, &failure, full);
            walk.succeeded(1, START);
        }
    }
    let firsts: Vec<String> = (0..6).flat_map(|_| bench.send("c").calls).collect();
    let turns = firsts.windows(2).all(|pair| pair[0] != pair[1]);
    assert!(turns, "who still counted as busy would be passed over: {firsts:?}");
}

#[test]
fn where_there_is_nothing_to_hedge_with_the_walk_goes_on_as_if_it_had_not_been_asked() {
    let mut s = snapshot(vec![combo("c", Strategy::Priority, &["a/m", "b/m"])]);
    s.connections.push(connection("a2", "a"));
    let router = router(s);
    let mut walk = Walk::new(&router, &router.resolve("c"), "c", chat()).unwrap();
    let (world, mut rng) = (World::default(), Seeded(1));
    let b = router.snapshot().connections.iter().position(|c| c.name == "b").unwrap();
    world.rest(b, Exclusion::of(ExclusionReason::Terminal));
    let broken = verdict(Reason::ServerError);
    let failure = Failure { verdict: &broken, status: 500, message: "no", quality: false, timeout: false, passable: true, latency_ms: 1 };
    assert!(matches!(walk.next(&world, START, &mut rng), Step::Dispatch(d) if &*d.connection.name == "a"));
    assert!(walk.hedge(&world, START, &mut rng).is_none(), "another account of the same target is no other target");
    walk.settle_aside(START, |walk| walk.failed(&failure, START));
    assert!(matches!(walk.next(&world, START, &mut rng), Step::Dispatch(d) if &*d.connection.name == "a2" && d.attempt == 2));
}
