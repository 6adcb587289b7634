//! The await thread: takes each iteration's rows and distributes them once.
//!
//! When all rows belong to one stream, as with a single gateway, client ids are replaced by handles and
//! the other columns move on untouched; otherwise each row goes to its own stream.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use inflight_kserve::names;
use inflight_kserve::step::{FinishReason, Handle, Row, RowError};
use parking_lot::MutexGuard;
use tonic::Code;

use super::registry::{LiveRequest, Registry};
use super::{AWAIT_TIMEOUT, Engine, NotAdmitted};
use crate::executor::{ClientId, ResponseBatch};
use crate::metrics::{Metrics, Outcome, RequestEnd};
use crate::outbox::{Moment, Outbox};
use crate::response::no_context;
use crate::trace::{Part, RequestTrace};

/// Buffers that live as long as the thread.
#[derive(Default)]
struct Scratch {
    /// The requests that ended in this iteration.
    ended: Vec<ClientId>,
    ended_handles: Vec<Handle>,
    ends: Vec<RequestEnd>,
    wake: Vec<Arc<Outbox>>,
    slow: Vec<Arc<Outbox>>,
    canaries: Vec<LiveRequest>,
    /// Let go of outside the registry's lock, because the last part of a trace makes its spans.
    traces: Vec<Arc<RequestTrace>>,
    /// The requests whose first row this iteration brought.
    started: Vec<ClientId>,
}

/// Runs until the worker stops or the executor fails.
pub(super) fn run(engine: &Engine) {
    let mut rows = Rows::default();
    while !engine.stopping.load(Ordering::Acquire) {
        if !rows.take(engine, AWAIT_TIMEOUT) {
            return;
        }
    }
}

/// Takes rows from the executor, one iteration after another.
#[derive(Default)]
pub(super) struct Rows {
    scratch: Scratch,
    iteration: u64,
}

impl Rows {
    /// Waits for the next rows, for `timeout` at most, and distributes them. Returns whether there may be more.
    pub(super) fn take(&mut self, engine: &Engine, timeout: Duration) -> bool {
        let batch = match engine.executor.await_responses(timeout) {
            Ok(batch) => batch,
            Err(failed) => {
                engine.fail(&failed.to_string());
                return false;
            }
        };
        if batch.rows.ids.is_empty() {
            return true;
        }
        if let Err(broken) = batch.rows.validate() {
            engine.fail(&format!(
                "the executor returned a malformed batch: {broken}"
            ));
            return false;
        }
        self.iteration += 1;
        let moment = Moment {
            now: Instant::now(),
            iteration: self.iteration,
        };
        engine.note_progress(moment.now);
        engine.metrics.generated(batch.rows.token_ids.len());
        distribute(engine, batch, moment, &mut self.scratch);
        true
    }
}

fn distribute(engine: &Engine, mut batch: ResponseBatch, moment: Moment, scratch: &mut Scratch) {
    let mut registry = engine.registry.lock();
    if batch
        .rows
        .finish_reasons
        .iter()
        .any(|reason| is_cut(*reason))
    {
        let draining = engine.health.borrow().draining;
        explain_cuts(&mut registry, &mut batch, draining);
    }
    match account(&mut registry, &batch, moment.now, scratch) {
        Some(Common {
            outbox,
            handles,
            may_wait,
        }) if batch.tensors.is_empty() => {
            if !batch.rows.cached_tokens.is_empty() {
                keep_wanted_cached_tokens(&mut registry, &mut batch);
            }
            let rows = batch.rows.with_ids(handles);
            let delivery = outbox.put_step(rows, &scratch.ended_handles, may_wait, moment);
            if delivery.waited > engine.limits.slow_reader_timeout {
                scratch.slow.push(Arc::clone(&outbox));
            }
            if delivery.wake {
                scratch.wake.push(outbox);
            }
        }
        _ => spread(engine, &mut registry, &batch, moment, scratch),
    }
    for client_id in scratch.ended.drain(..) {
        if let Some(request) = registry.remove(client_id, moment.now) {
            scratch.traces.extend(part_ended(&request, moment.now));
            end(
                request,
                moment.now,
                &mut scratch.ends,
                &mut scratch.canaries,
            );
        }
    }
    // An executor that always has rows brings this thread back at once: those that wait to submit go
    // first.
    MutexGuard::unlock_fair(registry);

    // Before anyone is woken, so that a client that has its answer finds it counted.
    if !scratch.ends.is_empty() {
        engine.metrics.ended(scratch.ends.drain(..));
    }
    engine.wakes.wake(&mut scratch.wake);
    scratch.traces.clear();
    for mut canary in scratch.canaries.drain(..) {
        answer_canary(&mut canary);
    }
    for outbox in scratch.slow.drain(..) {
        engine.drop_slow_reader(&outbox);
    }
}

/// The one stream that all rows of an iteration belong to.
struct Common {
    outbox: Arc<Outbox>,
    /// Of each row.
    handles: Vec<Handle>,
    /// Whether nobody reads them now.
    may_wait: bool,
}

/// Counts every row for its request. Returns the stream if all rows belong to live step requests of one.
fn account(
    registry: &mut Registry,
    batch: &ResponseBatch,
    now: Instant,
    scratch: &mut Scratch,
) -> Option<Common> {
    let rows = &batch.rows;
    scratch.ended.clear();
    scratch.ended_handles.clear();
    for error in &rows.errors {
        let client_id = rows.ids.get(error.row as usize);
        if let Some(request) = client_id.and_then(|client_id| registry.get_mut(*client_id)) {
            request.error = Some((error.code, error.text.as_str().into()));
        }
    }
    let mut common: Option<Arc<Outbox>> = None;
    let mut handles = Vec::with_capacity(rows.ids.len());
    let mut uniform = true;
    let mut may_wait = true;
    let lengths = rows.token_offsets.windows(2).map(|pair| match pair {
        [start, end] => end - start,
        _ => 0,
    });
    let columns = rows
        .ids
        .iter()
        .zip(lengths)
        .zip(rows.finish_reasons.iter().zip(&rows.finals));
    for ((client_id, tokens), (reason, last)) in columns {
        let Some(request) = registry.get_mut(*client_id) else {
            uniform = false;
            continue;
        };
        uniform &= !(request.ended || request.context_only && *last != 0);
        request.output_tokens += tokens;
        may_wait &= waits_for_more(request, *last != 0);
        if request.first_row.is_none() {
            request.first_row = Some(now);
            scratch.started.push(*client_id);
        }
        if *last != 0 && !request.ended {
            request.ended = true;
            request.finish_reason = *reason;
            scratch.ended.push(*client_id);
            scratch.ended_handles.extend(request.handle);
        }
        match (&request.outbox, request.handle, &common) {
            (Some(outbox), Some(handle), Some(first)) if Arc::ptr_eq(outbox, first) => {
                handles.push(handle);
            }
            (Some(outbox), Some(handle), None) => {
                common = Some(Arc::clone(outbox));
                handles.push(handle);
            }
            _ => uniform = false,
        }
    }
    for client_id in scratch.started.drain(..) {
        registry.start(client_id, now);
    }
    let outbox = common.filter(|_| uniform)?;
    Some(Common {
        outbox,
        handles,
        may_wait,
    })
}

/// Whether the row of a request may wait for others. The first says when it began, and the last that it is over.
fn waits_for_more(request: &LiveRequest, is_last: bool) -> bool {
    request.may_wait && !is_last && request.first_row.is_some()
}

/// Whether a sequence with this finish reason ended before it was complete.
fn is_cut(reason: u8) -> bool {
    reason == FinishReason::Cancelled as u8 || reason == FinishReason::TimedOut as u8
}

/// Adds an error to each row that ends a sequence which its client did not ask to stop: part of an
/// answer must not look like a whole one.
fn explain_cuts(registry: &mut Registry, batch: &mut ResponseBatch, draining: bool) {
    let rows = &mut batch.rows;
    let explained = rows.errors.len();
    for (row, (client_id, reason)) in (0u32..).zip(rows.ids.iter().zip(&rows.finish_reasons)) {
        let asked = registry
            .get_mut(*client_id)
            .is_none_or(|request| request.stopped || request.outbox.is_none());
        let has_error = |errors: &[RowError]| {
            let errors = errors.get(..explained).unwrap_or_default();
            errors.binary_search_by_key(&row, |error| error.row).is_ok()
        };
        if !is_cut(*reason) || asked || has_error(&rows.errors) {
            continue;
        }
        let (code, text) = if *reason == FinishReason::TimedOut as u8 {
            (
                Code::DeadlineExceeded,
                "the request's time has run out in the executor",
            )
        } else if draining {
            (
                Code::Unavailable,
                "the worker is shutting down and cancelled the request; send it to another worker",
            )
        } else {
            (
                Code::Unavailable,
                "the executor cancelled the request; retry it",
            )
        };
        rows.errors.push(RowError {
            row,
            code,
            text: text.to_owned(),
            retry_after_ms: 0,
        });
    }
    rows.errors.sort_by_key(|error| error.row);
}

fn keep_wanted_cached_tokens(registry: &mut Registry, batch: &mut ResponseBatch) {
    let ids = &batch.rows.ids;
    batch.rows.cached_tokens.retain(|(row, _)| {
        let client_id = ids.get(*row as usize);
        let request = client_id.and_then(|client_id| registry.get_mut(*client_id));
        request.is_some_and(|request| request.wants_cached_tokens)
    });
}

/// Sends each row to its own stream.
fn spread(
    engine: &Engine,
    registry: &mut Registry,
    batch: &ResponseBatch,
    moment: Moment,
    scratch: &mut Scratch,
) {
    let without = OnceCell::new();
    let mut tensors = batch.tensors.as_slice();
    for mut row in batch.rows.rows() {
        let own = tensors
            .iter()
            .take_while(|(place, _)| *place as usize <= row.index)
            .count();
        let (own, rest) = tensors.split_at(own);
        tensors = rest;
        let Some(request) = registry
            .get_mut(row.id)
            .filter(|request| !request.sent_final)
        else {
            continue;
        };
        request.sent_final = row.is_final;
        if !request.wants_cached_tokens {
            row.cached_tokens = None;
        }
        let Some(outbox) = &request.outbox else {
            continue;
        };
        let delivery = match request.handle {
            Some(handle) => {
                let mut phases = own.iter();
                let phase = phases.find(|(_, tensor)| tensor.name == names::CONTEXT_PHASE_PARAMS);
                row.context_phase = phase.map(|(_, tensor)| &tensor.data).or(row.context_phase);
                // It would look like a whole answer.
                let lacks_context = request.context_only
                    && row.is_final
                    && row.error.is_none()
                    && row.context_phase.is_none()
                    && !is_cut(row.finish_reason as u8);
                if lacks_context {
                    row.error = Some(without.get_or_init(no_context));
                }
                let may_wait = waits_for_more(request, row.is_final);
                outbox.put_step_row(&row, handle, may_wait, moment)
            }
            None => {
                outbox.put_plain_row(&row, own.iter().map(|(_, tensor)| tensor.clone()), moment)
            }
        };
        if delivery.wake {
            scratch.wake.push(Arc::clone(outbox));
        }
        let slow = delivery.waited > engine.limits.slow_reader_timeout;
        if slow && !scratch.slow.iter().any(|known| Arc::ptr_eq(known, outbox)) {
            scratch.slow.push(Arc::clone(outbox));
        }
    }
}

/// Notes in the request's trace, if it has one, that this part of it is over.
fn part_ended(request: &LiveRequest, now: Instant) -> Option<Arc<RequestTrace>> {
    let trace = request.trace.as_ref()?;
    trace.ended(&Part {
        received: request.received,
        handed_over: request.handed_over,
        first_row: request.first_row,
        ended: now,
        prompt_tokens: request.prompt_tokens,
        output_tokens: request.output_tokens,
        finish_reason: request.finish_reason,
        error: request.error.as_ref().map(|(code, _)| *code),
    });
    Some(Arc::clone(trace))
}

/// Hands the figures of a request that is over to the metrics, unless it was the canary.
fn end(
    request: LiveRequest,
    now: Instant,
    ends: &mut Vec<RequestEnd>,
    canaries: &mut Vec<LiveRequest>,
) {
    if request.canary.is_some() {
        canaries.push(request);
        return;
    }
    let outcome = match &request.error {
        Some((code, _)) if *code == Code::ResourceExhausted => Outcome::Rejected,
        Some((code, _)) if *code == Code::DeadlineExceeded => Outcome::Canceled,
        Some(_) => Outcome::Backend,
        None if request.abandoned || request.finish_reason == FinishReason::Cancelled as u8 => {
            Outcome::Canceled
        }
        None => Outcome::Success,
    };
    ends.push(RequestEnd {
        outcome,
        prompt_tokens: request.prompt_tokens,
        output_tokens: request.output_tokens,
        received: request.received,
        handed_over: request.handed_over.unwrap_or(request.received),
        first_row: request.first_row,
        ended: now,
    });
}

fn answer_canary(canary: &mut LiveRequest) {
    let Some(sender) = canary.canary.take() else {
        return;
    };
    let answer = match &canary.error {
        Some((_, text)) => Err(text.to_string()),
        None if canary.output_tokens == 0
            && canary.finish_reason == FinishReason::Cancelled as u8 =>
        {
            Err("it was cancelled".to_owned())
        }
        // A model may end at once, with no token but the end token.
        None => Ok(()),
    };
    // The worker may have stopped waiting.
    let _ = sender.send(answer);
}

/// Puts the final row of a request into its outbox: an error.
pub(super) fn put_error(
    outbox: &Outbox,
    handle: Option<Handle>,
    client_id: ClientId,
    error: &RowError,
    moment: Moment,
) {
    let row = Row {
        finish_reason: FinishReason::Cancelled,
        is_final: true,
        error: Some(error),
        ..Row::new(client_id, &[])
    };
    match handle {
        Some(handle) => outbox.put_step_row(&row, handle, false, moment),
        None => outbox.put_plain_row(&row, std::iter::empty(), moment),
    };
}

/// Ends the requests of an executor that failed: the final row of each is an error.
pub(super) fn fail_all(requests: Vec<(ClientId, LiveRequest)>, reason: &str, metrics: &Metrics) {
    let now = Instant::now();
    let moment = Moment {
        now,
        iteration: u64::MAX,
    };
    let (mut ends, mut canaries) = (Vec::new(), Vec::new());
    let error = RowError {
        row: 0,
        code: Code::Unavailable,
        // How it failed is in the log, not for clients.
        text: NotAdmitted::Failed.to_string(),
        retry_after_ms: 0,
    };
    for (client_id, mut request) in requests {
        if let Some(outbox) = &request.outbox {
            put_error(outbox, request.handle, client_id, &error, moment);
            outbox.wake();
        }
        request.error = Some((error.code, reason.into()));
        part_ended(&request, now);
        end(request, now, &mut ends, &mut canaries);
    }
    for mut canary in canaries {
        answer_canary(&mut canary);
    }
    metrics.ended(ends.into_iter());
}
