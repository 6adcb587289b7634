//! How long a request that is to continue elsewhere is offered, and which of its moves count, in virtual time. The
//! servers are doubles that take it, or do not.

use std::task::Waker;

use tokio::time::sleep;

use super::*;

/// How long a request waits for a server.
const WAIT: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
/// Within this a server that ended is known to have.
const ENDING: Duration = Duration::from_millis(1500);

/// At a server.
#[derive(Debug, Default)]
struct At {
    life: Life,
    stays: bool,
}

impl Work for At {
    fn server(&self) -> &'static str {
        ""
    }

    fn life(&self) -> &Life {
        &self.life
    }

    fn server_stays(&self) -> bool {
        self.stays
    }
}

/// A request of ten tokens.
struct Request {
    /// Whether another server takes it.
    is_taken: bool,
}

impl Mover for Request {
    type Error = ();
    type Work = At;

    fn send(&mut self, _: &mut At, _: Option<RetryReason>) -> Result<At, NotDispatched> {
        match self.is_taken {
            true => Ok(At::default()),
            false => Err(NotDispatched::NoWorker),
        }
    }

    fn has_moved(&mut self, _: &mut At) {}

    fn is_over(&self) -> bool {
        false
    }

    fn generated_tokens(&self) -> usize {
        3
    }
}

/// A request that has begun, and continues in this way.
fn begun_in(way: Way) -> Survival<()> {
    let request = Movable {
        way,
        prompt_tokens: 7,
    };
    let limits = ResumeLimits {
        most: 16,
        wait: WAIT,
        tokens: usize::MAX,
    };
    let mut survival = Survival::new(request, limits, Resumes::default());
    survival.heard(true, Instant::now());
    survival
}

fn begun() -> Survival<()> {
    begun_in(Way::Resume)
}

fn lose(survival: &mut Survival<()>, reason: RetryReason) {
    let lost = survival.lose((), reason, &Life::default(), false);
    assert_eq!(lost, Ok(()));
}

/// Its server is gone.
fn poll(survival: &mut Survival<()>, is_taken: bool) -> Step<At, ()> {
    poll_at(survival, false, is_taken)
}

fn poll_at(survival: &mut Survival<()>, stays: bool, is_taken: bool) -> Step<At, ()> {
    let mut context = Context::from_waker(Waker::noop());
    let life = Life::default();
    let now = &mut At { life, stays };
    survival.poll(&mut context, &mut Request { is_taken }, now)
}

/// What is before a loss, and how long.
type Before = fn(&mut Survival<()>);

#[tokio::test(start_paused = true)]
async fn a_loss_has_all_of_its_time_whatever_was_waited_for_before() {
    let table: &[(&str, Duration, Before)] = &[
        ("nothing", WAIT, |_| ()),
        (
            "a notice that no server heeded",
            WAIT - SECOND,
            |survival| {
                survival.notice(Notice::Leaving);
                assert!(matches!(poll(survival, false), Step::Stays));
            },
        ),
        ("a failed trial", 2 * WAIT, |survival| {
            survival.notice(Notice::Silent);
            assert!(matches!(poll(survival, true), Step::Moved(..)));
            survival.take_back(None, &Life::default());
            assert!(!survival.is_due());
        }),
        ("a trial that took long", 2 * WAIT, |survival| {
            survival.notice(Notice::Silent);
            assert!(matches!(poll(survival, true), Step::Moved(..)));
            survival.heard(true, Instant::now());
        }),
        ("a loss before it, and nothing new", 2 * WAIT, |survival| {
            lose(survival, RetryReason::Unavailable);
            assert!(matches!(poll(survival, true), Step::Moved(..)));
        }),
        ("another life", 2 * WAIT, |survival| {
            survival.notice(Notice::Leaving);
            assert!(matches!(poll(survival, false), Step::Stays));
            survival.restart();
        }),
    ];
    for (before, long, prepare) in table {
        let mut survival = begun();
        prepare(&mut survival);
        sleep(*long).await;
        lose(&mut survival, RetryReason::Unavailable);
        for (passed, waits) in [
            (Duration::ZERO, true),
            (WAIT - SECOND, true),
            (SECOND, false),
        ] {
            sleep(passed).await;
            let step = poll(&mut survival, false);
            let found = matches!(step, Step::Waits);
            assert_eq!(found, waits, "{before}: {step:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn servers_that_are_full_share_the_time_of_a_loss() {
    let mut survival = begun();
    lose(&mut survival, RetryReason::Unavailable);
    let since = Instant::now();
    loop {
        match poll(&mut survival, true) {
            Step::Moved(..) => lose(&mut survival, RetryReason::Full),
            Step::Failed(()) => break,
            Step::Waits => sleep(SECOND).await,
            Step::Stays => panic!("its server was lost"),
        }
        assert!(since.elapsed() <= WAIT);
    }
    assert_eq!(since.elapsed(), WAIT);
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_has_its_time_after_a_loss() {
    let mut survival = begun();
    lose(&mut survival, RetryReason::Unavailable);
    assert!(matches!(poll(&mut survival, true), Step::Moved(..)));
    survival.hand_over(());
    survival.heard(true, Instant::now());
    assert!(matches!(poll(&mut survival, false), Step::Waits));
    sleep(WAIT).await;
    assert!(matches!(poll(&mut survival, false), Step::Failed(())));
}

#[tokio::test(start_paused = true)]
async fn a_move_counts_with_the_first_new_output() {
    let mut survival = begun();
    lose(&mut survival, RetryReason::Unavailable);
    for _ in 0..5 {
        assert!(matches!(poll(&mut survival, true), Step::Moved(..)));
        sleep(SECOND).await;
        lose(&mut survival, RetryReason::Full);
        sleep(SECOND).await;
    }
    assert!(matches!(poll(&mut survival, true), Step::Moved(..)));
    survival.heard(false, Instant::now());
    assert!(survival.report().is_none());
    survival.heard(true, Instant::now());
    let report = survival.report().unwrap();
    let found = (report.times, report.tokens, report.pause);
    assert_eq!(found, (1, 10, 10 * SECOND));
    survival.heard(true, Instant::now());
    assert_eq!(survival.report().unwrap().times, 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_leaves_and_falls_silent_still_leaves() {
    let [leaves, silent] = [Notice::Leaving, Notice::Silent];
    for (notices, is_due) in [
        (&[leaves][..], true),
        (&[silent], false),
        (&[silent, leaves], true),
        (&[leaves, silent], true),
    ] {
        let mut survival = begun();
        for notice in notices {
            survival.notice(*notice);
        }
        assert!(survival.is_due());
        // It answers again.
        survival.heard(true, Instant::now());
        assert_eq!(survival.is_due(), is_due, "{notices:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_loss_has_its_own_time_until_its_server_is_missed() {
    let mut survival = begun_in(Way::Replay);
    lose(&mut survival, RetryReason::Unavailable);
    let moved = poll_at(&mut survival, true, true);
    assert!(matches!(moved, Step::Moved(..)));
    // It repeats what was said, and brings nothing new until it is lost as well.
    sleep(ENDING).await;
    lose(&mut survival, RetryReason::Unavailable);
    let soon = poll_at(&mut survival, true, false);
    assert!(matches!(soon, Step::Waits), "{soon:?}");
    sleep(ENDING).await;
    let later = poll_at(&mut survival, true, false);
    assert!(matches!(later, Step::Failed(())), "{later:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_ends_servers_on_trial_stays() {
    for (reason, tried) in [(RetryReason::Unavailable, 3), (RetryReason::Full, 12)] {
        let mut survival = begun();
        survival.notice(Notice::Leaving);
        for number in 1..=tried {
            sleep(SECOND).await;
            let step = poll(&mut survival, true);
            assert!(
                matches!(step, Step::Moved(..)),
                "{reason:?} {number}: {step:?}"
            );
            survival.take_back(Some(reason), &Life::default());
            // One that is full has not ended.
            let is_enough = reason == RetryReason::Unavailable && number == tried;
            assert_eq!(survival.is_due(), !is_enough, "{reason:?} {number}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_context_is_handed_over_until_something_new_comes() {
    for ends in [
        |survival: &mut Survival<()>| survival.heard(true, Instant::now()),
        |survival: &mut Survival<()>| lose(survival, RetryReason::Unavailable),
    ] {
        let mut survival = begun();
        survival.hand_over(());
        assert!(!survival.is_handed_over(), "no server has it");
        assert!(matches!(poll(&mut survival, true), Step::Moved(_, None)));
        assert!(survival.is_handed_over());
        ends(&mut survival);
        assert!(!survival.is_handed_over());
    }
}

#[tokio::test(start_paused = true)]
async fn a_notice_that_comes_again_changes_nothing() {
    let mut survival = begun();
    survival.notice(Notice::Silent);
    assert!(matches!(poll(&mut survival, false), Step::Stays));
    survival.notice(Notice::Silent);
    // It is offered again in its time.
    assert!(matches!(poll(&mut survival, true), Step::Stays));
    // Another one is offered at once.
    survival.notice(Notice::Leaving);
    assert!(matches!(poll(&mut survival, true), Step::Moved(..)));
}

#[test]
fn a_server_may_get_a_request_again_unless_something_is_wrong_with_it() {
    let wrong = [
        RetryReason::Unavailable,
        RetryReason::Silent,
        RetryReason::Leaving,
    ];
    assert!(may_return(None) && may_return(Some(RetryReason::Full)));
    assert!(wrong.into_iter().all(|reason| !may_return(Some(reason))));
}
