//! What a server says, and what becomes of requests.

use inflight_blocks::{Seed, keys};
use inflight_kv_events::{Batch, BlockHash, Event, Removed, Stored};

use super::*;
use crate::metrics::Placements;
use crate::placement::{CacheQuery, CacheReports, Placement};

const BLOCK: u32 = 16;

fn figures() -> Figures {
    let text = format!(
        "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n\
         vllm:cache_config_info{{block_size=\"{BLOCK}\",num_gpu_blocks=\"100\"}} 1\n"
    );
    Figures::read(&text).unwrap()
}

fn prompt() -> Vec<i32> {
    (0..64).collect()
}

fn stored(hashes: &[u64], tokens: Vec<i32>) -> Heard {
    Heard::Batch(Batch {
        events: vec![Event::Stored(Stored {
            hashes: hashes.iter().map(|one| BlockHash::Number(*one)).collect(),
            tokens: Some(tokens),
            block_tokens: BLOCK,
            ..Stored::default()
        })],
        ..Batch::default()
    })
}

fn lost() -> Heard {
    Heard::Lost {
        is_late: false,
        reason: String::new(),
    }
}

struct Fleet {
    placement: Arc<Placement>,
    seats: Vec<Arc<Seat>>,
    feeds: Vec<Feed>,
}

/// Two servers of one model.
fn fleet(has_events: bool) -> Fleet {
    let placement = Arc::new(Placement::new(Placements::default()));
    let seats: Vec<_> = (0..2).map(|_| placement.join().unwrap()).collect();
    let feeds = seats.iter().map(|seat| {
        let mut feed = Feed::new(has_events);
        feed.set_models([Arc::clone(seat)].into_iter(), HashMap::new());
        feed
    });
    Fleet {
        placement,
        feeds: feeds.collect(),
        seats,
    }
}

impl Fleet {
    /// Tokens that a server is expected to hold of the prompt; `None`: nothing is asked for.
    fn expected(&self, place: usize) -> Option<u32> {
        let size = self.placement.block_tokens()?;
        let seed = Some(Seed::new(None, b""));
        let ask = CacheQuery::of_one(&prompt(), seed, false, size);
        let (_, placed) = self
            .placement
            .assign(&ask, std::iter::once(&self.seats[place]))?;
        Some(placed.expected_cached())
    }
}

#[test]
fn events_say_where_a_prompt_is() {
    let mut fleet = fleet(true);
    assert_eq!(fleet.expected(0), None);
    for feed in &mut fleet.feeds {
        assert_eq!(feed.tick(Some(figures())), None);
        assert_eq!(feed.hear(&Heard::Connected), None);
    }
    assert_eq!(fleet.feeds[1].hear(&stored(&[1, 2, 3, 4], prompt())), None);
    assert_eq!((fleet.expected(0), fleet.expected(1)), (Some(0), Some(64)));
    let removed = Heard::Batch(Batch {
        events: vec![Event::Removed(Removed {
            hashes: vec![BlockHash::Number(4)],
            ..Removed::default()
        })],
        ..Batch::default()
    });
    assert_eq!(fleet.feeds[1].hear(&removed), None);
    assert_eq!(fleet.expected(1), Some(48));
    assert_eq!(fleet.feeds[1].blocks(), Some((3, 0)));
}

#[test]
fn a_size_that_only_events_say_is_enough() {
    let mut fleet = fleet(true);
    let feed = &mut fleet.feeds[1];
    assert_eq!(feed.hear(&Heard::Connected), None);
    assert_eq!(feed.hear(&stored(&[1, 2, 3, 4], prompt())), None);
    assert_eq!(feed.tick(None), None);
    assert_eq!(fleet.expected(1), Some(64));
    let key = keys(&prompt(), BLOCK as usize, Seed::new(None, b""));
    assert_eq!(key.len(), 4);
}

#[test]
fn each_fault_is_named_and_passes() {
    for (heard, fault, kept) in [
        (Heard::Missed, Fault::Gap, Some(64)),
        (lost(), Fault::Lost, Some(64)),
        (
            Heard::Lost {
                is_late: true,
                reason: String::new(),
            },
            Fault::Late,
            Some(64),
        ),
        // 2,000 blocks of a cache that has 100.
        (
            stored(
                &(10..2010).collect::<Vec<_>>(),
                vec![1; 2000 * BLOCK as usize],
            ),
            Fault::Impossible,
            Some(0),
        ),
    ] {
        let mut fleet = fleet(true);
        let feed = &mut fleet.feeds[1];
        feed.tick(Some(figures()));
        feed.hear(&Heard::Connected);
        feed.hear(&stored(&[1, 2, 3, 4], prompt()));
        assert_eq!(feed.hear(&heard), Some(fault));
        let seat = Arc::clone(&fleet.seats[1]);
        assert_eq!(seat.cache_reports(), CacheReports::Faulty(fault));
        // Named once, as long as it is the same.
        assert_eq!(fleet.feeds[1].doubt(fault), None);
        if matches!(heard, Heard::Lost { .. }) {
            fleet.feeds[1].tick(Some(figures()));
            assert_eq!(seat.cache_reports(), CacheReports::Faulty(fault));
            fleet.feeds[1].hear(&Heard::Connected);
        }
        assert_eq!(seat.cache_reports(), CacheReports::Faulty(fault));
        // The first second may have just begun.
        for _ in 0..2 {
            fleet.feeds[1].tick(Some(figures()));
        }
        assert_eq!(seat.cache_reports(), CacheReports::Reporting, "{fault:?}");
        assert_eq!(fleet.expected(1), kept, "{fault:?}");
    }
}

#[test]
fn a_server_that_started_again_holds_nothing() {
    let mut fleet = fleet(true);
    let feed = &mut fleet.feeds[1];
    feed.tick(Some(figures()));
    feed.hear(&Heard::Connected);
    feed.hear(&stored(&[1, 2, 3, 4], prompt()));
    assert_eq!(feed.hear(&Heard::Restarted), None);
    assert_eq!(fleet.expected(1), Some(0));
}

#[test]
fn without_events_a_server_is_estimated_and_its_load_is_heard() {
    let mut fleet = fleet(false);
    assert_eq!(fleet.feeds[0].tick(None), None);
    assert_eq!(fleet.seats[0].cache_reports(), CacheReports::Silent);
    for feed in &mut fleet.feeds {
        assert_eq!(feed.tick(Some(figures())), None);
        assert_eq!(feed.blocks(), None);
    }
    let usage = fleet.seats[0].cache_usage().unwrap();
    assert_eq!((usage.blocks, usage.used), (100, 0));
    // The second request finds what the first left.
    assert_eq!((fleet.expected(0), fleet.expected(0)), (Some(0), Some(64)));
    assert_eq!(fleet.feeds[0].tick(Some(figures())), None);
    assert_eq!(fleet.expected(0), Some(64));
    assert_eq!(fleet.feeds[0].doubt(Fault::Late), Some(Fault::Late));
    assert_eq!(
        fleet.seats[0].cache_reports(),
        CacheReports::Faulty(Fault::Late)
    );
}
