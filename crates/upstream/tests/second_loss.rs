//! A request that loses a second server before anything new came: how long it waits until that one is known to have ended.

use std::task::{Context, Waker};
use std::time::Duration;

use inflight_upstream::delivery::ResumeLimits;
use inflight_upstream::dispatch::NotDispatched;
use inflight_upstream::metrics::{Resumes, RetryReason};
use inflight_upstream::process::Life;
use inflight_upstream::survival::{Mover, Step, Survival, Way};
use tokio::time::{Instant, sleep};

/// Within this a server that ended is known to have.
const ENDING: Duration = Duration::from_millis(1500);

/// A request whose server is there, for all that is known.
struct Request {
    /// Whether another server takes it.
    is_taken: bool,
}

impl Mover for Request {
    type Error = ();
    type Sent = ();

    fn send(&mut self, _: bool) -> Result<(), NotDispatched> {
        match self.is_taken {
            true => Ok(()),
            false => Err(NotDispatched::NoWorker),
        }
    }

    fn is_over(&self) -> bool {
        false
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tokens(&self) -> usize {
        0
    }

    fn server_stays(&self) -> bool {
        true
    }

    fn timed_out(&self) {}
}

#[tokio::test(start_paused = true)]
async fn a_second_loss_has_its_own_time_until_its_server_is_missed() {
    let limits = ResumeLimits {
        most: 16,
        wait: 20 * ENDING,
        tokens: usize::MAX,
    };
    let mut survival = Survival::<()>::new(Way::Replay, limits, Resumes::default());
    let mut context = Context::from_waker(Waker::noop());
    let lose = |survival: &mut Survival<()>| {
        survival.lose((), RetryReason::Unavailable, &Life::default(), false)
    };
    lose(&mut survival).unwrap();
    let moved = survival.poll(&mut context, &mut Request { is_taken: true });
    assert!(matches!(moved, Step::Moved(())));
    // It repeats what was said, and brings nothing new until it is lost as well.
    sleep(ENDING).await;
    lose(&mut survival).unwrap();
    let mut alone = Request { is_taken: false };
    let soon = survival.poll(&mut context, &mut alone);
    assert!(matches!(soon, Step::Waits), "{soon:?}");
    sleep(ENDING).await;
    let later = survival.poll(&mut context, &mut alone);
    assert!(matches!(later, Step::Failed(())), "{later:?}");
}
