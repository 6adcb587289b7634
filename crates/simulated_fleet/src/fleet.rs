//! A run of one seed: hosts, faults at their times, clients, and the look at the end. Owns the order of these.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime};

use clap::Parser;
use inflight_gateway::GatewayOptions;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;
use turmoil::{Builder, Sim};

use crate::audit::{
    PLACES, PLACES_OF_ONE, after, audit, caller, check_lost, connections, watch_workers,
};
use crate::client::{self, Caller, GRPC_PORT, HTTP_PORT, KEY};
use crate::determinism::{Determinism, EPOCH, elapsed};
use crate::executor::{LeftBlocks, Moves};
use crate::faults::{begin_fault, end_fault, repeat_fault};
use crate::history::{self, note};
use crate::network::{SimulatedListener, network};
use crate::oracle::{AtWorkers, Broken, Circumstances, Invariant, STOPPED, judge};
use crate::placements;
use crate::plan::{Ask, ClientPlan, Fault, FaultKind, GatewayPlan, Kind, Plan};
use crate::question::Surface;
use crate::report::Report;
use crate::shared::Shared;
use crate::worker::{PORT, WorkerHost};

/// Who looks at the fleet while it runs.
const WATCHER: &str = "watcher";
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

fn simulate(seed: u64, prints: bool) -> Report {
    count_panics();
    inflight_base::blocking::run_inline();
    let determinism = Determinism::enter(seed);
    history::begin(prints);
    let plan = Plan::of(seed);
    if prints {
        note("plan", "is", format!("{plan:?}").as_bytes());
    }
    let ambush = plan.ambush.as_ref();
    let moves = ambush.map(|ambush| Arc::new(Mutex::new(Moves::new(ambush))));
    let left_blocks = LeftBlocks::default();
    let shared = {
        let workers = plan.workers.iter().enumerate();
        let workers = workers.map(|(place, one)| {
            let name = format!("worker-{place}");
            let connections = connections(&plan, place);
            let (moves, left_blocks) = (moves.clone(), left_blocks.clone());
            Rc::new(WorkerHost::new(name, *one, moves, left_blocks, connections))
        });
        Rc::new(Shared {
            workers: workers.collect(),
            asking: Cell::new(plan.clients.len()),
            plan,
            moves,
            report: RefCell::default(),
        })
    };
    let mut sim = Builder::new()
        .rng_seed(seed)
        .epoch(SystemTime::UNIX_EPOCH + EPOCH)
        .simulation_duration(LONGEST)
        .tick_duration(shared.plan.tick)
        .min_message_latency(Duration::ZERO)
        .max_message_latency(shared.plan.max_latency)
        .tcp_capacity(shared.plan.socket_segments)
        .build();
    add_hosts(&mut sim, &shared);
    let took = play(&mut sim, &determinism, &shared);
    drop(sim);
    for Broken { invariant, how } in placements::check(seed) {
        shared.breaks(invariant, how);
    }
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
    for place in 0..shared.plan.gateways {
        let workers = workers.clone();
        let host = move || gateway(workers.clone(), plan);
        sim.host(client::gateway_host(place), host);
    }
    let mut all = roles(shared);
    if shared.plan.is_gathered {
        // What holds clients must not hold who looks at the fleet: it would see another moment than it is to judge.
        let looks = |name: &str| name == WATCHER && !shared.plan.holds_no_client();
        let (alone, together) = all.into_iter().partition(|(name, _)| looks(name));
        sim.client(client::CLIENTS, play_all(together));
        all = alone;
    }
    for (name, role) in all {
        sim.client(name, role);
    }
}

/// What a client does, or one that looks at the fleet.
type Role = Pin<Box<dyn Future<Output = turmoil::Result>>>;

fn roles(shared: &Rc<Shared>) -> Vec<(String, Role)> {
    let mut roles: Vec<(String, Role)> = Vec::new();
    for (place, client) in shared.plan.clients.iter().enumerate() {
        let asking = ask_all(place, client.clone(), Rc::clone(shared));
        roles.push((client::client_host(place), Box::pin(asking)));
    }
    for (visit, (worker, ask)) in shared.plan.visits.iter().enumerate() {
        let name = format!("visitor-{visit}");
        let asking = visit_worker(name.clone(), *worker, ask.clone(), Rc::clone(shared));
        roles.push((name, Box::pin(asking)));
    }
    let watching = watch_workers(Rc::clone(shared));
    roles.push((WATCHER.to_owned(), Box::pin(watching)));
    roles.push(("auditor".to_owned(), Box::pin(audit(Rc::clone(shared)))));
    roles
}

/// Plays them at one host, each as a task.
async fn play_all(roles: Vec<(String, Role)>) -> turmoil::Result {
    let mut playing = JoinSet::new();
    for (_, role) in roles {
        playing.spawn_local(role);
    }
    while let Some(played) = playing.join_next().await {
        played??;
    }
    Ok(())
}

async fn gateway(workers: Vec<String>, plan: GatewayPlan) -> turmoil::Result {
    let listener = SimulatedListener::bind(HTTP_PORT).await?;
    let grpc = SimulatedListener::bind(GRPC_PORT).await?;
    let grpc_address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, GRPC_PORT));
    let mut arguments = vec!["gateway".to_owned(), "--host=0.0.0.0".to_owned()];
    arguments.extend(
        workers
            .iter()
            .map(|worker| format!("--worker={worker}:{PORT}")),
    );
    arguments.push(format!("--max-concurrent-requests={PLACES}"));
    arguments.push(format!("--max-resumes={}", plan.max_resumes));
    arguments.push(format!("--resume-wait-s={}", plan.resume_wait_s));
    arguments.push(format!("--slow-client-s={}", plan.slow_client_s));
    if let Some(seconds) = plan.request_timeout_s {
        arguments.push(format!("--request-timeout-s={seconds}"));
    }
    if plan.splits {
        arguments.push("--disaggregate=always".to_owned());
    }
    if plan.needs_key {
        arguments.push(format!("--api-key={KEY}"));
        arguments.push(format!("--key-limits=concurrent={PLACES_OF_ONE}"));
    }
    let options = GatewayOptions::try_parse_from(arguments)?;
    let grpc = Some((grpc, grpc_address));
    let never = std::future::pending();
    inflight_gateway::serve_on_network(listener, grpc, network(), &options, never).await?;
    Ok(())
}

async fn ask_all(place: usize, plan: ClientPlan, shared: Rc<Shared>) -> turmoil::Result {
    sleep(plan.begins_at).await;
    let caller = caller(place, plan.speaks_http2, &shared);
    let name = caller.host.clone();
    let mut looks = JoinSet::new();
    for ask in plan.asks {
        sleep(ask.after).await;
        let asked = elapsed();
        let answer = client::ask(&caller, &ask).await;
        let circumstances = Circumstances {
            is_calm: shared.plan.kind == Kind::Calm,
            had_worker: shared.plan.had_worker(asked, elapsed()),
            is_served: shared.plan.is_served(asked, elapsed()),
            gives_up: shared.plan.gives_up(),
            refused: shared.plan.longest_refusal(),
            loses_unnoticed: shared.plan.loses_unnoticed(asked, elapsed()),
            is_roomy: shared.plan.is_roomy(),
            was_reached: shared.plan.holds_no_client(),
            survives_restarts: shared.plan.restarts_are_survived(&answer.times),
            deadline: shared.plan.deadline(&ask),
            reads_slowly: ask.reads_every.is_some(),
        };
        let found = ask.question.contents.iter();
        let at_workers = AtWorkers {
            found: found.map(|content| shared.cached(content)).collect(),
            waited: shared.waited(&ask.question.contents),
        };
        shared.report.borrow_mut().count(&answer.end);
        for broken in judge(&ask.question, &answer, circumstances, &at_workers) {
            let how = format!("{name}: {} ({ask:?})", broken.how);
            shared.breaks(broken.invariant, how);
        }
        let is_http2 = plan.speaks_http2 && ask.question.surface != Surface::Grpc;
        let look = after(name.clone(), ask, answer, is_http2, Rc::clone(&shared));
        looks.spawn_local(look);
    }
    while looks.join_next().await.is_some() {}
    shared.asking.set(shared.asking.get() - 1);
    Ok(())
}

/// Asks a worker itself.
async fn visit_worker(
    name: String,
    worker: usize,
    ask: Ask,
    shared: Rc<Shared>,
) -> turmoil::Result {
    let caller = Caller {
        gateway: 0,
        grpc: format!("{}:{PORT}", shared.workers[worker].name),
        host: name.clone(),
        speaks_http2: false,
        has_key: false,
    };
    sleep(ask.after).await;
    let answer = client::ask(&caller, &ask).await;
    let circumstances = Circumstances {
        is_served: true,
        was_reached: true,
        reads_slowly: ask.reads_every.is_some(),
        ..Circumstances::default()
    };
    shared.report.borrow_mut().count(&answer.end);
    for broken in judge(&ask.question, &answer, circumstances, &AtWorkers::default()) {
        let how = format!("{name}: {} ({ask:?})", broken.how);
        shared.breaks(broken.invariant, how);
    }
    Ok(())
}

/// Runs to the end, with each fault at its time. Returns the virtual time that it took.
fn play(sim: &mut Sim<'_>, determinism: &Determinism, shared: &Shared) -> Duration {
    let mut faults = shared.plan.faults.clone();
    faults.sort_by_key(|fault| fault.at);
    let mut coming = faults.into_iter().peekable();
    let mut present: Vec<Fault> = Vec::new();
    let mut cuts: VecDeque<(Duration, usize)> = VecDeque::new();
    loop {
        let now = sim.elapsed();
        determinism.set_between(now);
        let (over, still): (Vec<Fault>, Vec<Fault>) =
            present.iter().partition(|fault| fault.until <= now);
        present = still;
        for fault in over {
            end_fault(sim, shared, fault);
        }
        let sprung = shared.spring(now);
        let due = std::iter::from_fn(|| coming.next_if(|fault| fault.at <= now));
        for fault in due.chain(sprung) {
            // One at a time for each worker and client.
            if present
                .iter()
                .all(|other| other.kind.target() != fault.kind.target())
            {
                note("fault", "begins", format!("{:?}", fault.kind).as_bytes());
                shared.report.borrow_mut().faults += 1;
                begin_fault(sim, shared, fault.kind);
                if let FaultKind::Cut(worker) = fault.kind {
                    cuts.push_back((now, worker));
                }
                present.push(fault);
            }
        }
        while let Some(&(then, worker)) = cuts.front()
            && then + STOPPED <= now
        {
            cuts.pop_front();
            check_lost(shared, worker, then);
        }
        for fault in &present {
            repeat_fault(shared, *fault, now);
        }
        // Histories of broken runs are of no use, and what follows may be a consequence.
        if !shared.report.borrow().broken.is_empty() {
            return now;
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
