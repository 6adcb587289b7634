//! A worker over the simulated executor: what load tests and profilers are pointed at.
//!
//!     cargo run --release -p inflight-worker --example simulated_worker -- PORT STEP_US
//!
//! PORT 0 takes any free port; STEP_US 0 gives tokens as fast as they are taken.

use std::sync::Arc;

use inflight_worker::{SimulatedExecutor, SimulatedOptions, WorkerOptions, serve};

fn argument(place: usize, default: f64) -> f64 {
    let text = std::env::args().nth(place);
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let step_us = argument(2, 20_000.0);
    let executor = SimulatedExecutor::new(SimulatedOptions {
        prefill_us_per_token: 0.0,
        step_us,
        step_us_per_sequence: 0.0,
        max_batch_size: 4096,
        num_blocks: 1 << 20,
        ..SimulatedOptions::default()
    });
    let options = WorkerOptions {
        grpc_port: argument(1, 8001.0) as u16,
        metrics_port: 0,
        ..WorkerOptions::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let exit = runtime.block_on(serve(
        Arc::new(executor),
        options,
        |bound| eprintln!("listening on {}, metrics on {}", bound.grpc, bound.metrics),
        std::future::pending(),
    ))?;
    eprintln!("{exit:?}");
    Ok(())
}
