//! The KServe clients against a worker with the simulated executor.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use inflight_worker::{SimulatedExecutor, SimulatedOptions, WorkerOptions};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::{target, workload};
use crate::load::{self, Target, Wire, Workload};
use crate::suite::Ready;

/// A worker on a separate runtime, stopped when dropped.
struct RunningWorker {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    runtime: Option<Runtime>,
}

impl RunningWorker {
    fn start(simulated: SimulatedOptions) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let options = WorkerOptions {
            grpc_port: 0,
            metrics_port: 0,
            drain_timeout: Duration::from_millis(100),
            ..WorkerOptions::default()
        };
        let (bound, addresses) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        runtime.spawn(inflight_worker::serve(
            Arc::new(SimulatedExecutor::new(simulated)),
            options,
            move |addresses| bound.send(addresses).unwrap_or_default(),
            async { drop(stopped.await) },
        ));
        let address = addresses
            .recv_timeout(Duration::from_secs(20))
            .unwrap()
            .grpc;
        while !Ready::Grpc.is_reached(address.port()) {
            std::thread::yield_now();
        }
        Self {
            address,
            stop: Some(stop),
            runtime: Some(runtime),
        }
    }

    fn target(&self, wire: Wire) -> Target {
        Target {
            wire,
            model: "tensorrt_llm".to_owned(),
            connections: 2,
            ..target(self.address)
        }
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

fn instant() -> SimulatedOptions {
    SimulatedOptions {
        step_us: 0.0,
        step_us_per_sequence: 0.0,
        prefill_us_per_token: 0.0,
        ..SimulatedOptions::default()
    }
}

#[test]
fn every_token_is_counted_over_both_wires() {
    let worker = RunningWorker::start(instant());
    for wire in [Wire::Kserve, Wire::KserveStep] {
        for (streams, requests) in [(1, 3), (50, 120)] {
            let workload = Workload {
                warmup: 1 + streams as u64,
                ramp: Duration::from_millis(5),
                ..workload(streams, requests)
            };
            let report = load::run(&worker.target(wire), &workload).unwrap();
            assert!(report.is_clean(), "{wire:?} {report:?}");
            assert_eq!(
                (report.whole, report.tokens),
                (requests, requests * 32),
                "{wire:?}"
            );
            assert!(report.events <= report.tokens && report.events >= requests);
            assert!(report.time_to_first_token_ms.is_some());
        }
    }
}

#[test]
fn refused_requests_are_errors_over_both_wires() {
    let worker = RunningWorker::start(SimulatedOptions {
        max_seq_len: 16,
        ..instant()
    });
    for wire in [Wire::Kserve, Wire::KserveStep] {
        let report = load::run(&worker.target(wire), &workload(2, 4)).unwrap();
        assert_eq!(
            (report.whole, report.errored),
            (0, 4),
            "{wire:?} {report:?}"
        );
        assert!(report.first_problem.is_some());
    }
}

#[test]
fn an_unknown_model_is_an_error_over_both_wires() {
    let worker = RunningWorker::start(instant());
    for wire in [Wire::Kserve, Wire::KserveStep] {
        let target = Target {
            model: "nothing".to_owned(),
            ..worker.target(wire)
        };
        match load::run(&target, &workload(1, 1)) {
            Ok(report) => assert_eq!((report.whole, report.errored), (0, 1), "{wire:?}"),
            Err(error) => assert!(error.to_string().contains("nothing"), "{wire:?} {error}"),
        }
    }
}
