use std::net::SocketAddr;

use super::*;
use crate::client::{Addresses, ClientConnection, Held};

#[test]
fn requests_over_the_limit_get_429_and_a_place_comes_free() {
    let admission = Admission::new(1, 1, 1 << 20);
    let first = admission.admit(None).unwrap();
    let refused = admission.admit(None).unwrap_err();
    assert_eq!((refused.status(), refused.retry_after_s()), (429, Some(1)));
    drop(first);
    assert!(admission.admit(None).is_ok());
}

#[test]
fn body_memory_grows_with_the_body_and_is_bounded_in_sum() {
    let admission = Admission::new(1, 1, 4 * BODY_UNIT);
    let mut one = BodyMemory::default();
    admission.hold(&mut one, 1).unwrap();
    admission.hold(&mut one, 3 * BODY_UNIT).unwrap();
    let mut two = BodyMemory::default();
    admission.hold(&mut two, BODY_UNIT).unwrap();
    assert_eq!(
        admission
            .hold(&mut two, BODY_UNIT + 1)
            .unwrap_err()
            .status(),
        503
    );
    drop(one);
    admission.hold(&mut two, 4 * BODY_UNIT).unwrap();
}

fn connection(peer: &str, addresses: &Arc<Addresses>) -> Arc<ClientConnection> {
    let client = SocketAddr::new(peer.parse().unwrap(), 1);
    Arc::new(ClientConnection::new(client, addresses))
}

/// As many requests of `connection` as are admitted.
fn fill(admission: &Admission, connection: &Arc<ClientConnection>) -> Vec<(Arc<Client>, Admitted)> {
    let mut held = Vec::new();
    loop {
        let client = Client::new(Arc::clone(connection));
        match admission.admit(Some(&client)) {
            Ok(permit) => held.push((client, permit)),
            Err(error) => {
                assert_eq!((error.status(), error.retry_after_s()), (429, Some(1)));
                return held;
            }
        }
    }
}

#[test]
fn no_connection_address_or_key_holds_all_places() {
    let addresses = Arc::new(Addresses::default());
    // Over one connection, over many of one address, over many addresses with one key.
    for (connections, peers, one_key) in [(5, 0, false), (4096, 1, false), (4096, 4096, true)] {
        let admission = Admission::new(4096, 1, 1);
        let key = Arc::new(Held::default());
        let mut held = Vec::new();
        for number in 0..connections {
            let host = if peers > 1 { number } else { 0 };
            let peer = match peers {
                0 => "127.0.0.1".to_owned(),
                _ => format!("10.0.{}.{}", host / 256, host % 256),
            };
            let connection = connection(&peer, &addresses);
            loop {
                let client = Client::new(Arc::clone(&connection));
                if one_key {
                    client.has_key(&key, None);
                }
                match admission.admit(Some(&client)) {
                    Ok(permit) => held.push((client, permit)),
                    Err(_) => break,
                }
            }
        }
        assert!(held.len() >= 4096 * 7 / 8, "what is free may be used");
        let other = connection("192.0.2.1", &addresses);
        let got = fill(&admission, &other).len();
        assert!(got >= 64, "{got} places for another client");
    }
}

#[test]
fn large_bodies_leave_room_for_small_ones() {
    let addresses = Arc::new(Addresses::default());
    let admission = Admission::new(1, 1, 512 << 20);
    let body = |connection: &Arc<ClientConnection>| {
        BodyMemory::of(Some(&Client::new(Arc::clone(connection))))
    };
    let mut slow = Vec::new();
    for _ in 0..17 {
        let mut one = body(&connection("127.0.0.1", &addresses));
        let _ = admission.hold(&mut one, 32 << 20);
        slow.push(one);
    }
    let other = connection("127.0.0.1", &addresses);
    let mut small = body(&other);
    admission.hold(&mut small, 200_000).unwrap();
    let refused = admission.hold(&mut body(&other), 32 << 20).unwrap_err();
    assert_eq!(refused.status(), 503);
    drop(slow);
    // One connection has a quarter, and what it gives back is free again.
    for _ in 0..2 {
        let mut of_one = Vec::new();
        for place in 0..8 {
            let mut one = body(&other);
            let held = admission.hold(&mut one, 32 << 20);
            assert_eq!(
                held.is_ok(),
                place < 3 + usize::from(small.units() == 0),
                "{place}"
            );
            of_one.push(one);
        }
        small = BodyMemory::default();
    }
}

#[tokio::test]
async fn a_long_prompt_does_not_wait_for_a_huge_one() {
    let admission = Admission::new(1, 1, 1 << 20);
    let _huge = Arc::clone(&admission.huge_inputs)
        .acquire_owned()
        .await
        .unwrap();
    assert_eq!(
        admission
            .work(INLINE_BYTES + 1, Work::Computes, || Ok(7))
            .await
            .unwrap(),
        7
    );
    let huge = admission.work(HUGE_BYTES, Work::Computes, || Ok(7));
    assert!(
        tokio::time::timeout(Duration::from_millis(20), huge)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn large_inputs_beyond_the_waiting_room_are_refused() {
    let admission = Arc::new(Admission::new(1, 1, 1 << 20));
    let _all = Arc::clone(&admission.waiting_inputs)
        .acquire_many_owned(WAITING_INPUTS as u32 + 1)
        .await
        .unwrap();
    let refused = admission
        .work(INLINE_BYTES + 1, Work::Computes, || Ok(()))
        .await
        .unwrap_err();
    assert_eq!(refused.status(), 503);
    assert_eq!(
        admission
            .work(INLINE_BYTES, Work::Computes, || Ok(7))
            .await
            .unwrap(),
        7
    );
}

#[test]
fn a_request_has_a_place_for_each_of_its_sequences() {
    let admission = Admission::new(4, 1, 1);
    let mut one = admission.admit(None).unwrap();
    one.widen(&admission, 1).unwrap();
    let mut two = admission.admit(None).unwrap();
    one.widen(&admission, 2).unwrap();
    let refused = |result: Result<(), ApiError>| result.unwrap_err().status();
    assert_eq!(
        refused(two.widen(&admission, 3)),
        429,
        "two of four are taken"
    );
    assert_eq!(
        refused(two.widen(&admission, 5)),
        400,
        "it can never have five"
    );
    two.widen(&admission, 2).unwrap();
    assert!(admission.admit(None).is_err());
    drop(one);
    assert_eq!(refused(two.widen(&admission, 5)), 400);
    two.widen(&admission, 4).unwrap();
    assert!(admission.admit(None).is_err());
    drop(two);
    assert_eq!(admission.requests.available_permits(), 4);
}

#[test]
fn sequences_and_tokens_count_for_the_key() {
    let admission = Admission::new(64, 1, 1);
    let quota = Arc::new(Quota::new("concurrent=3 tokens=100".parse().unwrap()));
    let client = Client::new(connection("127.0.0.1", &Arc::default()));
    client.has_key(&Arc::default(), Some(Arc::clone(&quota)));
    let mut request = admission.admit(Some(&client)).unwrap();
    assert_eq!(request.widen(&admission, 4).unwrap_err().status(), 400);
    request.widen(&admission, 3).unwrap();
    assert_eq!(admission.admit(Some(&client)).unwrap_err().status(), 429);
    request.used(30);
    // Some come back while the test runs.
    let left = quota.left().tokens.unwrap().remaining;
    assert!((70..100).contains(&left), "{left}");
    drop(request);
    assert!(admission.admit(Some(&client)).is_ok());
}

#[test]
fn the_last_places_are_for_clients_that_have_few() {
    let addresses = Arc::new(Addresses::default());
    let admission = Admission::new(64, 1, 1);
    let mut held: Vec<Admitted> = (0..55).map(|_| admission.admit(None).unwrap()).collect();
    let admit = |connection: &Arc<ClientConnection>| {
        let client = Client::new(Arc::clone(connection));
        let admitted = admission.admit(Some(&client));
        admitted.map(|place| (client, place))
    };
    let local = connection("127.0.0.1", &addresses);
    let one = admit(&local).unwrap();
    held.push(admission.admit(None).unwrap());
    assert_eq!(admission.requests.available_permits(), 7);
    assert!(admit(&local).is_err(), "its second of the last eighth");
    drop(one);
    assert!(admit(&local).is_ok());
    // An address, over its connections, may have four.
    let mut of_address = Vec::new();
    for _ in 0..4 {
        of_address.push(admit(&connection("10.0.0.1", &addresses)).unwrap());
    }
    assert!(admit(&connection("10.0.0.1", &addresses)).is_err());
    assert!(admit(&connection("10.0.0.2", &addresses)).is_ok());
    // With more than an eighth free, all may have what there is.
    held.truncate(40);
    let many: Vec<_> = (0..5).map(|_| admit(&local).unwrap()).collect();
    assert_eq!(many.len(), 5);
}

/// Memory of `units`, of which nobody's bodies hold `taken`.
fn memory(units: usize, taken: usize) -> (Admission, BodyMemory) {
    let admission = Admission::new(1, 1, units * BODY_UNIT);
    let mut others = BodyMemory::default();
    admission.hold(&mut others, taken * BODY_UNIT).unwrap();
    (admission, others)
}

#[test]
fn a_body_has_what_leaves_enough_for_others() {
    let addresses = Arc::new(Addresses::default());
    // Of 64 units, whether a body may have some where these connections of one address hold some: one alone as much
    // as leaves an eighth free, a connection a quarter and an address a half.
    for (of_connection, of_address, wanted, may) in [
        (0, &[][..], 56, true),
        (0, &[], 57, false),
        (15, &[], 1, true),
        (15, &[], 2, false),
        (0, &[14, 14], 4, true),
        (0, &[14, 14], 5, false),
        (4, &[14, 10], 4, true),
        (4, &[14, 10], 5, false),
    ] {
        let (admission, _others) = memory(64, 0);
        let mut held = Vec::new();
        let mine = connection("10.0.0.1", &addresses);
        let mut hold = |connection: &Arc<ClientConnection>, units: usize| {
            let mut body = BodyMemory::of(Some(&Client::new(Arc::clone(connection))));
            let is_held = admission.hold(&mut body, units * BODY_UNIT).is_ok();
            held.push(body);
            is_held
        };
        for units in of_address {
            assert!(hold(&connection("10.0.0.1", &addresses), *units));
        }
        assert!(hold(&mine, of_connection));
        let found = hold(&mine, wanted);
        assert_eq!(
            found, may,
            "{wanted} next to {of_connection}, {of_address:?}"
        );
    }
}

#[test]
fn a_body_grows_to_what_it_may_have_at_once() {
    let (admission, _others) = memory(64, 0);
    let client = Client::new(connection("10.0.0.1", &Arc::default()));
    let mut body = BodyMemory::of(Some(&client));
    for units in [1, 10, 20, 56] {
        admission.hold(&mut body, units * BODY_UNIT).unwrap();
        assert_eq!((body.units(), client.owner_body_units()), (units, units));
    }
    assert!(admission.hold(&mut body, 57 * BODY_UNIT).is_err());
    assert_eq!(
        client.connection_body_units(),
        56,
        "what is refused is not counted"
    );
    drop(body);
    assert_eq!(client.owner_body_units(), 0);
}

#[test]
fn the_last_memory_is_for_small_bodies_of_clients_that_hold_little() {
    let try_one = |units, taken, bytes| {
        let (admission, _others) = memory(units, taken);
        let client = Client::new(connection("127.0.0.1", &Arc::default()));
        admission
            .hold(&mut BodyMemory::of(Some(&client)), bytes)
            .is_ok()
    };
    // A connection may have a quarter of what is kept: 2 of 8 units, of 64.
    assert!(try_one(64, 56, 2 * BODY_UNIT));
    assert!(!try_one(64, 56, 3 * BODY_UNIT));
    // Of half a gigabyte that would be 16 MiB; a body of more than 1 MiB is not small.
    assert!(try_one(32_768, 28_672, 1 << 20));
    assert!(!try_one(32_768, 28_672, (1 << 20) + 1));
}

#[tokio::test(start_paused = true)]
async fn inputs_take_memory_in_proportion() {
    let admission = Admission::new(1, 4, 1);
    let kibibytes = |count: usize| count * 1024;
    let work = |bytes| admission.work(bytes, Work::Computes, || Ok(()));
    let all_but_100 = Arc::clone(&admission.input_memory)
        .acquire_many_owned(64 * 1024 - 100)
        .await
        .unwrap();
    assert!(work(kibibytes(100)).await.is_ok());
    assert_eq!(work(kibibytes(101)).await.unwrap_err().status(), 503);
    drop(all_but_100);
    assert!(work(usize::MAX).await.is_ok(), "the largest takes all");
}

#[tokio::test(start_paused = true)]
async fn small_inputs_wait_for_no_large_one() {
    let admission = Admission::new(1, 1, 1);
    let _threads = admission.large_inputs.acquire().await.unwrap();
    let _waiting = admission
        .waiting_inputs
        .acquire_many(WAITING_INPUTS as u32)
        .await
        .unwrap();
    // What only computes needs nothing up to 4 KiB; what renders has places that nothing else takes.
    let work = |bytes, kind| admission.work(bytes, kind, || Ok(()));
    assert!(work(4096, Work::Renders).await.is_ok());
    assert_eq!(work(4097, Work::Computes).await.unwrap_err().status(), 503);
    let _last = admission.waiting_inputs.acquire().await.unwrap();
    assert!(work(4096, Work::Computes).await.is_ok());
    assert_eq!(work(4096, Work::Renders).await.unwrap_err().status(), 503);
}
