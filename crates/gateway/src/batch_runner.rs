//! Runs the lines of batches: the same handlers as for clients, with what the clients leave. Owns which line is next, how
//! many run, when one is tried again, and that results are kept as they come. What a batch is, and that each line has
//! one result, is inflight-batches'.

mod held;
mod line;

use std::sync::Arc;
use std::time::Duration;

use inflight_base::error_chain;
use inflight_base::wall_clock::unix_seconds;
use inflight_batches::{Claim, Close, Load, Status, Store, StoreError, room};
use inflight_clients::client::{Addresses, ClientConnection};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::held::{Held, Ran};
use crate::batches::Batches;
use crate::state::AppState;

/// How often leases are renewed, and others' looked at.
const TICK: Duration = Duration::from_secs(1);
/// Seconds of a lease: a gateway that is gone is noticed after this, and one that stutters keeps its batches.
const LEASE: i64 = 6;
/// Batches that are run side by side, so that a large one does not hold up a small one.
const MOST_BATCHES: usize = 8;
/// How long after a client's request the next one is expected.
const QUIET: Duration = Duration::from_secs(10);
/// How often what is too old goes.
const SWEEP: Duration = Duration::from_secs(60);
/// How often the objects that nothing names are looked for, in all of them.
const SWEEP_OBJECTS: Duration = Duration::from_secs(3600);

/// See the module.
pub(crate) struct Runner {
    state: Arc<AppState>,
    batches: Arc<Batches>,
    /// This process, among those that share the store.
    holder: i64,
    /// Where lines seem to come from.
    connection: Arc<ClientConnection>,
    held: Vec<Held>,
    /// Whose turn it is.
    turn: usize,
    lines: JoinSet<Ran>,
    next_tick: Instant,
    next_sweep: Instant,
    next_object_sweep: Instant,
    sweep: JoinSet<()>,
    /// When a client's request was last seen.
    last_client: Option<Instant>,
}

impl Runner {
    /// The runner of this process.
    pub(crate) fn new(state: Arc<AppState>, batches: Arc<Batches>) -> Self {
        let nowhere = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
        Self {
            state,
            batches,
            holder: rand::random_range(1..i64::MAX),
            connection: Arc::new(ClientConnection::new(
                nowhere,
                &Arc::new(Addresses::default()),
            )),
            held: Vec::new(),
            turn: 0,
            lines: JoinSet::new(),
            next_tick: Instant::now(),
            next_sweep: Instant::now(),
            // Gateways that start together do not do the same at the same time.
            next_object_sweep: Instant::now() + SWEEP_OBJECTS.mul_f64(rand::random_range(0.1..1.0)),
            sweep: JoinSet::new(),
            last_client: None,
        }
    }

    /// Runs batches until `stop` resolves; then what runs comes to its end, and nothing new begins. When `hurry`
    /// resolves, it is broken off.
    pub(crate) async fn run(
        mut self,
        stop: impl Future<Output = ()>,
        hurry: impl Future<Output = ()>,
    ) {
        let batches = Arc::clone(&self.batches);
        let mut is_stopping = false;
        tokio::pin!(stop, hurry);
        loop {
            tokio::select! {
                () = &mut stop, if !is_stopping => is_stopping = true,
                () = &mut hurry => break,
                () = sleep_until(self.next_tick) => {}
                () = batches.changed() => self.next_tick = Instant::now(),
                Some(ran) = self.lines.join_next() => self.take(ran.ok()),
            }
            // What is ready is written together.
            while let Some(ran) = self.lines.try_join_next() {
                self.take(ran.ok());
            }
            self.record().await;
            if self.next_tick <= Instant::now() {
                self.next_tick = Instant::now() + TICK;
                self.tick(is_stopping).await;
            }
            if !is_stopping {
                self.fill();
            } else if self.lines.is_empty() {
                break;
            }
            self.show_running(self.running());
        }
        self.show_running(0);
        let holder = self.holder;
        if let Err(error) = self.batches.run(move |store| store.release(holder)).await {
            failed(&error);
        }
    }

    fn show_running(&self, lines: usize) {
        let lines = i64::try_from(lines).unwrap_or(i64::MAX);
        self.state.metrics.batch_lines_running.set(lines);
    }

    /// Lines that are being run.
    fn running(&self) -> usize {
        self.held.iter().map(Held::running).sum()
    }

    fn take(&mut self, ran: Option<Ran>) {
        // One that was broken off belongs to a batch that is no longer held.
        let Some(ran) = ran else { return };
        if ran.is_end() {
            self.held.retain(|held| held.id() != ran.batch());
            return;
        }
        let held = self.held.iter_mut().find(|held| held.id() == ran.batch());
        let Some(held) = held else { return };
        let end = held.take(ran, Instant::now());
        if let Some(end) = end {
            self.state.metrics.batch_line(end);
        }
    }

    /// Keeps the results that have come.
    async fn record(&mut self) {
        let mut gone = Vec::new();
        for held in &mut self.held {
            let Some(done) = held.results() else { continue };
            let (claim, now) = (held.claim.clone(), unix_seconds());
            let written = Arc::clone(&done);
            let recorded = self
                .batches
                .run(move |store| store.record(&claim, &written, now))
                .await;
            match recorded {
                Ok(false) => held.recorded(),
                Ok(true) => {
                    held.recorded();
                    held.close(&self.batches, Close::Completed, &mut self.lines);
                }
                Err(StoreError::LeaseLost) => gone.push(held.id()),
                // They are written again with the next ones.
                Err(error) => failed(&error),
            }
        }
        self.held.retain(|held| !gone.contains(&held.id()));
    }

    /// Renews leases, takes batches that nobody runs, and ends those whose time has come.
    async fn tick(&mut self, is_stopping: bool) {
        let (holder, now) = (self.holder, unix_seconds());
        let most = if is_stopping { 0 } else { MOST_BATCHES };
        let claim = move |store: &Store| store.claim(holder, most, now, now + LEASE);
        let claims = match self.batches.run(claim).await {
            Ok(claims) => claims,
            Err(error) => return failed(&error),
        };
        // Those that another process has by now are broken off.
        self.held
            .retain(|held| claims.iter().any(|claim| claim.batch.id == held.id()));
        for claim in claims {
            self.look_at(claim, now);
        }
        self.sweep(now);
    }

    /// Has what is too old removed, while lines run.
    fn sweep(&mut self, now: i64) {
        while self.sweep.try_join_next().is_some() {}
        if self.next_sweep > Instant::now() || !self.sweep.is_empty() {
            return;
        }
        self.next_sweep = Instant::now() + SWEEP;
        let are_objects_due = self.next_object_sweep <= Instant::now();
        if are_objects_due {
            self.next_object_sweep = Instant::now() + SWEEP_OBJECTS;
        }
        let batches = Arc::clone(&self.batches);
        self.sweep.spawn(async move {
            let sweep = move |store: &Store| {
                store.sweep(now)?;
                if are_objects_due {
                    store.sweep_objects()?;
                }
                Ok(())
            };
            if let Err(error) = batches.run(sweep).await {
                failed(&error);
            }
        });
    }

    fn look_at(&mut self, claim: Claim, now: i64) {
        let (status, expires) = (claim.batch.status, claim.batch.expires);
        let place = self
            .held
            .iter()
            .position(|held| held.id() == claim.batch.id);
        let place = place.unwrap_or_else(|| {
            self.held.push(Held::new(claim.clone()));
            self.held.len() - 1
        });
        let Some(held) = self.held.get_mut(place) else {
            return;
        };
        held.claim = claim;
        let why = match status {
            Status::Cancelling => Some(Close::Cancelled),
            // Another gateway may have begun to.
            Status::Finalizing => Some(Close::Completed),
            _ if expires <= now => Some(Close::Expired),
            _ => None,
        };
        match why {
            Some(why) => held.close(&self.batches, why, &mut self.lines),
            None if status == Status::Validating => held.import(&self.batches, &mut self.lines),
            None => {}
        }
    }

    /// Begins as many lines as there is room for, of each batch in turn.
    fn fill(&mut self) {
        let open = usize::try_from(self.state.metrics.streams.active_requests.get()).unwrap_or(0);
        let workers = self.state.table.workers();
        let mut running = self.running();
        let online = open.saturating_sub(running);
        if online > 0 {
            self.last_client = Some(Instant::now());
        }
        let load = Load {
            servers: workers.iter().filter(|slot| slot.is_ready()).count(),
            online,
            is_visited: self.last_client.is_some_and(|last| last.elapsed() < QUIET),
        };
        drop(workers);
        let room = room(load, self.batches.share);
        let mut without = 0;
        while running < room && without < self.held.len() {
            self.turn = (self.turn + 1) % self.held.len();
            match self.begin(self.turn) {
                true => {
                    without = 0;
                    running += 1;
                }
                false => without += 1,
            }
        }
    }

    /// Begins the next line of a batch; false: it has none to begin now.
    fn begin(&mut self, place: usize) -> bool {
        let Some(held) = self.held.get_mut(place) else {
            return false;
        };
        // Whose key is not valid now is not served; it may come back within the batch's window.
        let Some(key) = self.state.access.of_files(held.claim.owner) else {
            return false;
        };
        let line = held.next(&self.batches, &mut self.lines, Instant::now());
        let Some(line) = line else { return false };
        if !line::may_begin(&self.state, &line.work.body) {
            held.later(line, Instant::now() + TICK);
            return false;
        }
        let request = line::Request {
            client: line::client(&self.connection, key),
            dialect: held.claim.batch.dialect,
            endpoint: held.claim.batch.endpoint.clone(),
        };
        held.run(&self.state, request, line, &mut self.lines);
        true
    }
}

/// For the log: clients see that their batches wait.
fn failed(error: &StoreError) {
    tracing::error!(error = %error_chain(error), "the store of batches failed; batches wait");
}
