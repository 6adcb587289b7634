//! Which worker a request goes to, and what stays known of one that is away.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use inflight_kserve::assets::ModelDescription;
use inflight_kserve::cache_state::{CacheShape, CacheUpdate, WorkerLoad};
use inflight_models::served::Protocol;
use inflight_models::served::ServedModel;
use inflight_testkit::model::byte_model_files;
use inflight_text::{ModelFiles, TextModel};

use super::*;
use crate::connection::Transport;
use crate::handles::Handle;
use crate::phases::{Disaggregate, Phases};
use crate::placement::{BlockKeys, Placed, Prompts};
use crate::prompt_request::PromptRequest;
use crate::registry::Sequences;
use crate::request_queue::NotSent;
use crate::slot::PREPARING;

#[derive(Debug)]
struct NoTransport;

impl Transport for NoTransport {
    fn send(&self, _: Handle, _: &PromptRequest<'_>, _: u32) -> Result<(), NotSent> {
        Ok(())
    }
    fn stop(&self, _: Handle) {}
    fn close(&self) {}
}

fn connection(slot: &WorkerSlot, model: &str, hash: &str) -> Arc<Connection> {
    let protocol = match slot.is_watched() {
        true => Protocol::Watched,
        false => Protocol::StepBatching,
    };
    let files: ModelFiles = byte_model_files()
        .into_iter()
        .map(|(name, data)| (name, data.to_vec()))
        .collect();
    let description = ModelDescription {
        served_model_name: model.to_owned(),
        content_hash: hash.to_owned(),
        ..ModelDescription::default()
    };
    let text = Arc::new(TextModel::load(&files).unwrap());
    let served = Arc::new(ServedModel {
        description,
        text: Some(text),
        template: None,
        protocol,
    });
    let address = Arc::clone(&slot.address);
    Arc::new(Connection::new(
        address,
        served,
        Arc::clone(&slot.pulse),
        Box::new(NoTransport),
        Arc::default(),
    ))
}

fn table() -> Table {
    Table::new(&["a:1".to_owned(), "b:1".to_owned(), "c:1".to_owned()])
}

fn ready(table: &Table, index: usize, model: &str, hash: &str) -> Arc<Connection> {
    let slot = Arc::clone(&table.workers()[index]);
    let connection = connection(&slot, model, hash);
    table.set_ready(&slot, vec![Arc::clone(&connection)]);
    connection
}

fn suits(content_hash: &str) -> Suits<'_> {
    Suits {
        content_hash,
        adapter: None,
        phases: Phases::Both,
        resumes: false,
        weights: None,
        watched: false,
        without: None,
    }
}

#[test]
fn a_name_is_unknown_only_once_every_worker_has_spoken() {
    let table = table();
    assert_eq!(table.find("m").unwrap_err(), NoModel::NotYet);
    ready(&table, 0, "m", "h");
    ready(&table, 1, "m", "h");
    assert!(table.find("m").is_ok());
    assert_eq!(table.find("other").unwrap_err(), NoModel::NotYet);
    ready(&table, 2, "n", "h");
    assert_eq!(table.find("other").unwrap_err(), NoModel::Unknown);
}

#[test]
fn ties_take_turns_and_the_least_loaded_wins() {
    let table = table();
    let connections: Vec<_> = (0..3).map(|index| ready(&table, index, "m", "h")).collect();
    let entry = table.find("m").unwrap();
    let pick = || {
        entry
            .pick(suits("h"), &[], &Prompts::new(&[], &BlockKeys::default()))
            .unwrap()
            .0
            .address
            .to_string()
    };
    // Asking what to prepare for does not use up a turn.
    let prepare_and_pick = || entry.next_served().map(|_| pick()).unwrap();
    let turns: Vec<_> = (0..6).map(|_| prepare_and_pick()).collect();
    assert_eq!(turns, ["a:1", "b:1", "c:1", "a:1", "b:1", "c:1"]);
    for busy in [0, 2] {
        connections[busy]
            .open(Arc::default(), Sequences::default())
            .unwrap();
    }
    assert!((0..4).all(|_| pick() == "b:1"));
    let elsewhere = entry
        .pick(
            suits("h"),
            &["b:1".into()],
            &Prompts::new(&[], &BlockKeys::default()),
        )
        .unwrap()
        .0;
    assert_eq!(&*elsewhere.address, "a:1");
    let tried = ["a:1", "b:1", "c:1"].map(Arc::from);
    assert!(
        entry
            .pick(
                suits("h"),
                &tried,
                &Prompts::new(&[], &BlockKeys::default())
            )
            .is_none()
    );
}

#[test]
fn what_a_worker_does_for_other_models_is_load_as_well() {
    let table = Table::new(&["a:1".to_owned(), "b:1".to_owned()]);
    for slot in table.workers().iter() {
        let models = ["m", "n"].map(|model| connection(slot, model, "h"));
        table.set_ready(slot, models.to_vec());
    }
    let of_n = table.workers()[0].connection("n").unwrap();
    let _open = of_n.open(Arc::default(), Sequences::default()).unwrap();
    let entry = table.find("m").unwrap();
    for _ in 0..3 {
        let picked = entry
            .pick(suits("h"), &[], &Prompts::new(&[], &BlockKeys::default()))
            .unwrap()
            .0;
        assert_eq!(&*picked.address, "b:1");
    }
}

#[tokio::test]
async fn workers_that_report_are_placed_and_those_without_a_place_are_picked_too() {
    let table = table();
    let seated = |index: usize| {
        let slot = Arc::clone(&table.workers()[index]);
        let seat = table.placement("m").join();
        let connection = Arc::into_inner(connection(&slot, "m", "h")).unwrap();
        let connection = Arc::new(connection.seated(seat));
        table.set_ready(&slot, vec![Arc::clone(&connection)]);
        connection
    };
    let heard = [seated(0), seated(1)];
    let entry = table.find("m").unwrap();
    let pick = || {
        entry
            .pick(suits("h"), &[], &Prompts::new(&[], &BlockKeys::default()))
            .unwrap()
    };
    assert!(pick().1.is_none(), "none is heard");
    for connection in &heard {
        let update = CacheUpdate {
            sequence: 1,
            snapshot_begin: true,
            shape: Some(CacheShape::default()),
            load: Some(WorkerLoad::default()),
            ..CacheUpdate::default()
        };
        connection.seat().unwrap().take(&update).unwrap();
    }
    let placed: Vec<_> = (0..4).map(|_| pick()).collect();
    let at = |address: &str| {
        let is_there = |(connection, placed): &&(Arc<Connection>, Option<Placed>)| {
            placed.is_some() && &*connection.address == address
        };
        placed.iter().filter(is_there).count()
    };
    assert_eq!((at("a:1"), at("b:1")), (2, 2));
    // One more without a place: all are picked by their number of requests.
    ready(&table, 2, "m", "h");
    let entry = table.find("m").unwrap();
    let addresses: BTreeSet<_> = (0..3)
        .map(|_| {
            entry
                .pick(suits("h"), &[], &Prompts::new(&[], &BlockKeys::default()))
                .unwrap()
        })
        .map(|(connection, placed)| (connection.address.to_string(), placed.is_none()))
        .collect();
    let all = ["a:1", "b:1", "c:1"].map(|address| (address.to_owned(), true));
    assert_eq!(addresses, BTreeSet::from(all));
}

#[tokio::test]
async fn a_worker_that_is_taken_out_keeps_its_requests_and_gets_no_more() {
    let table = table();
    let old = ready(&table, 0, "m", "h");
    ready(&table, 1, "n", "h");
    let handle = old.open(Arc::default(), Sequences::default()).unwrap();
    let slot = Arc::clone(&table.workers()[0]);
    let added = table.configure(&["b:1".to_owned(), "d:1".to_owned(), "d:1".to_owned()]);
    let shown = |slots: &[Arc<WorkerSlot>]| -> Vec<String> {
        slots.iter().map(|slot| slot.address.to_string()).collect()
    };
    assert_eq!(shown(&added), ["d:1"]);
    assert_eq!(shown(&table.workers()), ["b:1", "d:1", "a:1", "c:1"]);
    assert!(!slot.is_ready() && slot.reason().starts_with("taken out"));
    assert_eq!(table.find("m").unwrap_err(), NoModel::NotYet);
    assert!(table.find("n").is_ok());
    // Its model is only another worker's again.
    ready(&table, 0, "m", "h");
    assert_eq!(
        &*table
            .find("m")
            .unwrap()
            .pick(suits("h"), &[], &Prompts::new(&[], &BlockKeys::default()))
            .unwrap()
            .0
            .address,
        "b:1"
    );
    let soon = PREPARING + Duration::from_millis(120);
    let released = tokio::time::timeout(soon, slot.released());
    assert!(released.await.is_err(), "it has a request");
    let late = old
        .open(Arc::default(), Sequences::default())
        .expect("one may be on its way");
    old.cancel(handle);
    old.cancel(late);
    slot.released().await;
    table.remove(&slot);
    assert!(old.open(Arc::default(), Sequences::default()).is_err());
    assert_eq!(shown(&table.workers()), ["b:1", "d:1", "c:1"]);
    // Put in again, it is another.
    assert_eq!(shown(&table.configure(&["a:1".to_owned()])), ["a:1"]);
    table.configure(&[]);
    assert_eq!(table.find("x").unwrap_err(), NoModel::NotYet);
}

#[test]
fn a_lost_worker_is_passed_over_and_its_model_stays_known() {
    let table = table();
    ready(&table, 0, "m", "old");
    ready(&table, 1, "m", "new");
    let entry = table.find("m").unwrap();
    let pick = |hash| {
        entry
            .pick(suits(hash), &[], &Prompts::new(&[], &BlockKeys::default()))
            .map(|(connection, _)| connection.address.to_string())
    };
    assert_eq!(
        (0..3).filter_map(|_| pick("new")).collect::<Vec<_>>(),
        ["b:1"; 3]
    );
    table.set_lost(&table.workers()[1], "gone");
    assert_eq!(pick("new"), None);
    assert_eq!(pick("old").as_deref(), Some("a:1"));
    table.set_lost(&table.workers()[0], "gone");
    assert!(
        table
            .find("m")
            .is_ok_and(|entry| entry.next_served().is_none())
    );
    assert!(!table.ready());
    assert_eq!(table.workers()[0].reason(), "gone");
}

#[test]
fn workers_for_contexts_get_whole_requests_where_no_other_can() {
    let table = table();
    for (index, phases) in [
        assets::Phases::Context,
        assets::Phases::Context,
        assets::Phases::Generation,
    ]
    .into_iter()
    .enumerate()
    {
        let slot = Arc::clone(&table.workers()[index]);
        let mut description = ModelDescription {
            served_model_name: "m".to_owned(),
            content_hash: "h".to_owned(),
            capabilities: vec!["context_phase".to_owned()],
            ..ModelDescription::default()
        };
        description.set_phases(phases);
        let served = Arc::new(ServedModel {
            description,
            text: None,
            template: None,
            protocol: Protocol::StepBatching,
        });
        let connection = Connection::new(
            Arc::clone(&slot.address),
            served,
            Arc::clone(&slot.pulse),
            Box::new(NoTransport),
            Arc::default(),
        );
        table.set_ready(&slot, vec![Arc::new(connection)]);
    }
    let entry = table.find("m").unwrap();
    let left = Bytes::new();
    let pick = |phases, tried: &[&str]| {
        let suits = Suits {
            phases,
            ..suits("h")
        };
        let tried: Vec<Arc<str>> = tried.iter().map(|one| Arc::from(*one)).collect();
        let (picked, _) = entry.pick(suits, &tried, &Prompts::new(&[], &BlockKeys::default()))?;
        Some(picked.address.to_string())
    };
    let is_split = |tried: &[&str]| {
        let tried: Vec<Arc<str>> = tried.iter().map(|one| Arc::from(*one)).collect();
        let always = entry.should_split(
            Disaggregate::Always,
            suits("h"),
            &tried,
            &Prompts::new(&[], &BlockKeys::default()),
        );
        assert!(!entry.should_split(
            Disaggregate::Never,
            suits("h"),
            &tried,
            &Prompts::new(&[], &BlockKeys::default())
        ));
        // Nothing is known of them.
        assert_eq!(
            entry.should_split(
                Disaggregate::Auto,
                suits("h"),
                &tried,
                &Prompts::new(&[], &BlockKeys::default())
            ),
            always
        );
        always
    };
    for _ in 0..3 {
        assert_eq!(pick(Phases::Both, &[]).unwrap(), "c:1");
        assert_eq!(pick(Phases::Generation(&left), &[]).unwrap(), "c:1");
        assert_eq!(pick(Phases::Context, &["a:1"]).unwrap(), "b:1");
    }
    assert_eq!(pick(Phases::Both, &["c:1", "a:1"]).unwrap(), "b:1");
    assert_eq!(pick(Phases::Generation(&left), &["c:1"]), None);
    assert_eq!(pick(Phases::Context, &["a:1", "b:1"]), None);
    assert!(is_split(&[]) && is_split(&["a:1"]));
    assert!(!is_split(&["c:1"]) && !is_split(&["a:1", "b:1"]));
}

#[test]
fn a_watched_server_is_picked_for_others_alone() {
    let table = Table::new(&["a:1".to_owned(), "http://b:1".to_owned()]);
    let pick = |watched| {
        let suits = Suits {
            watched,
            ..suits("h")
        };
        let entry = table.find("m").unwrap();
        let picked = entry.pick(suits, &[], &Prompts::new(&[], &BlockKeys::default()));
        picked.map(|(connection, _)| connection)
    };
    let watched = ready(&table, 1, "m", "other");
    assert!(watched.is_watched());
    assert!(pick(false).is_none(), "nothing can be sent there");
    assert!(Arc::ptr_eq(&pick(true).unwrap(), &watched));
    let entry = table.find("m").unwrap();
    assert!(entry.is_only_watched() && entry.next_served().is_none());
    let hash = |entry: &ModelEntry| {
        entry
            .next_endpoint()
            .map(|served| served.description.content_hash.clone())
    };
    assert_eq!(hash(&entry).as_deref(), Some("other"));

    let worker = ready(&table, 0, "m", "h");
    let entry = table.find("m").unwrap();
    assert!(!entry.is_only_watched());
    assert_eq!(
        hash(&entry).as_deref(),
        Some("h"),
        "of a server that can be asked, if there is one"
    );
    assert!((0..4).all(|_| Arc::ptr_eq(&pick(false).unwrap(), &worker)));
    // What somebody else sent there counts for as long as it is open.
    let slot = Arc::clone(&table.workers()[1]);
    let open = Visit::new(Arc::clone(&slot), None, Vec::new(), None);
    assert_eq!((watched.active(), slot.active()), (0, 1));
    assert!((0..4).all(|_| Arc::ptr_eq(&pick(true).unwrap(), &worker)));
    drop(open);
    let picked: Vec<_> = (0..4).map(|_| pick(true).unwrap()).collect();
    assert!(picked.iter().any(|one| Arc::ptr_eq(one, &watched)));
}

#[test]
fn those_that_would_be_next_are_named_in_their_order() {
    let table = table();
    for index in 0..3 {
        ready(&table, index, "m", "h");
    }
    let workers = table.workers();
    // The first has two requests, the second one, the third none.
    let open = [0, 0, 1].map(|index: usize| {
        let slot = Arc::clone(&workers[index]);
        Visit::new(slot, None, Vec::new(), None)
    });
    let entry = table.find("m").unwrap();
    let names = |visit: &Visit| {
        let all = std::iter::once(visit.worker()).chain(visit.others());
        all.map(ToString::to_string).collect::<Vec<_>>()
    };
    for (others, expected) in [
        (0, &["c:1"][..]),
        (1, &["c:1", "b:1"][..]),
        (3, &["c:1", "b:1", "a:1"][..]),
    ] {
        let by_model = entry.pick_visited(suits("h"), |_| true, None, others);
        assert_eq!(names(&by_model.unwrap()), expected);
        let of_any = table.pick_visited(|_| true, others);
        assert_eq!(names(&of_any.unwrap()), expected);
    }
    let fits = |slot: &WorkerSlot| &*slot.address != "b:1";
    let visit = entry.pick_visited(suits("h"), fits, None, 3).unwrap();
    assert_eq!(names(&visit), ["c:1", "a:1"]);
    drop(open);
}

#[test]
fn a_request_that_went_elsewhere_counts_there() {
    let table = table();
    for index in 0..2 {
        ready(&table, index, "m", "h");
    }
    let entry = table.find("m").unwrap();
    let mut visit = entry.pick_visited(suits("h"), |_| true, None, 1).unwrap();
    let of = |address: &str| {
        let workers = table.workers();
        let slot = workers.iter().find(|slot| *slot.address == *address);
        Arc::clone(slot.unwrap())
    };
    let first = of(visit.worker());
    let next = of(visit.others().next().unwrap());
    let active = || (first.active(), next.active());
    assert_eq!(active(), (1, 0));
    visit.moved(&next);
    assert_eq!(active(), (0, 1));
    assert_eq!(visit.worker(), &next.address);
    drop(visit);
    assert_eq!(active(), (0, 0));
}

#[test]
fn a_watched_server_has_no_kserve_to_wait_for() {
    let table = Table::new(&["http://b:1".to_owned()]);
    ready(&table, 0, "m", "h");
    let picked = table.pick_peer("m", "", |_| true, None);
    assert_eq!(picked.unwrap_err(), NoPeer::Unknown);
    assert!(table.ready());
}
