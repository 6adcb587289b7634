//! How much the gateway accepts at once. Owns the limits on requests, on the memory of large bodies and on
//! CPU for large inputs, and that no client takes all of them; knows nothing of what requests contain.
//!
//! A client may use whatever is free until little is: the last eighth of the places for requests is for
//! connections and clients that have few, the last eighth of the memory for bodies that are small.

use std::sync::Arc;
use std::time::Duration;

use inflight_base::blocking;
use inflight_openai::ApiError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::Client;
use crate::quota::{OpenUse, Quota, too_many_sequences};

/// Inputs up to this size are parsed, rendered and tokenized where they are: at some 2 MB/s that is 2 ms
/// at worst, which no stream notices, and a hand-over costs more than most of them.
pub const INLINE_BYTES: usize = 4 * 1024;
/// Inputs from this size on take seconds; they have separate threads, so that an ordinary long
/// prompt never waits for one.
const HUGE_BYTES: usize = 1 << 20;
/// Text being tokenized at once, in bytes: tokenizing takes some seventy times that in memory.
const INPUT_MEMORY: usize = 64 << 20;
/// Large inputs waiting for a thread, beyond those being worked on: a burst of long chats passes in a
/// second or two. How much they hold is bounded by the memory for bodies.
const WAITING_INPUTS: usize = 1024;
/// Small chats being rendered at once: their threads wait for the template's processes and use no CPU. More
/// than one template can keep waiting before it counts as suspended, or one model's chats would hold up all.
const RENDERINGS: usize = 128;
/// How long a large input may wait for a thread.
const INPUT_PATIENCE: Duration = Duration::from_secs(30);
/// Bodies are counted in units of this size, so that a budget of gigabytes fits a semaphore.
const BODY_UNIT: usize = 16 * 1024;

/// This part of the places, and of the memory for bodies, is kept for clients that have little.
const RESERVE: usize = 8;
/// A connection with more than this part of all places has many; an address or a key, with four times it.
const FEW: usize = 64;
/// A body up to this size may use the memory that is kept; the longest ordinary prompts are smaller.
const SMALL_BODY: usize = 1 << 20;

/// Memory that a body holds, counted for its client.
#[derive(Debug, Default)]
pub struct BodyMemory {
    permit: Option<OwnedSemaphorePermit>,
    client: Option<Arc<Client>>,
}

impl BodyMemory {
    /// Nothing yet, of a request of `client`.
    pub fn of(client: Option<&Arc<Client>>) -> Self {
        Self {
            permit: None,
            client: client.cloned(),
        }
    }

    fn units(&self) -> usize {
        let permit = self.permit.as_ref();
        permit.map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        if let Some(client) = &self.client {
            client.free_body_units(self.units());
        }
    }
}

/// A request's place among the open ones, for as long as this lives.
#[derive(Debug)]
pub struct Admitted {
    place: OwnedSemaphorePermit,
    /// Where its key has limits.
    of_key: Option<OpenUse>,
}

impl Admitted {
    /// Takes places for `sequences` in all: each is generated as if it were a request.
    ///
    /// # Errors
    /// 400 for more than the server or the key may ever have open; 429 when too few are left now.
    pub fn widen(&mut self, admission: &Admission, sequences: usize) -> Result<(), ApiError> {
        let more = sequences.saturating_sub(self.place.num_permits());
        if more == 0 {
            return Ok(());
        }
        if sequences > admission.max_requests {
            return Err(too_many_sequences(sequences, admission.max_requests as u64));
        }
        let few = || {
            ApiError::rate_limited(
                "The server has too few places left for all sequences of the request. Retry later.",
            )
        };
        let more = u32::try_from(more).map_err(|_| few())?;
        let places = Arc::clone(&admission.requests).try_acquire_many_owned(more);
        let places = places.map_err(|_| few())?;
        if let Some(of_key) = &mut self.of_key {
            of_key.widen(sequences as u64)?;
        }
        self.place.merge(places);
        Ok(())
    }

    /// Counts tokens for the client's key.
    pub fn used(&self, tokens: u64) {
        if let Some(of_key) = &self.of_key {
            of_key.tokens(tokens);
        }
    }
}

/// What the work on an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// CPU time in proportion to the input.
    Computes,
    /// That, and waiting for a chat template, which may take until its limit whatever the input.
    Renders,
}

/// All limits, shared by the handlers.
#[derive(Debug)]
pub struct Admission {
    requests: Arc<Semaphore>,
    max_requests: usize,
    max_body_units: usize,
    large_inputs: Arc<Semaphore>,
    huge_inputs: Arc<Semaphore>,
    renderings: Arc<Semaphore>,
    /// In kibibytes.
    input_memory: Arc<Semaphore>,
    waiting_inputs: Arc<Semaphore>,
    body_memory: Arc<Semaphore>,
}

impl Admission {
    /// At most `requests` at once, `threads` large inputs in work and half as many huge ones, and
    /// `body_bytes` of bodies held.
    pub fn new(requests: usize, threads: usize, body_bytes: usize) -> Self {
        let requests = requests.min(Semaphore::MAX_PERMITS);
        let body_units = body_bytes.div_ceil(BODY_UNIT).min(Semaphore::MAX_PERMITS);
        Self {
            requests: Arc::new(Semaphore::new(requests)),
            max_requests: requests,
            max_body_units: body_units,
            large_inputs: Arc::new(Semaphore::new(threads.max(1))),
            huge_inputs: Arc::new(Semaphore::new((threads / 2).max(1))),
            renderings: Arc::new(Semaphore::new(RENDERINGS)),
            input_memory: Arc::new(Semaphore::new(INPUT_MEMORY / 1024)),
            waiting_inputs: Arc::new(Semaphore::new(threads.max(1) + WAITING_INPUTS)),
            body_memory: Arc::new(Semaphore::new(body_units)),
        }
    }

    /// A place among the requests, held for as long as the permit lives.
    ///
    /// # Errors
    /// 429 with `Retry-After` when all are taken, when few are left and the client has many, or when nothing is left
    /// to its key.
    pub fn admit(&self, client: Option<&Arc<Client>>) -> Result<Admitted, ApiError> {
        let few = (self.max_requests / FEW).max(1);
        let has_many = |client: &Arc<Client>| {
            client.connection_requests() > few || client.owner_requests() > 4 * few
        };
        if self.requests.available_permits() <= self.max_requests / RESERVE
            && client.is_some_and(has_many)
        {
            return Err(ApiError::rate_limited(
                "The server has few places left, and this client has many open requests. Retry later.",
            ));
        }
        let place = Arc::clone(&self.requests).try_acquire_owned();
        let place = place.map_err(|_| {
            ApiError::rate_limited("The server has too many open requests. Retry later.")
        })?;
        let quota = client.and_then(|client| client.quota());
        let of_key = quota.map(Quota::admit).transpose()?;
        Ok(Admitted { place, of_key })
    }

    /// Memory for `bytes` of a body in all; joined to what the body holds already.
    ///
    /// # Errors
    /// 503 with `Retry-After` when other bodies hold it all, or the client's others hold their share.
    pub fn hold(&self, held: &mut BodyMemory, bytes: usize) -> Result<(), ApiError> {
        let need = bytes.div_ceil(BODY_UNIT).saturating_sub(held.units());
        if need == 0 {
            return Ok(());
        }
        let kept = self.max_body_units / RESERVE;
        let free = self.body_memory.available_permits().saturating_sub(need);
        let (of_connection, of_owner) = held.client.as_ref().map_or((0, 0), |client| {
            let connection = client.connection_body_units();
            (connection + need, client.owner_body_units() + need)
        });
        // A body that is alone may always have what it needs.
        let has_others = of_connection > held.units() + need || of_owner > held.units() + need;
        let is_over = of_connection > self.max_body_units / 4 || of_owner > self.max_body_units / 2;
        let takes_reserve = free < kept && (bytes > SMALL_BODY || of_connection > kept / 4);
        let refused = (is_over && has_others) || takes_reserve;
        let more = u32::try_from(need).ok().filter(|_| !refused);
        let more = more.and_then(|need| {
            let memory = Arc::clone(&self.body_memory);
            memory.try_acquire_many_owned(need).ok()
        });
        let more = more.ok_or_else(|| {
            ApiError::unavailable("The server is reading too many large requests. Retry later.")
        })?;
        if let Some(client) = &held.client {
            client.take_body_units(need);
        }
        match &mut held.permit {
            Some(permit) => permit.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// Does CPU work in proportion to an input of `bytes`: at once if it is small and only `Computes`, else
    /// on the blocking pool, so that no prompt delays another stream.
    ///
    /// # Errors
    /// What `work` returns; 503 when too many inputs wait already; 500 when the work panicked.
    pub async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        kind: Work,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let is_small = bytes <= INLINE_BYTES;
        if is_small && kind == Work::Computes {
            return work();
        }
        let busy = || {
            ApiError::unavailable("The server is preparing too many large requests. Retry later.")
        };
        let waiting = Arc::clone(&self.waiting_inputs)
            .try_acquire_owned()
            .map_err(|_| busy())?;
        let threads = match bytes {
            _ if is_small => &self.renderings,
            ..HUGE_BYTES => &self.large_inputs,
            _ => &self.huge_inputs,
        };
        // One input larger than everything takes everything.
        let memory = u32::try_from(bytes.min(INPUT_MEMORY) / 1024).unwrap_or(u32::MAX);
        let start = async {
            let thread = Arc::clone(threads).acquire_owned().await;
            let memory = Arc::clone(&self.input_memory)
                .acquire_many_owned(memory)
                .await;
            thread.ok().zip(memory.ok())
        };
        let held = tokio::time::timeout(INPUT_PATIENCE, start).await;
        let held = held.ok().flatten().ok_or_else(busy)?;
        let result = blocking::run(move || {
            // Held until the work is done, also when the client has left meanwhile.
            let _held = (waiting, held);
            work()
        });
        result.await.unwrap_or_else(|error| {
            tracing::error!(%error, "work on a large input failed");
            Err(ApiError::internal())
        })
    }
}

#[cfg(test)]
mod tests;
