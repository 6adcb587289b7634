//! A request that loses a second server before anything new came: how long it waits until that one is known to have ended.

use std::task::{Context, Waker};
use std::time::Duration;

use inflight_upstream::delivery::ResumeLimits;
use inflight_upstream::dispatch::NotDispatched;
use inflight_upstream::metrics::{Resumes, RetryReason};
use inflight_upstream::process::Life;
use inflight_upstream::survival::{Mover, Step, Survival, Way, Work};
use tokio::time::{Instant, sleep};

/// Within this a server that ended is known to have.
const ENDING: Duration = Duration::from_millis(1500);

/// A request whose server is there, for all that is known.
struct Request {
    /// Whether another server takes it.
    is_taken: bool,
}

/// At a server that is there.
#[derive(Debug, Default)]
struct Stays(Life);

impl Work for Stays {
    fn server(&self) -> &'static str {
        ""
    }

    fn life(&self) -> &Life {
        &self.0
    }

    fn server_stays(&self) -> bool {
        true
    }
}

impl Mover for Request {
    type Error = ();
    type Work = Stays;

    fn send(&mut self, _: &mut Stays, _: Option<RetryReason>) -> Result<Stays, NotDispatched> {
        match self.is_taken {
            true => Ok(Stays::default()),
            false => Err(NotDispatched::NoWorker),
        }
    }

    fn has_moved(&mut self, _: &mut Stays, _: Way) {}

    fn is_over(&self) -> bool {
        false
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn prompt_tokens(&self) -> usize {
        0
    }

    fn generated_tokens(&self) -> usize {
        0
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
    let mut now = Stays::default();
    lose(&mut survival).unwrap();
    let moved = survival.poll(&mut context, &mut Request { is_taken: true }, &mut now);
    assert!(matches!(moved, Step::Moved(..)));
    // It repeats what was said, and brings nothing new until it is lost as well.
    sleep(ENDING).await;
    lose(&mut survival).unwrap();
    let mut alone = Request { is_taken: false };
    let soon = survival.poll(&mut context, &mut alone, &mut now);
    assert!(matches!(soon, Step::Waits), "{soon:?}");
    sleep(ENDING).await;
    let later = survival.poll(&mut context, &mut alone, &mut now);
    assert!(matches!(later, Step::Failed(())), "{later:?}");
}
