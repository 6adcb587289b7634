//! Requests of one stream that is never read: what was put in its outbox is all there to count.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::tensor::RequestBuilder;

use super::*;
use crate::cache::Board;
use crate::catalog::Catalog;
use crate::engine::{Driving, Engine, EngineLimits, StartOrder};
use crate::executor::Executor;
use crate::metrics::Metrics;
use crate::model::CORE_MODEL;
use crate::model_names::ModelNames;
use crate::outbox::Taken;
use crate::request::Limits;
use crate::service::Common;
use crate::simulated::{SimulatedExecutor, SimulatedOptions};

/// Nothing here takes long; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

fn shared() -> Shared {
    let executor = SimulatedExecutor::new(SimulatedOptions {
        prefill_us_per_token: 0.0,
        step_us: 0.0,
        step_us_per_sequence: 0.0,
        ..SimulatedOptions::default()
    });
    let limits = Limits {
        core_model: CORE_MODEL.into(),
        info: executor.info(),
        max_message_bytes: 1 << 20,
        excludes_input: false,
        fills_outputs: false,
        wraps_token_ids: false,
    };
    let metrics = Arc::new(Metrics::default());
    let limits_of_engine = EngineLimits {
        max_live: usize::MAX,
        places: u32::MAX,
        order: StartOrder::Arrival,
        max_queue_wait: PATIENCE,
        // Nobody reads while requests are made, however long a busy machine takes for that.
        slow_reader_timeout: Duration::MAX,
    };
    let (engine, _threads) = Engine::start(
        Arc::new(executor),
        limits_of_engine,
        metrics,
        Board::new(16, false, false, false),
        0,
        Driving::Threads,
    )
    .unwrap();
    engine.set_proven();
    let catalog = Catalog::new(ModelNames::first(CORE_MODEL), limits.info.clone(), None);
    Shared {
        engine,
        catalog: Arc::new(catalog),
        cache: Board::new(32, false, false, false),
        draft: None,
        adapters: None,
        common: Arc::new(Common::new(None, None)),
        limits,
    }
}

fn request(handle: u64, max_tokens: i32) -> ModelInferRequest {
    let mut builder = RequestBuilder::new(CORE_MODEL, "", 64);
    builder
        .vector("input_ids", &[1])
        .scalar("input_lengths", 1)
        .scalar("request_output_len", max_tokens)
        .handle(Handle(handle));
    builder.build()
}

fn until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it did not come to that");
        std::thread::yield_now();
    }
}

/// The handles with a final row; asserts that it is the last row of each.
fn finals(outbox: &Outbox) -> HashSet<Handle> {
    let Taken::Step(batch) = outbox.take() else {
        panic!("rows wait");
    };
    let mut finals = HashSet::new();
    for row in batch.rows() {
        assert!(!finals.contains(&row.id), "{row:?}");
        if row.is_final {
            finals.insert(row.id);
        }
    }
    finals
}

#[test]
fn a_handle_used_again_while_its_final_row_waits_keeps_that_one() {
    let shared = shared();
    let mut malformed = request(1, 1);
    malformed.model_name = "another".to_owned();
    for again in [request(1, 1), malformed] {
        let outbox = shared.common.open();
        shared.receive_core(&request(1, 1), &outbox, None, None);
        until(|| outbox.find(Handle(1)) == Known::Ending);
        shared.receive_core(&again, &outbox, None, None);
        assert_eq!(finals(&outbox), HashSet::from([Handle(1)]));
        assert_eq!(outbox.find(Handle(1)), Known::No);
    }
    shared.engine.stop();
}

/// The second use comes at every moment of the first one's life, also while its final row is put in.
#[test]
fn a_handle_used_twice_at_once_has_one_final_row() {
    let shared = shared();
    let outbox = shared.common.open();
    let handles = 5000;
    for handle in 0..handles {
        let max_tokens = 1 + handle as i32 % 3;
        shared.receive_core(&request(handle, max_tokens), &outbox, None, None);
        for _ in 0..handle % 7 {
            std::thread::yield_now();
        }
        shared.receive_core(&request(handle, max_tokens), &outbox, None, None);
    }
    until(|| shared.engine.live() == 0);
    assert_eq!(finals(&outbox).len(), handles as usize);
    outbox.finish();
    assert!(matches!(outbox.take(), Taken::End));
    shared.engine.stop();
}
