//! What is looked at besides answers: whether a request that is over is stopped and was not stopped before, whether
//! workers are used again, and what is still held at the end. Owns the times of these looks; what must be true is the
//! oracle's.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use http::Request;
use http::request::Builder;
use http_body_util::BodyExt;
use tokio::io::AsyncReadExt;
use tokio::time::{sleep, sleep_until, timeout};
use turmoil::net::TcpStream;

use crate::client::{self, Caller, GRPC_PORT, KEY, MOMENT, Upload};
use crate::determinism::elapsed;
use crate::oracle::{Answer, End, Invariant, STOPPED};
use crate::plan::{Ask, Plan};
use crate::question::Question;
use crate::shared::Shared;
use crate::worker::{CONNECTIONS, PORT};

/// Requests that the gateway takes at once.
pub(crate) const PLACES: u32 = 32;
/// Those of them that one client gets: the last eighth is for clients that have few. The key of all clients has as many.
pub(crate) const PLACES_OF_ONE: u32 = PLACES - PLACES / 8;
/// After the last answer, so long is waited before anything must be free: what was lost is noticed by then.
const QUIET: Duration = Duration::from_secs(25);
/// Connections of a worker that a gateway has at most.
const OWN_CONNECTIONS: usize = 6;
/// By then the last small questions have ended.
const SETTLED: Duration = Duration::from_secs(4);
/// A request that is stopped so soon after it came has gone elsewhere, and not because it had to wait for its turn.
const IN_VAIN: Duration = Duration::from_millis(500);

/// After an answer: its request is stopped soon, where nothing keeps the stop from arriving. A worker that was well was
/// not asked to stop it earlier, and an answer that it continued says so.
pub(crate) async fn after(name: String, ask: Ask, answer: Answer, http2: bool, shared: Rc<Shared>) {
    let ended = elapsed();
    let question = &ask.question;
    let contents = &question.contents;
    if shared.plan.deadline(&ask).is_none() {
        check_kept(&name, question, &answer, &shared);
    }
    if http2 && question.is_streamed && answer.end == End::Whole && !answer.was_resumed {
        for (place, worker) in shared.workers.iter().enumerate() {
            let completed = contents
                .iter()
                .flat_map(|content| worker.said().completed_resumed(content));
            if completed
                .into_iter()
                .any(|at| shared.plan.was_well(place, at))
            {
                let how = format!("{name}: nothing says that `{}` continued it", worker.name);
                shared.breaks(Invariant::ResumedIsSaid, how);
            }
        }
    }
    for content in contents {
        let workers = shared.workers.iter();
        let asked: Vec<String> = workers
            .flat_map(|worker| worker.said().asked(content))
            .collect();
        if let Some((first, rest)) = asked.split_first()
            && let Some(other) = rest.iter().find(|other| *other != first)
        {
            let how = format!("{name}: {first}, and then {other} ({question:?})");
            shared.breaks(Invariant::AsksTheSame, how);
        }
    }
    for worker in &shared.workers {
        if contents
            .iter()
            .any(|content| worker.said().continues_ended(content))
        {
            let how = format!(
                "{name}: `{}` was to continue it ({question:?})",
                worker.name
            );
            shared.breaks(Invariant::EndedStaysEnded, how);
        }
    }
    sleep(STOPPED).await;
    if !shared.plan.all_were_well(ended, elapsed()) {
        return;
    }
    for worker in &shared.workers {
        if contents.iter().any(|content| worker.holds(content)) {
            let how = format!(
                "`{}` still works for {name}: {:?} ({question:?})",
                worker.name, answer.end
            );
            shared.breaks(Invariant::OverIsStopped, how);
        }
    }
}

fn check_kept(name: &str, question: &Question, answer: &Answer, shared: &Shared) {
    let has_one = question.contents.len() == 1 && !question.is_stopped();
    if !has_one || !matches!(answer.end, End::Whole | End::Error { .. }) {
        return;
    }
    for (place, worker) in shared.workers.iter().enumerate() {
        let stopped = worker.said().cancelled(&question.contents[0], IN_VAIN);
        if stopped.iter().any(|at| shared.plan.was_well(place, *at)) {
            let how = format!("{name}: `{}` was asked to stop it", worker.name);
            shared.breaks(Invariant::WorkIsKept, how);
        }
    }
}

/// Looks at each worker that has a fault while it is away, and when it must be ready again.
pub(crate) async fn watch_workers(shared: Rc<Shared>) -> turmoil::Result {
    let began = tokio::time::Instant::now() - elapsed();
    for (then, worker, must_be_up) in shared.plan.looks() {
        sleep_until(began + then).await;
        let name = &shared.workers[worker].name;
        for gateway in 0..shared.plan.gateways {
            let page = timeout(MOMENT, metrics(gateway, &shared)).await;
            let page = page.unwrap_or_else(|_| Err("nothing came".to_owned()))?;
            let up = page
                .lines()
                .find(|line| line.contains("worker_up") && line.contains(name.as_str()));
            let is_up = up.is_some_and(|line| line.ends_with(" 1"));
            if is_up != must_be_up {
                let invariant = match must_be_up {
                    true => Invariant::WorkersReturn,
                    false => Invariant::LostIsNotReady,
                };
                shared.breaks(invariant, format!("at {then:?}: {up:?}"));
            }
        }
    }
    Ok(())
}

/// When all clients have ended and everything has had time to be noticed: is anything still held?
pub(crate) async fn audit(shared: Rc<Shared>) -> turmoil::Result {
    while shared.asking.get() > 0 {
        sleep(Duration::from_millis(100)).await;
    }
    let faults = shared.plan.faults().map(|fault| fault.until);
    let over = faults.max().unwrap_or_default();
    sleep(over.saturating_sub(elapsed()) + QUIET).await;
    for worker in &shared.workers {
        let open = worker.open();
        if open > 0 {
            let how = format!("`{}` holds {open} requests", worker.name);
            shared.breaks(Invariant::WorkersAreFree, how);
        }
    }
    for worker in 0..shared.workers.len() {
        check_connections(worker, &shared).await;
    }
    for gateway in 0..shared.plan.gateways {
        check_gateway(gateway, &shared).await?;
    }
    Ok(())
}

/// Whether a gateway holds nothing, and has all its places.
async fn check_gateway(gateway: usize, shared: &Rc<Shared>) -> turmoil::Result {
    match timeout(MOMENT, metrics(gateway, shared)).await {
        Ok(Ok(page)) => {
            for line in page.lines().filter(|line| is_held(line)) {
                shared.breaks(Invariant::HandlesAreClosed, line.to_owned());
            }
        }
        other => shared.breaks(
            Invariant::HandlesAreClosed,
            format!("no metrics: {other:?}"),
        ),
    }
    let mut asked = Vec::new();
    for _ in 0..PLACES_OF_ONE {
        // One after another: a simulated port holds few that nobody has accepted yet.
        match timeout(MOMENT, client::connect(gateway, false, None)).await {
            Ok(Ok(connection)) => asked.push(connection),
            other => {
                let how = format!(
                    "cannot connect: {:?}",
                    other.map(|connected| connected.err())
                );
                shared.breaks(Invariant::PlacesAreFree, how);
            }
        }
    }
    let ask = |connection| {
        let asking = small_question(connection, shared);
        tokio::spawn(timeout(MOMENT, asking))
    };
    let asked: Vec<_> = asked.into_iter().map(ask).collect();
    for asked in asked {
        match asked.await {
            // A worker may say that so many at once would wait too long; that is not the gateway's limit.
            Ok(Ok(Ok((200 | 503, _)))) => {}
            other => shared.breaks(Invariant::PlacesAreFree, format!("{other:?}")),
        }
    }
    // One alone, when these have ended.
    sleep(SETTLED).await;
    let connected = client::connect(gateway, false, None).await?;
    match timeout(MOMENT, small_question(connected, shared)).await {
        Ok(Ok((200, _))) => {}
        other => shared.breaks(Invariant::WorkersAreFree, format!("{other:?}")),
    }
    Ok(())
}

/// Connections that a worker takes: each gateway has a few of them, and had as many before each partition, which the
/// simulated network keeps.
pub(crate) fn connections(plan: &Plan, worker: usize) -> usize {
    CONNECTIONS + OWN_CONNECTIONS * plan.gateways * plan.partitions(worker)
}

/// Opens connections to a worker, which must have places for them: the gateways have a few of them.
async fn check_connections(worker: usize, shared: &Shared) {
    let mut open = Vec::new();
    let free = CONNECTIONS - OWN_CONNECTIONS * shared.plan.gateways;
    let worker = &*shared.workers[worker].name;
    for _ in 0..free {
        match timeout(MOMENT, TcpStream::connect((worker, PORT))).await {
            Ok(Ok(connection)) => open.push(connection),
            other => {
                let how = format!("`{worker}`: {:?}", other.map(|connected| connected.err()));
                shared.breaks(Invariant::ConnectionsAreFree, how);
            }
        }
    }
    sleep(STOPPED).await;
    for connection in &mut open {
        // One too many is closed at once.
        let read = timeout(Duration::from_millis(10), connection.read(&mut [0])).await;
        if matches!(read, Ok(Ok(0) | Err(_))) {
            let how = format!("`{worker}` takes fewer than {free} more");
            shared.breaks(Invariant::ConnectionsAreFree, how);
            return;
        }
    }
}

/// Looks whether a worker still works for connections that were reset at `then`; to be called [`STOPPED`] later.
pub(crate) fn check_lost(shared: &Shared, worker: usize, then: Duration) {
    let host = &shared.workers[worker];
    let open = host.open_since_before(then);
    if open > 0 && shared.plan.is_undisturbed(worker, then, then + STOPPED) {
        let how = format!(
            "`{}` works on {open} requests of connections that were reset",
            host.name
        );
        shared.breaks(Invariant::LostIsStopped, how);
    }
}

/// Whether a line of the gateway's metrics shows something that is held; the page's own request is.
fn is_held(line: &str) -> bool {
    let value = |name: &str| {
        let rest = line.strip_prefix(name)?;
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    };
    value("inflight_gateway_worker_active").is_some_and(|held| held > 0.0)
        || value("inflight_gateway_worker_unread_bytes").is_some_and(|held| held > 0.0)
        || value("inflight_gateway_active_requests").is_some_and(|held| held > 1.0)
}

fn with_key(request: Builder, shared: &Shared) -> Builder {
    match shared.plan.gateway.needs_key {
        true => request.header("authorization", format!("Bearer {KEY}")),
        false => request,
    }
}

async fn metrics(gateway: usize, shared: &Shared) -> Result<String, String> {
    let request = with_key(Request::get("/metrics").header("host", "gateway"), shared);
    let request = request.body(Upload::default());
    let request = request.map_err(|error| error.to_string())?;
    let connected = client::connect(gateway, false, None).await?;
    let response = connected.send(request).await?;
    let body = response.into_body().collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

fn small_question(
    connection: client::Connected,
    shared: &Shared,
) -> impl Future<Output = Result<(u16, String), String>> + use<> {
    let question = Question::small();
    let request = Request::post(question.path())
        .header("host", "gateway")
        .header("content-type", "application/json");
    let request = with_key(request, shared).body(Upload::new(question.body().to_string(), 1));
    async move {
        let request = request.map_err(|error| error.to_string())?;
        let response = connection.send(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

/// How a client asks, by its number.
pub(crate) fn caller(client: usize, speaks_http2: bool, shared: &Shared) -> Caller {
    Caller {
        gateway: shared.plan.gateway_of(client),
        grpc: format!(
            "{}:{GRPC_PORT}",
            client::gateway_host(shared.plan.gateway_of(client))
        ),
        host: client::client_host(client),
        speaks_http2,
        has_key: shared.plan.gateway.needs_key,
    }
}
