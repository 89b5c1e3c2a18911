use super::*;

fn owner(letter: char) -> OwnerHash {
    OwnerHash::new(&format!("vlo_{}", letter.to_string().repeat(43))).unwrap()
}

fn at(s: i64) -> EpochMs {
    EpochMs(1_700_000_000_000 + s * 1_000)
}

fn who(owner: &OwnerHash) -> Caller<'_> {
    Caller { owner, key: "agents" }
}

const TTL: u64 = 120_000;

#[test]
fn headers_are_checked() {
    assert!(OwnerHash::new("vlo_short").is_err());
    assert!(OwnerHash::new(&format!("vlx_{}", "a".repeat(43))).is_err());
    assert!(OwnerHash::new(&format!("vlo_{}", "é".repeat(43))).is_err());
    assert!(!format!("{:?}", owner('a')).contains("aaaa"));
    for (text, want) in [
        ("1", Some(1)),
        ("01", None),
        ("0", None),
        ("-1", None),
        ("", None),
        ("9007199254740992", None),
        ("9007199254740991", Some(9_007_199_254_740_991)),
    ] {
        assert_eq!(parse_generation(text).ok(), want, "{text}");
    }
}

#[test]
fn two_owners_get_two_connections_and_the_third_waits() {
    let t = LeaseTable::default();
    let (a, b, c) = (owner('a'), owner('b'), owner('c'));
    assert_eq!(t.acquire(who(&a), &["x", "y"], TTL, at(0)).unwrap().connection, "x");
    assert_eq!(t.acquire(who(&b), &["x", "y"], TTL, at(10)).unwrap().connection, "y");
    assert_eq!(t.acquire(who(&c), &["x", "y"], TTL, at(30)), Err(LeaseError::Capacity { retry_after_s: 90, eligible: 2 }));
    assert!(t.held("x", None, at(30)) && t.held("x", Some(&b), at(30)) && !t.held("x", Some(&a), at(30)) && !t.held("z", None, at(30)));
    assert_eq!(t.active(at(30)), 2);
    // The first one ends by time: its connection is free again.
    assert_eq!(t.acquire(who(&c), &["x", "y"], TTL, at(121)).unwrap().connection, "x");
    assert_eq!(t.renew(who(&a), 1, TTL, at(122)), Err(LeaseError::FenceStale));
}

#[test]
fn acquiring_again_extends_and_another_key_is_refused() {
    let t = LeaseTable::default();
    let a = owner('a');
    let first = t.acquire(who(&a), &["x", "y"], TTL, at(0)).unwrap();
    let again = t.acquire(who(&a), &["y", "x"], TTL, at(60)).unwrap();
    assert_eq!((again.generation, again.connection.as_str(), again.binding, again.expires), (1, "x", first.binding, at(180)));
    assert_eq!(t.acquire(Caller { owner: &a, key: "other" }, &["x"], TTL, at(61)), Err(LeaseError::FenceStale));
    assert_eq!(t.enter(Caller { owner: &a, key: "other" }, 1, "x", at(61)), Err(LeaseError::AuthorizationMismatch));
}

#[test]
fn a_move_keeps_the_generation_and_changes_the_binding() {
    let t = LeaseTable::default();
    let a = owner('a');
    let first = t.acquire(who(&a), &["x"], TTL, at(0)).unwrap();
    let moved = t.acquire(who(&a), &["y"], TTL, at(1)).unwrap();
    assert_eq!((moved.generation, moved.connection.as_str()), (first.generation, "y"));
    assert!(moved.binding > first.binding);
    assert!(!t.held("x", None, at(1)) && t.held("y", None, at(1)));
    assert_eq!(t.enter(who(&a), 1, "x", at(2)), Err(LeaseError::ConnectionMismatch));
    assert!(t.enter(who(&a), 1, "y", at(2)).is_ok());
}

#[test]
fn the_fence_tells_why() {
    let t = LeaseTable::default();
    let a = owner('a');
    assert_eq!(t.bound(who(&a), 1, at(0)), Err(LeaseError::Required));
    t.acquire(who(&a), &["x"], TTL, at(0)).unwrap();
    assert_eq!(t.bound(who(&a), 2, at(0)), Err(LeaseError::FenceStale));
    let released = t.release(who(&a), 1, EndReason::OwnerExit, at(1)).unwrap();
    assert_eq!(t.release(who(&a), 1, EndReason::ClientCancelled, at(2)).unwrap(), released);
    assert_eq!(t.bound(who(&a), 1, at(2)), Err(LeaseError::Required));
    assert_eq!(t.acquire(who(&a), &["x"], TTL, at(3)).unwrap().generation, 2);
}

#[test]
fn a_running_request_keeps_the_lease() {
    let t = LeaseTable::default();
    let a = owner('a');
    t.acquire(who(&a), &["x"], TTL, at(0)).unwrap();
    t.enter(who(&a), 1, "x", at(1)).unwrap();
    assert!(t.held("x", None, at(10_000)), "a long stream still owns it");
    assert!(t.bound(who(&a), 1, at(10_000)).is_ok());
    t.leave(who(&a), 1, TTL, at(10_000));
    assert!(t.bound(who(&a), 1, at(10_119)).is_ok() && t.bound(who(&a), 1, at(10_121)).is_err());
}

#[test]
fn revoked_keys_end_their_leases_and_a_restart_keeps_the_rest() {
    let t = LeaseTable::default();
    let (a, b) = (owner('a'), owner('b'));
    t.acquire(who(&a), &["x"], TTL, at(0)).unwrap();
    t.acquire(Caller { owner: &b, key: "gone" }, &["y"], TTL, at(0)).unwrap();
    t.invalidate(|l| (l.key == "gone").then_some(EndReason::ManagedKeyRevoked), at(1));
    let other = LeaseTable::default();
    other.restore(&t.export().unwrap(), at(2)).unwrap();
    assert!(other.held("x", None, at(2)) && !other.held("y", None, at(2)));
    assert_eq!(other.acquire(Caller { owner: &b, key: "gone" }, &["y"], TTL, at(3)).unwrap().generation, 2);
}

#[test]
fn one_winner_for_the_last_connection() {
    let t = LeaseTable::default();
    let owners: Vec<OwnerHash> = ('a'..='p').map(owner).collect();
    let won = std::thread::scope(|s| {
        let handles: Vec<_> = owners.iter().map(|o| s.spawn(|| t.acquire(who(o), &["x"], TTL, at(0)).is_ok())).collect();
        handles.into_iter().filter(|_| true).map(|h| usize::from(h.join().unwrap())).sum::<usize>()
    });
    assert_eq!(won, 1);
}

#[test]
fn replicas_see_one_table_and_what_runs_here_stays() {
    let (here, there) = (LeaseTable::default(), LeaseTable::default());
    let one = owner('a');
    here.acquire(who(&one), &["x"], TTL, at(0)).unwrap();
    here.enter(who(&one), 1, "x", at(1)).unwrap();
    there.adopt(&here.export().unwrap(), at(2)).unwrap();
    assert!(there.held("x", None, at(2)));
    // The other one knows nothing of the request, so the end must be moved before it comes.
    let late = 119;
    let shared = LeaseTable::default().copy_of(&there.export().unwrap(), at(late)).unwrap();
    shared.extend(&here, TTL, at(late));
    there.adopt(&shared.export().unwrap(), at(late)).unwrap();
    assert!(there.held("x", None, at(125)));
    here.adopt(&there.export().unwrap(), at(125)).unwrap();
    assert!(here.held("x", None, at(12_000)), "the request still runs");
    here.leave(who(&one), 1, TTL, at(360));
    assert!(!here.held("x", None, at(600)));
    // With half a lifetime left there is no news.
    let again = LeaseTable::default().copy_of(&there.export().unwrap(), at(late + 1)).unwrap();
    let before = again.export().unwrap();
    again.extend(&there, TTL, at(late + 1));
    assert_eq!(again.export().unwrap(), before);
}

#[test]
fn what_a_request_added_to_its_lease_is_not_taken_back_by_who_has_not_heard_of_it() {
    let (here, one) = (LeaseTable::default(), owner('a'));
    here.acquire(who(&one), &["x"], TTL, at(0)).unwrap();
    let before = here.export().unwrap();
    here.enter(who(&one), 1, "x", at(1)).unwrap();
    here.leave(who(&one), 1, TTL, at(100));
    here.adopt(&before, at(101)).unwrap();
    assert!(here.held("x", None, at(219)), "until a lifetime after the end of the request");
    assert!(LeaseTable::default().bound(who(&one), 1, at(219)).is_err());
    let copy = here.copy_of(&before, at(200)).unwrap();
    assert!(copy.bound(who(&one), 1, at(200)).is_ok());
    // What ended there has ended, whatever was added here.
    let there = LeaseTable::default();
    there.restore(&before, at(101)).unwrap();
    there.release(who(&one), 1, EndReason::OwnerExit, at(101)).unwrap();
    here.adopt(&there.export().unwrap(), at(102)).unwrap();
    assert!(!here.held("x", None, at(102)));
}

#[test]
fn a_renewal_that_shortens_is_not_undone_by_who_has_not_heard_of_it() {
    let (here, there, one) = (LeaseTable::default(), LeaseTable::default(), owner('a'));
    here.acquire(who(&one), &["x"], TTL, at(0)).unwrap();
    there.restore(&here.export().unwrap(), at(0)).unwrap();
    let expires = there.renew(who(&one), 1, 10_000, at(1)).unwrap().expires;
    let shared = there.export().unwrap();
    let copy = here.copy_of(&shared, at(2)).unwrap();
    copy.extend(&here, 10_000, at(2));
    here.adopt(&shared, at(2)).unwrap();
    for table in [copy, here] {
        assert_eq!(table.status(who(&one), 1, at(2)).unwrap().expires, expires);
    }
}

#[test]
fn a_new_store_hears_of_everything_and_who_is_there_already_keeps_its_connection() {
    let (here, store) = (LeaseTable::default(), LeaseTable::default());
    let (a, b, c) = (owner('a'), owner('b'), owner('c'));
    here.acquire(who(&a), &["x"], TTL, at(0)).unwrap();
    here.acquire(who(&b), &["y"], TTL, at(0)).unwrap();
    here.acquire(who(&c), &["z"], TTL, at(0)).unwrap();
    here.release(who(&c), 1, EndReason::OwnerExit, at(1)).unwrap();
    store.acquire(who(&c), &["y"], TTL, at(1)).unwrap();
    store.join(&here, at(2));
    assert!(store.bound(who(&a), 1, at(2)).is_ok() && store.bound(who(&c), 1, at(2)).is_ok());
    assert_eq!(store.bound(who(&b), 1, at(2)), Err(LeaseError::Required), "its connection has another owner there");
    let once = store.export().unwrap();
    store.join(&here, at(2));
    assert_eq!(store.export().unwrap(), once);
    // Generations go on from where they were.
    assert_eq!(store.acquire(who(&b), &["q"], TTL, at(3)).unwrap().generation, 2);
}

#[test]
fn a_store_that_was_restored_hears_of_leases_that_ended_since() {
    let (here, store, restored) = (LeaseTable::default(), LeaseTable::default(), LeaseTable::default());
    let (a, b, c) = (owner('a'), owner('b'), owner('c'));
    for (who_, connection) in [(&a, "x"), (&b, "y"), (&c, "z")] {
        here.acquire(who(who_), &[connection], TTL, at(0)).unwrap();
    }
    let copy = here.export().unwrap();
    here.release(who(&a), 1, EndReason::OwnerExit, at(1)).unwrap();
    here.invalidate(|lease| (lease.connection == "y").then_some(EndReason::AuthorizationChanged), at(1));
    restored.restore(&copy, at(2)).unwrap();
    restored.join(&here, at(2));
    let ends = [(&a, Err(LeaseError::Required)), (&b, Err(LeaseError::Required)), (&c, Ok(()))];
    for (who_, expected) in &ends {
        assert_eq!(restored.bound(who(who_), 1, at(2)).map(drop), *expected);
    }
    assert_eq!(restored.acquire(who(&b), &["x"], TTL, at(3)).unwrap().generation, 2, "what ended holds no connection");
    // What only ran out here may have been renewed there.
    store.restore(&copy, at(0)).unwrap();
    store.renew(who(&c), 1, TTL, at(1)).unwrap();
    let late = EpochMs(at(0).0 + i64::try_from(TTL).unwrap());
    assert!(here.bound(who(&c), 1, late).is_err());
    store.join(&here, late);
    assert!(store.bound(who(&c), 1, late).is_ok());
}
