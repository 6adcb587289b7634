//! What the holder of an API key may use: requests and tokens a minute, and requests at once. Owns the counts and
//! how limits are written; which key has which is `api_key`'s, and when a request is counted `admission`'s.
//!
//! A rate is a bucket with room for one minute: it may be used up at once, and comes back evenly. A request is
//! counted when it is admitted. Tokens are counted when they are known: a prompt's when it is sent to a worker, an
//! answer's at its end. So what is used may exceed the limit by what was open, and the next request waits until it
//! has come back.

mod limits;

use std::sync::Arc;
use std::time::Duration;

use inflight_openai::{ApiError, RateUnit};
use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::limits::Limits;

const MINUTE: Duration = Duration::from_secs(60);
/// When a request may come back that found too many others open: nobody knows when one of them ends.
const BUSY: Duration = Duration::from_secs(1);

/// What one key may use and has used.
#[derive(Debug)]
pub struct Quota(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    limits: Limits,
    requests: Bucket,
    tokens: Bucket,
    open: u64,
}

/// How much of one rate is used, as the time at which none of it is.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    full_at: Instant,
}

impl Bucket {
    fn used(self, now: Instant) -> Duration {
        self.full_at.saturating_duration_since(now)
    }

    /// The time after which there is room for `count` more.
    fn wait(self, count: u64, limit: u64, now: Instant) -> Duration {
        (self.used(now) + cost(count, limit)).saturating_sub(MINUTE)
    }

    fn take(&mut self, count: u64, limit: u64, now: Instant) {
        let full_at = self.full_at.max(now);
        // Further away than a clock reaches, it stays.
        self.full_at = full_at.checked_add(cost(count, limit)).unwrap_or(full_at);
    }

    fn rate(self, limit: u64, now: Instant) -> Rate {
        let used = self.used(now);
        let left = MINUTE.saturating_sub(used).as_nanos() * u128::from(limit);
        Rate {
            limit,
            remaining: u64::try_from(left / MINUTE.as_nanos()).unwrap_or(limit),
            reset: used,
        }
    }
}

/// The time in which `count` comes back. Rounded down: a limit of 7 admits 7.
fn cost(count: u64, limit: u64) -> Duration {
    let nanos = u128::from(count) * MINUTE.as_nanos() / u128::from(limit.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// One rate, as it is reported to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub limit: u64,
    pub remaining: u64,
    /// Until none of it is used any more.
    pub reset: Duration,
}

/// What is left to a key, of what is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    pub requests: Option<Rate>,
    pub tokens: Option<Rate>,
}

impl Quota {
    /// A quota of which nothing is used.
    pub fn new(limits: Limits) -> Self {
        let full_at = Instant::now();
        Self(Mutex::new(Counts {
            limits,
            requests: Bucket { full_at },
            tokens: Bucket { full_at },
            open: 0,
        }))
    }

    /// Changes the limits; what is used stays used, as a part of a minute.
    pub fn set(&self, limits: Limits) {
        self.0.lock().limits = limits;
    }

    /// Counts a request, which is open for as long as the result lives.
    ///
    /// # Errors
    /// 429: nothing is left of a limit.
    pub fn admit(self: &Arc<Self>) -> Result<OpenUse, ApiError> {
        self.admit_at(Instant::now())
    }

    fn admit_at(self: &Arc<Self>, now: Instant) -> Result<OpenUse, ApiError> {
        let mut counts = self.0.lock();
        let Limits {
            requests,
            tokens,
            concurrent,
        } = counts.limits;
        if let Some(limit) = tokens {
            let wait = counts.tokens.wait(1, limit, now);
            if !wait.is_zero() {
                let unit = RateUnit::TokensPerMinute;
                return Err(ApiError::rate_limit_reached(unit, limit, wait));
            }
        }
        if let Some(limit) = concurrent
            && counts.open >= limit
        {
            let unit = RateUnit::OpenRequests;
            return Err(ApiError::rate_limit_reached(unit, limit, BUSY));
        }
        if let Some(limit) = requests {
            let wait = counts.requests.wait(1, limit, now);
            if !wait.is_zero() {
                let unit = RateUnit::RequestsPerMinute;
                return Err(ApiError::rate_limit_reached(unit, limit, wait));
            }
            counts.requests.take(1, limit, now);
        }
        counts.open += 1;
        Ok(OpenUse {
            quota: Arc::clone(self),
            sequences: 1,
        })
    }

    /// What is left now.
    pub fn left(&self) -> Left {
        self.left_at(Instant::now())
    }

    fn left_at(&self, now: Instant) -> Left {
        let counts = self.0.lock();
        let rate = |bucket: Bucket, limit: Option<u64>| limit.map(|limit| bucket.rate(limit, now));
        Left {
            requests: rate(counts.requests, counts.limits.requests),
            tokens: rate(counts.tokens, counts.limits.tokens),
        }
    }

    fn use_tokens(&self, tokens: u64, now: Instant) {
        let mut counts = self.0.lock();
        if let Some(limit) = counts.limits.tokens {
            counts.tokens.take(tokens, limit, now);
        }
    }
}

/// 400: `sequences` of one request are more than may ever be open.
pub fn too_many_sequences(sequences: usize, limit: u64) -> ApiError {
    ApiError::invalid_request(
        "n",
        format!(
            "The request asks for `{sequences}` sequences (prompts times `n`); at most `{limit}` may be open at once. \
             Send fewer prompts or a smaller `n`."
        ),
    )
}

/// A request that counts as open, once for each of its sequences.
#[derive(Debug)]
pub struct OpenUse {
    quota: Arc<Quota>,
    sequences: u64,
}

impl OpenUse {
    /// Counts the request as `sequences` in all.
    ///
    /// # Errors
    /// 400 for more than the key may ever have open; 429 when others of its requests have too many.
    pub fn widen(&mut self, sequences: u64) -> Result<(), ApiError> {
        let more = sequences.saturating_sub(self.sequences);
        let mut counts = self.quota.0.lock();
        if let Some(limit) = counts.limits.concurrent {
            if sequences > limit {
                let sequences = usize::try_from(sequences).unwrap_or(usize::MAX);
                return Err(too_many_sequences(sequences, limit));
            }
            if more > 0 && counts.open + more > limit {
                let unit = RateUnit::OpenRequests;
                return Err(ApiError::rate_limit_reached(unit, limit, BUSY));
            }
        }
        counts.open += more;
        self.sequences += more;
        Ok(())
    }

    /// Counts tokens that the request has used.
    pub fn tokens(&self, tokens: u64) {
        if tokens > 0 {
            self.quota.use_tokens(tokens, Instant::now());
        }
    }
}

impl Drop for OpenUse {
    fn drop(&mut self) {
        self.quota.0.lock().open -= self.sequences;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(text: &str) -> Arc<Quota> {
        Arc::new(Quota::new(text.parse().unwrap()))
    }

    #[test]
    fn a_minutes_requests_may_come_at_once_and_come_back_evenly() {
        for limit in [1, 3, 7, 60, 999_983] {
            let quota = quota(&format!("requests={limit}"));
            let now = Instant::now();
            for used in 1..=limit {
                quota.admit_at(now).unwrap();
                let left = quota.left_at(now).requests.unwrap();
                assert_eq!((left.limit, left.remaining), (limit, limit - used));
            }
            let refused = quota.admit_at(now).unwrap_err();
            let each = MINUTE / u32::try_from(limit).unwrap();
            let wait = refused.retry_after.unwrap();
            assert!(wait <= each && wait + Duration::from_nanos(limit) >= each);
            assert!(quota.admit_at(now + wait).is_ok(), "as told");
            assert!(quota.admit_at(now + wait).is_err(), "one alone");
            let later = now + 3 * MINUTE;
            assert_eq!(quota.left_at(later).requests.unwrap().remaining, limit);
            assert_eq!(quota.left_at(later).requests.unwrap().reset, Duration::ZERO);
        }
    }

    #[test]
    fn tokens_are_paid_back_before_the_next_request() {
        let quota = quota("tokens=600");
        let now = Instant::now();
        let open = quota.admit_at(now).unwrap();
        open.quota.use_tokens(599, now);
        let left = quota.left_at(now).tokens.unwrap();
        assert_eq!((left.limit, left.remaining), (600, 1));
        assert!(quota.admit_at(now).is_ok(), "one is left");
        open.quota.use_tokens(601, now);
        assert_eq!(quota.left_at(now).tokens.unwrap().remaining, 0);
        let refused = quota.admit_at(now).unwrap_err();
        assert_eq!(
            (refused.status(), refused.kind.error_type()),
            (429, "tokens")
        );
        let wait = refused.retry_after.unwrap();
        assert!(
            wait > MINUTE && wait < MINUTE + Duration::from_secs(1),
            "{wait:?}"
        );
        assert!(quota.admit_at(now + wait).is_ok());
    }

    #[test]
    fn an_open_request_keeps_its_place_until_it_ends() {
        let quota = quota("concurrent=2 requests=3");
        let now = Instant::now();
        let one = quota.admit_at(now).unwrap();
        let _two = quota.admit_at(now).unwrap();
        assert_eq!(quota.admit_at(now).unwrap_err().retry_after, Some(BUSY));
        let left = quota.left_at(now);
        assert_eq!(
            left.requests.unwrap().remaining,
            1,
            "a refused one costs nothing"
        );
        assert_eq!(left.tokens, None);
        drop(one);
        assert!(quota.admit_at(now).is_ok());
    }

    #[test]
    fn threads_get_no_more_than_the_limit() {
        let quota = quota("requests=100");
        let now = Instant::now();
        let admitted = || (0..50).filter(|_| quota.admit_at(now).is_ok()).count();
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(admitted)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).sum()
        });
        assert_eq!(total, 100);
    }

    #[test]
    fn limits_change_and_what_is_used_stays() {
        let quota = quota("requests=10");
        let now = Instant::now();
        for _ in 0..5 {
            quota.admit_at(now).unwrap();
        }
        quota.set("requests=100".parse().unwrap());
        assert_eq!(quota.left_at(now).requests.unwrap().remaining, 50);
        quota.set(Limits::default());
        assert_eq!(quota.left_at(now), Left::default());
        assert!(quota.admit_at(now).is_ok());
    }

    #[test]
    fn no_count_overflows() {
        let quota = quota("tokens=1");
        quota.use_tokens(u64::MAX, Instant::now());
        quota.use_tokens(u64::MAX, Instant::now());
        assert!(quota.admit().is_err());
    }

    #[test]
    fn each_sequence_of_a_request_counts_as_open() {
        let quota = quota("concurrent=4");
        let open = || quota.0.lock().open;
        let mut one = quota.admit().unwrap();
        let mut two = quota.admit().unwrap();
        one.widen(1).unwrap();
        assert_eq!(open(), 2);
        one.widen(3).unwrap();
        assert_eq!(open(), 4);
        let refused = |result: Result<(), ApiError>| result.unwrap_err().status();
        assert_eq!(refused(two.widen(2)), 429, "others have three of four");
        assert_eq!(refused(two.widen(5)), 400, "it can never have five");
        assert_eq!(open(), 4);
        drop(one);
        assert_eq!(open(), 1);
        two.widen(4).unwrap();
        // Fewer than there are change nothing, and what is open may remain under a lower limit.
        quota.set("concurrent=3".parse().unwrap());
        two.widen(2).unwrap();
        assert_eq!(open(), 4);
        drop(two);
        assert_eq!(open(), 0);
        let mut free = Arc::new(Quota::new("tokens=5".parse().unwrap()))
            .admit()
            .unwrap();
        free.widen(1000).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_of_an_open_request_are_used() {
        let quota = quota("tokens=600");
        let open = quota.admit().unwrap();
        let left = || quota.left().tokens.unwrap().remaining;
        open.tokens(0);
        assert_eq!(left(), 600);
        open.tokens(1);
        assert_eq!(left(), 599);
        open.tokens(99);
        assert_eq!(left(), 500);
    }
}
