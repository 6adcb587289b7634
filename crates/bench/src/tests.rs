//! The load generator against the floor and against real workers, end to end over sockets of this
//! machine.

mod replay;
mod worker;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::floor::{Floor, FloorOptions};
use crate::load::{self, Fields, LoadError, Target, Wire, Workload};

/// A floor on a separate thread, stopped when dropped.
struct RunningFloor {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RunningFloor {
    fn start(pace: Duration) -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut floor = Floor::bind(any, FloorOptions { pace }).unwrap();
        let address = floor.address().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            floor.serve(|| stopped.load(Ordering::Relaxed)).unwrap();
        });
        Self {
            address,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for RunningFloor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

pub(crate) fn target(address: SocketAddr) -> Target {
    Target {
        wire: Wire::Openai,
        address: address.to_string(),
        model: "floor".to_owned(),
        api_key: None,
        connections: 1,
        pid: Some(std::process::id()),
    }
}

pub(crate) fn workload(streams: usize, requests: u64) -> Workload {
    Workload {
        streams,
        tokens: 32,
        prompt_tokens: 3,
        fields: Fields::new(),
        requests: Some(requests),
        duration: None,
        warmup: 0,
        ramp: Duration::ZERO,
        timeout: Duration::from_secs(30),
    }
}

#[test]
fn every_token_of_every_stream_is_counted() {
    let floor = RunningFloor::start(Duration::ZERO);
    for (streams, requests) in [(1, 5), (7, 20), (100, 300)] {
        let workload = Workload {
            warmup: streams as u64,
            ..workload(streams, requests)
        };
        let report = load::run(&target(floor.address), &workload).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(
            (report.whole, report.tokens, report.events),
            (requests, requests * 32, requests * 32)
        );
        assert!(report.cpu_us_per_token.is_some() && report.rss_mib.unwrap() > 0.0);
        assert!(report.time_to_first_token_ms.is_some() && report.inter_token_ms.is_some());
    }
}

#[test]
fn paced_streams_take_their_time() {
    let floor = RunningFloor::start(Duration::from_millis(2));
    let started = Instant::now();
    let workload = Workload {
        ramp: Duration::from_millis(10),
        ..workload(10, 10)
    };
    let report = load::run(&target(floor.address), &workload).unwrap();
    assert!(report.is_clean(), "{report:?}");
    // 32 tokens, the first of them after one pace.
    assert!(started.elapsed() >= Duration::from_millis(64));
    let pace = report.mean_inter_token_ms.unwrap().p50;
    assert!(pace > 1.5, "{pace} ms between tokens of a 2 ms pace");
}

#[test]
fn a_duration_ends_the_run_with_whole_streams() {
    let floor = RunningFloor::start(Duration::ZERO);
    let duration = Some(Duration::from_millis(100));
    let report = load::run(
        &target(floor.address),
        &Workload {
            requests: None,
            duration,
            ..workload(4, 0)
        },
    );
    let report = report.unwrap();
    assert!(
        report.is_clean() && report.wall_seconds >= 0.1,
        "{report:?}"
    );
}

/// Answers each connection with these bytes once it has sent something, then closes it.
fn canned(answer: &'static [u8]) -> SocketAddr {
    use std::io::{Read, Write};
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let mut request = [0; 4096];
            if socket.read(&mut request).is_ok() {
                let _ = socket.write_all(answer);
            }
        }
    });
    address
}

#[test]
fn broken_answers_are_counted_by_kind() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\n\r\n";
    let cases: [(&str, (u64, u64, u64), &str); 5] = [
        (
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 5\r\nconnection: close\r\n\r\nbusy!",
            (0, 0, 1),
            "HTTP 503: busy!",
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
            (0, 1, 0),
            "a stream was cut after 1 tokens",
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\ndata: {\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
            (1, 0, 0),
            "a stream ended after 3 tokens",
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\ndata: {\"error\":{\"message\":\"m\"}}\n\ndata: [DONE]\n\n",
            (0, 0, 1),
            "{\"error\":{\"message\":\"m\"}}",
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n",
            (0, 0, 1),
            "a stream ended without a usage chunk: its tokens are unknown",
        ),
    ];
    for (answer, counts, problem) in cases {
        assert!(answer.starts_with(HEAD) || answer.contains("503"));
        let report = load::run(&target(canned(answer.as_bytes())), &workload(1, 1)).unwrap();
        assert_eq!(
            (report.short, report.truncated, report.errored),
            counts,
            "{answer}"
        );
        assert_eq!(report.first_problem.as_deref(), Some(problem));
        assert!(!report.is_clean());
    }
}

#[test]
fn a_stream_of_triton_s_is_whole_without_a_mark_and_counted_by_its_tokens() {
    for (chunks, counts, problem) in [
        (
            "{\"sequence_length\":31}\n\ndata: {\"sequence_length\":1}",
            (0, 0, 0),
            None,
        ),
        (
            "{\"sequence_length\":31}",
            (1, 0, 0),
            Some("a stream ended after 31 tokens"),
        ),
        (
            "{\"sequence_length\":31}\n\ndata: {\"error\":\"gone\"}",
            (0, 0, 1),
            Some("{\"error\":\"gone\"}"),
        ),
    ] {
        let data = format!("data: {chunks}\n\n");
        let answer = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n{:x}\r\n{data}\r\n0\r\n\r\n",
            data.len()
        );
        let target = Target {
            wire: Wire::Generate,
            ..target(canned(answer.leak().as_bytes()))
        };
        let report = load::run(&target, &workload(1, 1)).unwrap();
        assert_eq!((report.short, report.truncated, report.errored), counts);
        assert_eq!(report.first_problem.as_deref(), problem);
    }
}

#[test]
fn the_model_is_the_first_that_the_server_lists() {
    let list = b"HTTP/1.0 200 OK\r\n\r\n{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"}]}";
    let address = canned(list).to_string();
    assert_eq!(load::first_model(&address, Some("key")).unwrap(), "a");
    for answer in [
        &b"HTTP/1.0 200 OK\r\n\r\n{\"data\":[]}"[..],
        b"HTTP/1.0 401 Unauthorized\r\n\r\n{}",
        b"nonsense",
        b"",
    ] {
        let error = load::first_model(&canned(answer).to_string(), None).unwrap_err();
        assert!(
            error.to_string().contains("name one with `--model`"),
            "{error}"
        );
    }
    let error = load::first_model("127.0.0.1", None).unwrap_err();
    assert!(error.to_string().contains("HOST:PORT"), "{error}");
}

#[test]
fn nobody_there_is_an_error_not_a_report() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for wire in [Wire::Openai, Wire::Generate, Wire::Kserve, Wire::KserveStep] {
        let target = Target {
            wire,
            ..target(address)
        };
        let error = load::run(&target, &workload(8, 100)).unwrap_err();
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}

#[test]
fn a_server_that_stays_silent_is_given_up() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let workload = Workload {
        timeout: Duration::from_millis(100),
        ..workload(2, 2)
    };
    let error = load::run(&target(listener.local_addr().unwrap()), &workload).unwrap_err();
    assert!(
        matches!(
            error,
            LoadError::TimedOut {
                ended: 0,
                running: 2
            }
        ),
        "{error}"
    );
}
