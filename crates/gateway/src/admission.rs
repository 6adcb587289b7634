//! How much the gateway accepts at once. Owns the limits on requests, on the memory of large bodies and on
//! CPU for large inputs; knows nothing of what requests contain.

use std::sync::Arc;
use std::time::Duration;

use inflight_openai::ApiError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Inputs up to this size are parsed, rendered and tokenized where they are: at some 2 MB/s that is 2 ms
/// at worst, which no stream notices, and a hand-over costs more than most of them.
pub(crate) const INLINE_BYTES: usize = 4 * 1024;
/// Inputs from this size on take seconds; they have threads of their own, so that an ordinary long
/// prompt never waits for one.
const HUGE_BYTES: usize = 1 << 20;
/// Text being tokenized at once, in bytes: tokenizing takes some seventy times that in memory.
const INPUT_MEMORY: usize = 64 << 20;
/// Large inputs waiting for a thread, beyond those being worked on: a burst of long chats passes in a
/// second or two. How much they hold is bounded by the memory for bodies.
const WAITING_INPUTS: usize = 1024;
/// How long a large input may wait for a thread.
const INPUT_PATIENCE: Duration = Duration::from_secs(30);
/// Bodies are counted in units of this size, so that a budget of gigabytes fits a semaphore.
const BODY_UNIT: usize = 16 * 1024;

/// All limits, shared by the handlers.
#[derive(Debug)]
pub(crate) struct Admission {
    requests: Arc<Semaphore>,
    large_inputs: Arc<Semaphore>,
    huge_inputs: Arc<Semaphore>,
    /// In kibibytes.
    input_memory: Arc<Semaphore>,
    waiting_inputs: Arc<Semaphore>,
    body_memory: Arc<Semaphore>,
}

impl Admission {
    /// At most `requests` at once, `threads` large inputs in work and half as many huge ones, and
    /// `body_bytes` of bodies held.
    pub(crate) fn new(requests: usize, threads: usize, body_bytes: usize) -> Self {
        let requests = requests.min(Semaphore::MAX_PERMITS);
        Self {
            requests: Arc::new(Semaphore::new(requests)),
            large_inputs: Arc::new(Semaphore::new(threads.max(1))),
            huge_inputs: Arc::new(Semaphore::new((threads / 2).max(1))),
            input_memory: Arc::new(Semaphore::new(INPUT_MEMORY / 1024)),
            waiting_inputs: Arc::new(Semaphore::new(threads.max(1) + WAITING_INPUTS)),
            body_memory: Arc::new(Semaphore::new(body_bytes.div_ceil(BODY_UNIT))),
        }
    }

    /// A place among the requests, held for as long as the permit lives.
    ///
    /// # Errors
    /// 429 with `Retry-After` when all are taken.
    pub(crate) fn admit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.requests).try_acquire_owned().map_err(|_| {
            ApiError::rate_limited("The server has too many open requests. Retry later.", 1)
        })
    }

    /// Memory for `bytes` more of a body; joined to what the body holds already.
    ///
    /// # Errors
    /// 503 with `Retry-After` when other bodies hold it all.
    pub(crate) fn hold(
        &self,
        held: &mut Option<OwnedSemaphorePermit>,
        bytes: usize,
    ) -> Result<(), ApiError> {
        let have = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let need = bytes.div_ceil(BODY_UNIT).saturating_sub(have);
        if need == 0 {
            return Ok(());
        }
        let more = u32::try_from(need)
            .ok()
            .and_then(|need| {
                Arc::clone(&self.body_memory)
                    .try_acquire_many_owned(need)
                    .ok()
            })
            .ok_or_else(|| {
                ApiError::unavailable("The server is reading too many large requests. Retry later.")
            })?;
        match held {
            Some(held) => held.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// Does CPU work in proportion to an input of `bytes`: at once if it is small, else on the blocking
    /// pool, so that no prompt delays another stream.
    ///
    /// # Errors
    /// What `work` returns; 503 when too many large inputs wait already; 500 when the work panicked.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= INLINE_BYTES {
            return work();
        }
        let busy = || {
            ApiError::unavailable("The server is preparing too many large requests. Retry later.")
        };
        let waiting = Arc::clone(&self.waiting_inputs)
            .try_acquire_owned()
            .map_err(|_| busy())?;
        let threads = if bytes < HUGE_BYTES {
            &self.large_inputs
        } else {
            &self.huge_inputs
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
        let result = tokio::task::spawn_blocking(move || {
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
mod tests {
    use super::*;

    #[test]
    fn requests_over_the_limit_get_429_and_a_place_comes_free() {
        let admission = Admission::new(1, 1, 1 << 20);
        let first = admission.admit().unwrap();
        let refused = admission.admit().unwrap_err();
        assert_eq!((refused.status(), refused.retry_after_s), (429, Some(1)));
        drop(first);
        assert!(admission.admit().is_ok());
    }

    #[test]
    fn body_memory_grows_with_the_body_and_is_bounded_in_sum() {
        let admission = Admission::new(1, 1, 4 * BODY_UNIT);
        let mut one = None;
        admission.hold(&mut one, 1).unwrap();
        admission.hold(&mut one, 3 * BODY_UNIT).unwrap();
        let mut two = None;
        admission.hold(&mut two, BODY_UNIT).unwrap();
        assert_eq!(
            admission
                .hold(&mut two, BODY_UNIT + 1)
                .unwrap_err()
                .status(),
            503
        );
        drop(one);
        admission.hold(&mut two, 4 * BODY_UNIT).unwrap();
    }

    #[tokio::test]
    async fn a_long_prompt_does_not_wait_for_a_huge_one() {
        let admission = Admission::new(1, 1, 1 << 20);
        let _huge = Arc::clone(&admission.huge_inputs)
            .acquire_owned()
            .await
            .unwrap();
        assert_eq!(admission.work(INLINE_BYTES + 1, || Ok(7)).await.unwrap(), 7);
        let huge = admission.work(HUGE_BYTES, || Ok(7));
        assert!(
            tokio::time::timeout(Duration::from_millis(20), huge)
                .await
                .is_err()
        );
    }

    #[tokio::test]
    async fn large_inputs_beyond_the_waiting_room_are_refused() {
        let admission = Arc::new(Admission::new(1, 1, 1 << 20));
        let _all = Arc::clone(&admission.waiting_inputs)
            .acquire_many_owned(WAITING_INPUTS as u32 + 1)
            .await
            .unwrap();
        let refused = admission
            .work(INLINE_BYTES + 1, || Ok(()))
            .await
            .unwrap_err();
        assert_eq!(refused.status(), 503);
        assert_eq!(admission.work(INLINE_BYTES, || Ok(7)).await.unwrap(), 7);
    }
}
