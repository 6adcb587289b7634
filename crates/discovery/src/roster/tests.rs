use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(900);

fn list(listed: &[&str], leaving: &[&str], missing: Missing) -> Listing {
    let owned = |addresses: &[&str]| addresses.iter().map(|one| (*one).to_owned()).collect();
    Listing {
        listed: owned(listed),
        leaving: owned(leaving),
        missing,
    }
}

fn doubtful(listed: &[&str]) -> Listing {
    list(listed, &[], Missing::Doubtful)
}

/// A roster of one source, the workers that answer, and the time.
struct Scene {
    roster: Roster,
    answering: BTreeSet<&'static str>,
    now: Instant,
}

impl Scene {
    fn new(answering: &[&'static str]) -> Self {
        Self {
            roster: Roster::new(1, GRACE),
            answering: answering.iter().copied().collect(),
            now: Instant::now(),
        }
    }

    fn hear(&mut self, listing: Listing) -> Vec<String> {
        let answering = &self.answering;
        let heard = self
            .roster
            .hear(0, listing, self.now, |one| answering.contains(one));
        heard.unwrap().doubted
    }

    fn after(&mut self, seconds: u64) -> Vec<String> {
        // As the caller does, once a second.
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.settle();
        }
        self.settle()
    }

    fn settle(&mut self) -> Vec<String> {
        let answering = &self.answering;
        self.roster.settle(self.now, |one| answering.contains(one))
    }
}

#[test]
fn what_a_source_loses_stays_while_it_answers_and_no_longer_than_the_grace() {
    let mut scene = Scene::new(&["a", "b"]);
    scene.hear(doubtful(&["a", "b"]));
    assert_eq!(scene.settle(), ["a", "b"]);
    assert_eq!(scene.hear(doubtful(&[])), ["a", "b"]);
    assert_eq!(scene.after(600), ["a", "b"]);
    // It is said once, and lasts from when it began.
    assert!(scene.hear(doubtful(&[])).is_empty());
    scene.answering.remove("b");
    assert_eq!(scene.after(9), ["a", "b"]);
    assert_eq!(scene.after(1), ["a"]);
    assert_eq!(scene.after(289), ["a"]);
    assert!(scene.roster.is_waiting());
    assert!(scene.after(1).is_empty());
    assert!(!scene.roster.is_waiting());
}

#[test]
fn a_source_that_flaps_changes_nothing() {
    let mut scene = Scene::new(&["a", "b"]);
    for _ in 0..1000 {
        for listed in [&["a", "b"][..], &["b"], &[], &["a"]] {
            scene.hear(doubtful(listed));
            let after: BTreeSet<_> = scene.after(1).into_iter().collect();
            let all = ["a", "b"].map(str::to_owned);
            // Nothing before it was listed, and nothing lost since.
            assert_eq!(after, BTreeSet::from(all));
        }
    }
}

#[test]
fn a_worker_that_does_not_answer_is_taken_out_as_soon_as_nobody_lists_it() {
    let mut scene = Scene::new(&["a"]);
    scene.hear(doubtful(&["a", "dead"]));
    assert_eq!(scene.settle(), ["a", "dead"]);
    assert!(scene.hear(doubtful(&["a"])).is_empty());
    assert_eq!(scene.settle(), ["a"]);
}

#[test]
fn a_worker_that_leaves_is_taken_out_at_once_unless_it_is_the_last_that_answers() {
    let mut scene = Scene::new(&["a", "b"]);
    scene.hear(doubtful(&["a", "b", "starting"]));
    scene.hear(list(&["b", "starting"], &["a"], Missing::Doubtful));
    assert_eq!(scene.settle(), ["b", "starting"]);
    // The last one: what else is listed does not answer yet.
    let last = list(&["starting"], &["a", "b"], Missing::Doubtful);
    assert!(scene.hear(last).is_empty());
    assert_eq!(scene.after(30), ["starting", "b"]);
    scene.answering.insert("starting");
    assert_eq!(scene.settle(), ["starting"]);
    // A worker that was never listed as one is not added to leave.
    scene.hear(list(&["starting"], &["new"], Missing::Doubtful));
    assert_eq!(scene.settle(), ["starting"]);
}

#[test]
fn a_doubted_worker_that_leaves_after_all_is_taken_out() {
    let mut scene = Scene::new(&["a", "b"]);
    scene.hear(doubtful(&["a", "b"]));
    scene.hear(doubtful(&["b"]));
    assert_eq!(scene.settle(), ["b", "a"]);
    scene.hear(list(&["b"], &["a"], Missing::Doubtful));
    assert_eq!(scene.settle(), ["b"]);
}

#[test]
fn what_a_file_no_longer_lists_is_taken_out_at_once_though_doubted_before() {
    let mut scene = Scene::new(&["a", "b"]);
    scene.hear(list(&["a", "b"], &[], Missing::TakenOut));
    scene.hear(list(&["b"], &[], Missing::TakenOut));
    assert_eq!(scene.settle(), ["b"]);
    scene.hear(doubtful(&[]));
    assert_eq!(scene.settle(), ["b"]);
    scene.hear(list(&[], &[], Missing::TakenOut));
    assert!(scene.settle().is_empty());
}

#[test]
fn no_grace_means_at_once() {
    let mut scene = Scene::new(&["a"]);
    scene.roster = Roster::new(1, Duration::ZERO);
    scene.hear(doubtful(&["a"]));
    scene.hear(doubtful(&[]));
    assert!(scene.settle().is_empty());
}

#[test]
fn an_address_stays_as_long_as_any_source_has_it() {
    let now = Instant::now();
    let mut roster = Roster::new(2, GRACE);
    let nobody = |_: &str| false;
    roster.hear(0, doubtful(&["a", "b"]), now, nobody).unwrap();
    roster.hear(1, doubtful(&["b", "c"]), now, nobody).unwrap();
    assert_eq!(roster.settle(now, nobody), ["a", "b", "c"]);
    roster.hear(0, doubtful(&[]), now, nobody).unwrap();
    assert_eq!(roster.settle(now, nobody), ["b", "c"]);
}

#[test]
fn a_source_that_lists_too_much_changes_nothing() {
    let mut scene = Scene::new(&["a"]);
    scene.hear(doubtful(&["a"]));
    let many = (0..=MAX_ADDRESSES).map(|number| format!("host-{number}:1"));
    let many = Listing::new(many.collect(), Missing::Doubtful);
    let now = scene.now;
    let heard = scene.roster.hear(0, many, now, |_| true);
    assert_eq!(heard, Err(TooMany(MAX_ADDRESSES + 1)));
    assert_eq!(scene.settle(), ["a"]);
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn some() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(NAMES.to_vec(), 0..=4)
}

proptest! {
    /// Whatever doubtful sources say, and in whatever order: a worker that was listed and answers all the time counts
    /// until the grace is over, what is listed counts, and nothing counts that never was.
    #[test]
    fn workers_that_answer_outlive_any_source(
        answering in some(),
        said in proptest::collection::vec((some(), 0..60u64), 1..15),
    ) {
        let mut scene = Scene::new(&answering);
        let mut ever = BTreeSet::new();
        for (listed, seconds) in said {
            scene.hear(doubtful(&listed));
            ever.extend(listed.iter().copied());
            // 15 times 59 s are within the grace.
            let counted = scene.after(seconds);
            for name in NAMES {
                let counts = counted.iter().any(|one| one == name);
                let answers = answering.contains(&name) && ever.contains(name);
                prop_assert_eq!(counts, listed.contains(&name) || answers, "{}", name);
            }
            let unique: BTreeSet<_> = counted.iter().collect();
            prop_assert_eq!(unique.len(), counted.len());
        }
    }
}
