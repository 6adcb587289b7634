use inflight_clients::client::Held;
use inflight_openai::responses::{self, InputItem};

use super::*;

fn store(entries: usize, bytes: usize, age_s: u64) -> Arc<ResponseStore> {
    ResponseStore::new(Bounds {
        entries,
        bytes,
        age: Duration::from_secs(age_s),
    })
}

fn items(text: &str) -> Vec<Item> {
    let body = format!(r#"{{"model": "m", "input": "{text}"}}"#);
    let request = responses::parse(body.as_bytes()).unwrap().request;
    let items = request.input.into_iter().map(|item| match item {
        InputItem::Item(item) => item,
        InputItem::Reference { id, .. } => panic!("{id}"),
    });
    items.collect()
}

fn keep(store: &Arc<ResponseStore>, id: u128, earlier: Conversation, text: &str) {
    keep_for(store, Owner::default(), id, earlier, text);
}

fn keep_for(store: &Arc<ResponseStore>, owner: Owner, id: u128, earlier: Conversation, text: &str) {
    let keeping = Keeping {
        store: Arc::clone(store),
        owner,
        id: ResponseId(id),
        earlier,
        input: items(text),
        background: None,
    };
    Keeper::new(keeping).keep(Bytes::from_static(b"{}"), items("answer"));
}

fn find(store: &ResponseStore, id: u128) -> Option<Kept> {
    store.find(ResponseId(id), &Owner::default())
}

#[test]
fn a_conversation_is_all_turns_and_outlives_its_earlier_responses() {
    let store = store(10, 1 << 20, 60);
    keep(&store, 1, Conversation::default(), "a");
    let first = find(&store, 1).unwrap();
    keep(&store, 2, first.conversation, "b");
    assert!(store.delete(ResponseId(1), &Owner::default()));
    assert!(!store.delete(ResponseId(1), &Owner::default()));
    assert!(find(&store, 1).is_none());
    let second = find(&store, 2).unwrap().conversation;
    assert_eq!((second.items().count(), second.input().count()), (4, 3));
    drop(second);
    assert!(store.delete(ResponseId(2), &Owner::default()));
    assert_eq!(
        store.bytes.load(Ordering::Relaxed),
        0,
        "all memory is given back"
    );
}

#[test]
fn the_oldest_go_first_when_there_are_too_many() {
    let store = store(2, 1 << 20, 60);
    for id in 0..5 {
        keep(&store, id, Conversation::default(), "a");
    }
    let kept: Vec<u128> = (0..5).filter(|id| find(&store, *id).is_some()).collect();
    assert_eq!(kept, [3, 4]);
}

#[test]
fn the_oldest_go_first_when_they_take_too_much_memory() {
    let bytes = 16 << 10;
    let store = store(1_000, bytes, 60);
    for id in 0..100 {
        keep(&store, id, Conversation::default(), &"x".repeat(500));
        assert!(store.bytes.load(Ordering::Relaxed) <= bytes);
    }
    let kept = (0..100).filter(|id| find(&store, *id).is_some()).count();
    assert!((5..40).contains(&kept), "{kept}");
    assert!(find(&store, 99).is_some());
    // One that is too large displaces nothing.
    keep(&store, 100, Conversation::default(), &"x".repeat(bytes / 2));
    assert!(find(&store, 100).is_none());
    let after = (0..100).filter(|id| find(&store, *id).is_some()).count();
    assert_eq!(after, kept);
}

#[test]
fn nothing_is_found_past_its_age() {
    let store = store(10, 1 << 20, 0);
    keep(&store, 1, Conversation::default(), "a");
    assert!(find(&store, 1).is_none());
    assert_eq!(store.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn each_key_sees_its_own_responses_alone() {
    let store = store(10, 1 << 20, 60);
    let (one, two) = (Arc::new(Held::default()), Arc::new(Held::default()));
    let (one, two) = (Owner::of_key(&one), Owner::of_key(&two));
    keep_for(&store, one.clone(), 1, Conversation::default(), "a");
    for other in [&two, &Owner::default()] {
        assert!(store.find(ResponseId(1), other).is_none());
        assert!(!store.delete(ResponseId(1), other));
    }
    assert!(store.find(ResponseId(1), &one).is_some());
}

fn head(id: u128) -> Head {
    let body = br#"{"model": "m", "input": "a", "background": true}"#;
    let request = responses::parse(body).unwrap().request;
    Head {
        id: ResponseId(id),
        created_at: 1,
        model: "m".to_owned(),
        settings: request.settings.into(),
        input_items: 1,
        seals_reasoning: false,
    }
}

fn begin(store: &Arc<ResponseStore>, id: u128, text: &str) -> Arc<Running> {
    let keeping = Keeping {
        store: Arc::clone(store),
        owner: Owner::default(),
        id: ResponseId(id),
        earlier: Conversation::default(),
        input: items(text),
        background: None,
    };
    store.begin(keeping, head(id), true)
}

fn body(kept: &Kept) -> serde_json::Value {
    serde_json::from_slice(&kept.body).unwrap()
}

#[tokio::test]
async fn what_runs_is_found_until_its_end_is_kept_once() {
    let store = store(10, 1 << 20, 60);
    let running = begin(&store, 1, "a");
    let owner = Owner::default();
    assert!(store.running(ResponseId(1), &owner).is_some());
    assert!(find(&store, 1).is_none());
    let events = running.events.clone().unwrap();
    events.append(b"data: 1\n\ndata: 2\n\n");
    events.append(b"data: 3\n\n");
    for (from, expected) in [(0, "data: 1\n\ndata: 2\n\ndata: 3\n\n"), (2, "data: 3\n\n")] {
        let next = Next::Events(Bytes::from_static(expected.as_bytes()), 3);
        assert_eq!(events.next(from).await, next);
    }
    let waits = tokio::time::timeout(Duration::from_millis(1), events.next(3));
    assert!(waits.await.is_err());
    running.keeper.keep_unanswered(Unanswered::Cancelled);
    running
        .keeper
        .keep(Bytes::from_static(b"late"), items("answer"));
    // Its last events may come after that.
    assert!(store.running(ResponseId(1), &owner).is_some());
    events.append(b"data: 4\n\n");
    store.end(ResponseId(1));
    let last = Next::Events(Bytes::from_static(b"data: 4\n\n"), 4);
    assert_eq!(events.next(3).await, last);
    assert_eq!(events.next(4).await, Next::End);
    assert!(store.running(ResponseId(1), &owner).is_none());
    assert_eq!(body(&find(&store, 1).unwrap())["status"], "cancelled");
    drop((running, events));
    assert!(store.delete(ResponseId(1), &owner));
    assert_eq!(store.bytes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn what_is_too_large_says_so() {
    let store = store(10, 16 << 10, 60);
    let running = begin(&store, 1, &"a".repeat(2 << 10));
    let events = running.events.clone().unwrap();
    let event = [&b"x".repeat(1 << 10)[..], b"\n\n"].concat();
    events.append(&event);
    events.append(&event);
    // An eighth is the most for one response.
    assert!(matches!(events.next(0).await, Next::Events(bytes, 1) if bytes.len() == event.len()));
    assert_eq!(events.next(1).await, Next::Cut);
    running
        .keeper
        .keep(Bytes::from_static(b"{}"), items("answer"));
    let kept = find(&store, 1).unwrap();
    assert_eq!(body(&kept)["status"], "failed");

    // Many events are no reason to lose the answer.
    let running = begin(&store, 2, "a");
    let events = running.events.clone().unwrap();
    (0..4).for_each(|_| events.append(&event));
    let answer = Bytes::from_static(b"{\"status\": \"completed\"}");
    running.keeper.keep(answer, items("answer"));
    assert_eq!(body(&find(&store, 2).unwrap())["status"], "completed");
}
