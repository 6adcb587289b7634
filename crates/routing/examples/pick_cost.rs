//! What a pick costs: lookup and choice among 1,000 servers, for a prompt of 3,000 blocks, with one open request at each of
//! them whose prompt begins alike.
//!
//! `cargo run --release -p inflight-routing --example pick_cost`

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use inflight_routing::coming::Coming;
use inflight_routing::expectation::{Expectations, Report};
use inflight_routing::index::{Held, Index, Level};
use inflight_routing::{Eligible, Request, choose};

const SERVERS: u32 = 1000;
const BLOCKS: u64 = 3000;
const PICKS: u32 = 500;
const ROUNDS: u32 = 50;

/// The chain key of a block of one of several prompts, which have the first `common` blocks in common.
fn key(prompt: u64, place: u64, common: u64) -> u64 {
    let prompt = if place < common { 0 } else { prompt + 1 };
    (prompt << 32 | place).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn main() {
    println!(
        "{:>10} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "depths", "holders", "lookup us", "choice us", "pick us", "count us"
    );
    // How many depths the prompt's holders differ in, and how many hold its whole beginning.
    for (depths, common) in [(0, 0), (1, 3000), (2, 20), (8, 20), (32, 200)] {
        let mut index = Index::new(1 << 22);
        let mut expectations = Expectations::new(1);
        let mut coming = Coming::default();
        for server in 0..SERVERS {
            expectations.add(server);
            expectations.reported(
                server,
                &Report {
                    at: f64::from(server % 7),
                    queued_tokens: u64::from(server) * 37 % 9000,
                    computed_tokens: 8192,
                    computed_seconds: 0.8,
                    ..Report::default()
                },
            );
            if depths == 0 {
                continue;
            }
            // Every server has the beginning and a prompt of its own; some have parts of the prompt in question.
            let keys: Vec<u64> = (0..common).map(|place| key(0, place, common)).collect();
            index.stored(server, None, &keys, Level::Device);
            let part = u64::from(server % 16) * depths / 16 * BLOCKS / depths;
            let prompt = if server % 16 == 0 {
                0
            } else {
                u64::from(server)
            };
            let rest: Vec<u64> = (common..part.max(common + 8))
                .map(|place| key(if server < 64 { 0 } else { prompt }, place, common))
                .collect();
            index.stored(server, keys.last().copied(), &rest, Level::Device);
            let open: Arc<[u64]> = [keys, rest].concat().into();
            coming.sent(server, &open);
        }
        let keys: Vec<u64> = (0..BLOCKS).map(|place| key(0, place, common)).collect();
        let request = Request {
            tokens: 32 * BLOCKS as u32,
            block_tokens: 32,
            is_urgent: false,
            spares_streams: false,
            transfer: None,
        };
        let mut held = Held::default();
        let lookup = cost(|_| {
            index.find(black_box(&keys), &mut held);
            coming.find(black_box(&keys), &mut held);
        });
        let asked: Arc<[u64]> = keys.as_slice().into();
        let sent = cost(|_| {
            coming.sent(7, black_box(&asked));
            coming.ended(7, &asked);
        });
        let eligible = || (0..SERVERS).map(|server| Eligible { server, delay: 0.0 });
        let choice = cost(|pick| {
            let now = 10.0 + f64::from(pick) * 1e-6;
            black_box(choose(&request, eligible(), &held, &expectations, now));
        });
        let depth = held.servers().len();
        println!(
            "{depths:>10} {depth:>8} {lookup:>10.2} {choice:>10.2} {:>10.2} {sent:>10.2}",
            lookup + choice
        );
    }
}

/// Microseconds of a call: the best of several rounds, which other processes disturb least.
fn cost(mut call: impl FnMut(u32)) -> f64 {
    let mut round = |_| {
        #[expect(clippy::disallowed_methods, reason = "real time is what is measured")]
        let start = Instant::now();
        (0..PICKS).for_each(&mut call);
        start.elapsed().as_secs_f64() * 1e6 / f64::from(PICKS)
    };
    (0..ROUNDS).map(&mut round).fold(f64::INFINITY, f64::min)
}
