//! When a request is given up, whatever its servers do: at its deadline, or when the gateway's grace is over. Owns that
//! asking costs next to nothing, because it is asked about once a token. Knows nothing of requests.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::ending::Ending;

/// How much later than a server that knows deadlines the gateway gives a request up: such a server ends it in time, and
/// reports that.
pub const DEADLINE_GRACE: Duration = Duration::from_millis(250);

/// Why a request was given up while its server might have continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// Nothing was generated within this time.
    NoOutput(Duration),
    /// Its deadline has passed.
    TimedOut,
    /// The gateway ends.
    ShuttingDown,
}

/// Resolves when a request is to be given up, to why. `deliver` asks before its first output, `Holding` after it.
pub struct Expiry {
    inner: BoxFuture<'static, GivenUp>,
    alarm: Arc<Alarm>,
}

/// Wakes the task that asked last.
#[derive(Debug)]
struct Alarm {
    /// Whether `inner` has something to say since it was last polled.
    has_rung: AtomicBool,
    task: AtomicWaker,
}

impl Expiry {
    /// At `deadline`, which has the [grace](DEADLINE_GRACE) in it where servers know it too, or at the `ending`.
    pub fn new(ending: &Ending, deadline: Option<Instant>) -> Self {
        let ending = ending.clone();
        let inner = match deadline {
            None => async move {
                ending.begun().await;
                GivenUp::ShuttingDown
            }
            .boxed(),
            Some(deadline) => async move {
                tokio::select! {
                    () = tokio::time::sleep_until(deadline) => GivenUp::TimedOut,
                    () = ending.begun() => GivenUp::ShuttingDown,
                }
            }
            .boxed(),
        };
        let alarm = Alarm {
            has_rung: AtomicBool::new(true),
            task: AtomicWaker::new(),
        };
        Self {
            inner,
            alarm: Arc::new(alarm),
        }
    }
}

impl fmt::Debug for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expiry").finish_non_exhaustive()
    }
}

impl Future for Expiry {
    type Output = GivenUp;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<GivenUp> {
        // Before the look: what rings after it wakes this task.
        self.alarm.task.register(context.waker());
        if !self.alarm.has_rung.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.alarm.has_rung.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&self.alarm));
        self.inner.poll_unpin(&mut Context::from_waker(&waker))
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn in_ms(milliseconds: u64) -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(milliseconds))
    }

    #[tokio::test(start_paused = true)]
    async fn it_resolves_at_the_earlier_of_both() {
        let ending = Ending::default();
        assert_eq!(Expiry::new(&ending, in_ms(50)).await, GivenUp::TimedOut);
        let expiries = [in_ms(60_000), None].map(|deadline| Expiry::new(&ending, deadline));
        let begun = Instant::now();
        let ends = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            ending.begin();
        };
        let (given_up, ()) = tokio::join!(futures_util::future::join_all(expiries), ends);
        assert_eq!(given_up, [GivenUp::ShuttingDown; 2]);
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
        assert_eq!(Expiry::new(&ending, None).await, GivenUp::ShuttingDown);
        assert!(format!("{:?}", Expiry::new(&ending, None)).contains("Expiry"));
    }

    #[tokio::test(start_paused = true)]
    async fn it_wakes_the_task_that_asked_last() {
        let mut expiry = Expiry::new(&Ending::default(), in_ms(50));
        let once = poll_fn(|context| Poll::Ready(expiry.poll_unpin(context)));
        assert_eq!(
            tokio::spawn(std::future::ready(once.await)).await.unwrap(),
            Poll::Pending
        );
        let other = tokio::spawn(expiry);
        let given_up = tokio::time::timeout(Duration::from_secs(1), other).await;
        assert_eq!(given_up.unwrap().unwrap(), GivenUp::TimedOut);
    }
}
