//! Workers that a source lists, while the source is gone, slow, flapping or wrong for ten minutes under load: no request
//! fails. What the source says again afterwards counts within seconds.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use inflight_kserve::step::FinishReason;
use inflight_testkit::kubernetes::Condition::{NotReady, Ready, Terminating};
use inflight_testkit::kubernetes::{ApiServer, Fault};
use inflight_testkit::model::tokens;
use inflight_testkit::worker::ScriptedWorker;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{Client, Gateway, PATIENCE, byte_model, chat};

const TEN_MINUTES: Duration = Duration::from_secs(600);
const PATH: &str = "/v1/chat/completions";

/// A worker that answers everything.
async fn worker() -> SocketAddr {
    let worker = ScriptedWorker::start(byte_model()).await;
    let address = worker.address;
    worker.answer_all(tokens("hi"), FinishReason::EndId);
    address
}

/// A gateway that follows the Service of this server.
async fn following(api: &ApiServer, extra: &[&str]) -> Gateway {
    let url = api.url();
    let mut options = vec!["--worker-service", "ml/llama", "--kubernetes-api", &url];
    options.extend(extra);
    Gateway::start(&[], &options).await
}

/// The workers that are ready.
async fn ready(gateway: &Gateway) -> Vec<String> {
    let health = gateway.get("/health/ready").await.json();
    // None are listed where there are none.
    let workers = health["workers"].as_array().into_iter().flatten();
    let ready = workers.filter(|worker| worker["ready"] == true);
    let mut ready: Vec<String> = ready
        .map(|worker| worker["address"].as_str().unwrap().to_owned())
        .collect();
    ready.sort();
    ready
}

/// A metric without labels.
async fn gauge(gateway: &Gateway, name: &str) -> u64 {
    let page = gateway.get("/metrics").await.body;
    let page = std::str::from_utf8(&page).unwrap();
    let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
    page.lines().find_map(value).expect("the metric is there")
}

/// Waits until exactly these are; returns how long that took.
async fn wait_for(gateway: &Gateway, workers: &[SocketAddr]) -> Duration {
    let mut expected: Vec<String> = workers.iter().map(SocketAddr::to_string).collect();
    expected.sort();
    let begun = Instant::now();
    let waiting = async {
        while ready(gateway).await != expected {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = timeout(PATIENCE, waiting).await;
    waited.unwrap_or_else(|_| panic!("{expected:?} are ready in time"));
    begun.elapsed()
}

/// A request every so many milliseconds while `meanwhile` runs: each is answered. Returns how many there were.
async fn under_load(gateway: &Gateway, every_ms: u64, meanwhile: impl Future<Output = ()>) -> u32 {
    let is_over = Cell::new(false);
    let answered = Cell::new(0);
    let load = async {
        let mut client = Client::connect(gateway.address).await;
        while !is_over.get() {
            let answer = client.post(PATH, &chat(json!({}))).await;
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            answered.set(answered.get() + 1);
            sleep(Duration::from_millis(every_ms)).await;
        }
    };
    let change = async {
        meanwhile.await;
        is_over.set(true);
    };
    tokio::join!(load, change);
    answered.get()
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_service_come_and_go_and_those_that_terminate_finish() {
    let [first, second] = [worker().await, worker().await];
    let api = ApiServer::start();
    let gateway = following(&api, &[]).await;
    api.put("llama", &[(first, Ready), (second, NotReady)]);
    wait_for(&gateway, &[first]).await;
    api.put("llama", &[(second, Ready)]);
    assert!(wait_for(&gateway, &[first, second]).await < Duration::from_secs(3));
    let answered = under_load(&gateway, 200, async {
        api.put("llama", &[(first, Terminating)]);
        let waited = wait_for(&gateway, &[second]).await;
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        // The last one stays until it ends by itself.
        api.put("llama", &[(second, Terminating)]);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(ready(&gateway).await, [second.to_string()]);
        api.put("llama", &[(first, Ready)]);
        wait_for(&gateway, &[first]).await;
    });
    assert!(answered.await > 200);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_may_be_gone_slow_or_wrong_for_ten_minutes() {
    let faults = [
        Fault::Gone,
        Fault::Silent,
        Fault::Status(500),
        Fault::Status(401),
        Fault::Status(403),
        Fault::Status(429),
        Fault::Ends,
        Fault::Halves,
        Fault::Expired,
        Fault::ExpiredEvent,
        Fault::Garbage,
        Fault::WrongTypes,
        Fault::Empty,
    ];
    for fault in faults {
        let [first, second, third] = [worker().await, worker().await, worker().await];
        let mut api = ApiServer::start();
        api.put("llama", &[(first, Ready), (second, Ready)]);
        let gateway = following(&api, &[]).await;
        wait_for(&gateway, &[first, second]).await;
        let before = api.asked();
        let answered = under_load(&gateway, 2000, async {
            api.set_fault(fault);
            sleep(TEN_MINUTES).await;
        });
        let answered = answered.await;
        assert!(answered > 250, "{fault:?}: {answered}");
        let mut expected = [first, second].map(|one| one.to_string());
        expected.sort();
        assert_eq!(ready(&gateway).await, expected, "{fault:?}");
        let lasts = matches!(fault, Fault::Gone | Fault::Silent | Fault::Status(_));
        let troubled = gauge(&gateway, "inflight_gateway_troubled_sources").await;
        assert!(troubled == 1 || !lasts, "{fault:?}: {troubled}");
        let unlisted = gauge(&gateway, "inflight_gateway_unlisted_workers").await;
        assert_eq!(
            unlisted == 2,
            fault == Fault::Empty,
            "{fault:?}: {unlisted}"
        );
        // Neither a storm of attempts nor a pause.
        let after = api.asked();
        let asked = after.0 + after.1 - before.0 - before.1;
        let is_asked = !matches!(fault, Fault::Gone);
        assert!(
            asked <= 900 && (asked >= 20) == is_asked,
            "{fault:?}: {asked}"
        );
        api.put("llama", &[(third, Ready)]);
        api.set_fault(Fault::None);
        let waited = wait_for(&gateway, &[first, second, third]).await;
        let limit = match fault {
            // The rest of the wait for an answer is cut short with the connection.
            Fault::Silent => 3,
            _ => 5,
        };
        assert!(
            waited <= Duration::from_secs(limit),
            "{fault:?}: {waited:?}"
        );
        for name in ["troubled_sources", "unlisted_workers"] {
            let after = gauge(&gateway, &format!("inflight_gateway_{name}")).await;
            assert_eq!(after, 0, "{fault:?}: {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_may_flap_for_ten_minutes() {
    let [first, second] = [worker().await, worker().await];
    let mut api = ApiServer::start();
    api.put("llama", &[(first, Ready), (second, Ready)]);
    let gateway = following(&api, &[]).await;
    wait_for(&gateway, &[first, second]).await;
    let begun = Instant::now();
    let answered = under_load(&gateway, 400, async {
        let faults = [
            Fault::Gone,
            Fault::Empty,
            Fault::Status(503),
            Fault::Garbage,
        ];
        for fault in faults.into_iter().cycle() {
            if begun.elapsed() >= TEN_MINUTES {
                break;
            }
            api.set_fault(fault);
            sleep(Duration::from_millis(1700)).await;
            api.set_fault(Fault::None);
            sleep(Duration::from_millis(900)).await;
            // So do the slices.
            api.delete_all();
            api.compact();
            api.put("llama", &[(first, Ready), (second, NotReady)]);
            sleep(Duration::from_millis(300)).await;
            api.put("llama", &[(first, NotReady), (second, Ready)]);
        }
    });
    assert!(answered.await > 1000);
    api.set_fault(Fault::None);
    api.put("llama", &[(first, Ready), (second, Ready)]);
    wait_for(&gateway, &[first, second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_taken_from_the_service_stays_for_the_grace_and_no_longer() {
    let [first, second] = [worker().await, worker().await];
    let api = ApiServer::start();
    api.put("llama", &[(first, Ready)]);
    api.put("more", &[(second, Ready)]);
    let gateway = following(&api, &["--unlisted-worker-s", "30"]).await;
    wait_for(&gateway, &[first, second]).await;
    api.delete_all();
    api.put("llama", &[(first, Ready)]);
    sleep(Duration::from_secs(25)).await;
    wait_for(&gateway, &[first, second]).await;
    sleep(Duration::from_secs(10)).await;
    wait_for(&gateway, &[first]).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_of_dead_workers_costs_no_request() {
    let alive = worker().await;
    let dead = (1..200).map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let dead: Vec<SocketAddr> = dead.collect();
    let api = ApiServer::start();
    api.put("llama", &[(alive, Ready)]);
    let gateway = following(&api, &[]).await;
    wait_for(&gateway, &[alive]).await;
    let answered = under_load(&gateway, 200, async {
        for address in &dead {
            api.put("llama", &[(*address, Ready)]);
        }
        sleep(Duration::from_secs(60)).await;
    });
    assert!(answered.await > 200);
}
