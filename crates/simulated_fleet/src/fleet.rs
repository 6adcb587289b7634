//! A run of one seed: hosts, faults at their times, clients, and the look at the end. Owns the order of these.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Once;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use clap::Parser;
use http::Request;
use http_body_util::{BodyExt, Full};
use inflight_gateway::GatewayOptions;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use turmoil::{Builder, Sim};

use crate::client::{self, GATEWAY, MOMENT};
use crate::determinism::{Determinism, EPOCH, elapsed};
use crate::history::{self, note};
use crate::network::{SimulatedListener, network};
use crate::oracle::{Broken, Circumstances, End, Invariant, STOPPED, judge};
use crate::plan::{ClientPlan, Fault, FaultKind, GatewayPlan, Plan};
use crate::question::Question;
use crate::report::Report;
use crate::worker::{PORT, WorkerHost};

/// Requests that the gateway takes at once.
const PLACES: u32 = 32;
/// Those of them that one client gets: the last eighth is for clients that have few.
const PLACES_OF_ONE: u32 = PLACES - PLACES / 8;
/// After the last answer, so long is waited before anything must be free: what was lost is noticed by then.
const QUIET: Duration = Duration::from_secs(25);
/// How long a message takes at most on a slow link: most take some tenths of it.
const SLOW: Duration = Duration::from_secs(2);
/// Hosts run for so long, one after another; messages arrive in between.
const TICK: Duration = Duration::from_millis(2);
/// No run takes longer.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Simulates a seed; `prints` its events. On a separate thread, since libraries keep keys and
/// generators in theirs.
/// For the same history each time, it must be the first of its process: `tokio` seeds the choices of `select!` with a
/// number that counts the process's runtimes.
///
/// # Panics
/// The thread cannot be started.
pub fn run(seed: u64, prints: bool) -> Report {
    let thread = std::thread::Builder::new().name(format!("seed {seed}"));
    let simulated = thread.spawn(move || simulate(seed, prints));
    simulated
        .expect("a thread starts")
        .join()
        .unwrap_or_else(|_| {
            let how = format!(
                "the simulation itself panicked: {:?}",
                std::mem::take(&mut *PANICS.lock())
            );
            Report::of_failure(how)
        })
}

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Panics of tasks are caught by their runtime; here they count.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.lock().push(info.to_string());
            before(info);
        }));
    });
}

/// What hosts and the run share.
struct Shared {
    workers: Vec<Rc<WorkerHost>>,
    /// Clients that have not ended.
    asking: Cell<usize>,
    plan: Plan,
    report: RefCell<Report>,
}

impl Shared {
    fn breaks(&self, invariant: Invariant, how: String) {
        let broken = Broken { invariant, how };
        self.report.borrow_mut().broken.push(broken.to_string());
    }
}

fn simulate(seed: u64, prints: bool) -> Report {
    count_panics();
    inflight_base::blocking::run_inline();
    let determinism = Determinism::enter(seed);
    history::begin(prints);
    let plan = Plan::of(seed);
    if prints {
        note("plan", "is", format!("{plan:?}").as_bytes());
    }
    let shared = {
        let workers = plan.workers.iter().enumerate();
        let workers =
            workers.map(|(place, plan)| Rc::new(WorkerHost::new(format!("worker-{place}"), *plan)));
        Rc::new(Shared {
            workers: workers.collect(),
            asking: Cell::new(plan.clients.len()),
            plan,
            report: RefCell::default(),
        })
    };
    let mut sim = Builder::new()
        .rng_seed(seed)
        .epoch(SystemTime::UNIX_EPOCH + EPOCH)
        .simulation_duration(LONGEST)
        .tick_duration(TICK)
        .min_message_latency(Duration::ZERO)
        .max_message_latency(shared.plan.max_latency)
        .tcp_capacity(shared.plan.socket_segments)
        .build();
    add_hosts(&mut sim, &shared);
    let took = play(&mut sim, &determinism, &shared);
    drop(sim);
    for how in std::mem::take(&mut *PANICS.lock()) {
        shared.breaks(Invariant::NoPanic, how);
    }
    let (hash, events) = history::end();
    let mut report = shared.report.take();
    (report.history, report.events) = (hash, events);
    report.virtual_ms = took.as_millis() as u64;
    report
}

fn add_hosts(sim: &mut Sim<'_>, shared: &Rc<Shared>) {
    for worker in &shared.workers {
        let host = Rc::clone(worker);
        sim.host(worker.name.as_str(), move || Rc::clone(&host).run());
    }
    let workers = shared.workers.iter().map(|worker| worker.name.clone());
    let workers: Vec<String> = workers.collect();
    let plan = shared.plan.gateway;
    sim.host(GATEWAY.0, move || gateway(workers.clone(), plan));
    for (place, client) in shared.plan.clients.iter().enumerate() {
        let name = format!("client-{place}");
        sim.client(
            name.as_str(),
            ask_all(name.clone(), client.clone(), Rc::clone(shared)),
        );
    }
    sim.client("auditor", audit(Rc::clone(shared)));
}

async fn gateway(workers: Vec<String>, plan: GatewayPlan) -> turmoil::Result {
    let listener = SimulatedListener::bind(GATEWAY.1).await?;
    let mut arguments = vec!["gateway".to_owned(), "--host=0.0.0.0".to_owned()];
    arguments.extend(
        workers
            .iter()
            .map(|worker| format!("--worker={worker}:{PORT}")),
    );
    arguments.push(format!("--max-concurrent-requests={PLACES}"));
    arguments.push(format!("--max-resumes={}", plan.max_resumes));
    arguments.push(format!("--resume-wait-s={}", plan.resume_wait_s));
    let options = GatewayOptions::try_parse_from(arguments)?;
    let never = std::future::pending();
    inflight_gateway::serve_on_network(listener, network(), &options, never).await?;
    Ok(())
}

async fn ask_all(name: String, plan: ClientPlan, shared: Rc<Shared>) -> turmoil::Result {
    sleep(plan.begins_at).await;
    for ask in &plan.asks {
        sleep(ask.after).await;
        let asked = elapsed();
        let answer = client::ask(&name, plan.speaks_http2, ask).await;
        let circumstances = Circumstances {
            is_calm: shared.plan.is_calm(),
            had_worker: shared.plan.had_worker(asked, elapsed()),
            was_reached: shared.plan.holds_no_client(),
        };
        {
            let mut report = shared.report.borrow_mut();
            report.requests += 1;
            match answer.end {
                End::Whole => report.whole += 1,
                End::Left => report.left += 1,
                End::Cut(_) => report.cut += 1,
                _ => report.errors += 1,
            }
        }
        for broken in judge(&ask.question, &answer, circumstances) {
            let how = format!("{name}: {} ({:?})", broken.how, ask.question);
            shared.breaks(broken.invariant, how);
        }
        if answer.end == End::Left {
            check_stopped(&name, &ask.question.content, &shared).await;
        }
    }
    shared.asking.set(shared.asking.get() - 1);
    Ok(())
}

/// After a client has left: its request is stopped soon, where nothing keeps the stop from arriving.
async fn check_stopped(name: &str, content: &str, shared: &Shared) {
    let left = elapsed();
    sleep(STOPPED).await;
    if !shared.plan.all_were_well(left, elapsed()) {
        return;
    }
    for worker in shared.workers.iter().filter(|worker| worker.holds(content)) {
        let how = format!("`{}` still works for {name}, which left", worker.name);
        shared.breaks(Invariant::LeaversAreStopped, how);
    }
}

/// When all clients have ended and everything has had time to be noticed: is anything still held?
async fn audit(shared: Rc<Shared>) -> turmoil::Result {
    while shared.asking.get() > 0 {
        sleep(Duration::from_millis(100)).await;
    }
    sleep(QUIET).await;
    for worker in &shared.workers {
        let open = worker.open();
        if open > 0 {
            let how = format!("`{}` holds {open} requests", worker.name);
            shared.breaks(Invariant::WorkersAreFree, how);
        }
    }
    match timeout(MOMENT, metrics()).await {
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
        match timeout(MOMENT, client::connect(false)).await {
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
    let asked = asked.into_iter();
    let asked = asked.map(|connection| tokio::spawn(timeout(MOMENT, small_question(connection))));
    for asked in asked.collect::<Vec<_>>() {
        match asked.await {
            // A worker may say that so many at once would wait too long; that is not the gateway's limit.
            Ok(Ok(Ok((200 | 503, _)))) => {}
            other => shared.breaks(Invariant::PlacesAreFree, format!("{other:?}")),
        }
    }
    Ok(())
}

/// Whether a line of the gateway's metrics shows something that is held; the page's own request is.
fn is_held(line: &str) -> bool {
    let value = |name: &str| {
        let rest = line.strip_prefix(name)?;
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    };
    value("inflight_gateway_worker_active").is_some_and(|held| held > 0.0)
        || value("inflight_gateway_active_requests").is_some_and(|held| held > 1.0)
}

async fn metrics() -> Result<String, String> {
    let request = Request::get("/metrics").header("host", "gateway");
    let request = request.body(Full::default());
    let request = request.map_err(|error| error.to_string())?;
    let response = client::connect(false).await?.send(request).await?;
    let body = response.into_body().collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

async fn small_question(connection: client::Connected) -> Result<(u16, String), String> {
    let question = Question {
        is_chat: false,
        is_streamed: false,
        content: "a".to_owned(),
        choices: 1,
        max_tokens: 2,
    };
    let body = Full::<Bytes>::from(question.body().to_string());
    let request = Request::post(question.path())
        .header("host", "gateway")
        .header("content-type", "application/json");
    let request = request.body(body).map_err(|error| error.to_string())?;
    let response = connection.send(request).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Runs to the end, with each fault at its time. Returns the virtual time that it took.
fn play(sim: &mut Sim<'_>, determinism: &Determinism, shared: &Shared) -> Duration {
    let mut faults = shared.plan.faults.clone();
    faults.sort_by_key(|fault| fault.at);
    let mut coming = faults.into_iter().peekable();
    let mut present: Vec<Fault> = Vec::new();
    loop {
        let now = sim.elapsed();
        determinism.set_between(now);
        let (over, still): (Vec<Fault>, Vec<Fault>) =
            present.iter().partition(|fault| fault.until <= now);
        present = still;
        for fault in over {
            end_fault(sim, shared, fault, &present);
        }
        while let Some(fault) = coming.next_if(|fault| fault.at <= now) {
            // One at a time for each worker and client.
            if present
                .iter()
                .all(|other| target(other.kind) != target(fault.kind))
            {
                note("fault", "begins", format!("{:?}", fault.kind).as_bytes());
                shared.report.borrow_mut().faults += 1;
                begin_fault(sim, shared, fault.kind);
                present.push(fault);
            }
        }
        match sim.step() {
            Ok(true) => return sim.elapsed(),
            Ok(false) => {}
            Err(error) => {
                shared.breaks(Invariant::NoPanic, format!("a host failed: {error}"));
                return sim.elapsed();
            }
        }
    }
}

/// Whom a fault concerns: a worker or a client.
fn target(kind: FaultKind) -> (bool, usize) {
    match kind {
        FaultKind::HoldClient(client) => (false, client),
        FaultKind::Crash(worker)
        | FaultKind::PowerLoss(worker)
        | FaultKind::Leave(worker)
        | FaultKind::Partition(worker)
        | FaultKind::Hold(worker)
        | FaultKind::Slow(worker) => (true, worker),
    }
}

fn link(sim: &Sim<'_>, other: &str) -> (IpAddr, IpAddr) {
    (sim.lookup(GATEWAY.0), sim.lookup(other))
}

fn begin_fault(sim: &mut Sim<'_>, shared: &Shared, kind: FaultKind) {
    let (is_worker, place) = target(kind);
    let name = match is_worker {
        true => shared.workers[place].name.clone(),
        false => format!("client-{place}"),
    };
    let (gateway, other) = link(sim, &name);
    match kind {
        FaultKind::Crash(_) => sim.crash(other),
        FaultKind::PowerLoss(_) => {
            // What it still had on the way, and the end of its connections, reach nobody.
            sim.partition(gateway, other);
            sim.crash(other);
        }
        FaultKind::Leave(place) => shared.workers[place].leave.notify_one(),
        FaultKind::Partition(_) => sim.partition(gateway, other),
        FaultKind::Hold(_) | FaultKind::HoldClient(_) => sim.hold(gateway, other),
        FaultKind::Slow(_) => sim.set_link_max_message_latency(gateway, other, SLOW),
    }
}

fn end_fault(sim: &mut Sim<'_>, shared: &Shared, fault: Fault, present: &[Fault]) {
    note("fault", "ends", format!("{:?}", fault.kind).as_bytes());
    let (is_worker, place) = target(fault.kind);
    let name = match is_worker {
        true => shared.workers[place].name.clone(),
        false => format!("client-{place}"),
    };
    let (gateway, other) = link(sim, &name);
    debug_assert!(
        present
            .iter()
            .all(|one| target(one.kind) != target(fault.kind))
    );
    match fault.kind {
        FaultKind::PowerLoss(_) => {
            sim.repair(gateway, other);
            sim.bounce(other);
        }
        // One that has not ended by then is killed, as a supervisor does.
        FaultKind::Crash(_) | FaultKind::Leave(_) => sim.bounce(other),
        FaultKind::Partition(_) => sim.repair(gateway, other),
        FaultKind::Hold(_) | FaultKind::HoldClient(_) => sim.release(gateway, other),
        FaultKind::Slow(_) => {
            sim.set_link_max_message_latency(gateway, other, shared.plan.max_latency);
        }
    }
}
