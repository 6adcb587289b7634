//! Which server has a request, and which work on it is stopped, in virtual time. Work that is dropped is stopped.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use super::super::delivery::ResumeLimits;
use super::super::dispatch::NotDispatched;
use super::super::ending::Ending;
use super::super::survival::{Movable, Way};
use super::*;
use crate::metrics::Resumes;
use crate::process::Life;

/// What is not stopped, in the order in which servers got it.
type Open = Rc<RefCell<Vec<&'static str>>>;

#[derive(Debug)]
struct At {
    server: &'static str,
    life: Life,
    open: Open,
}

impl At {
    fn new(server: &'static str, open: &Open) -> Self {
        open.borrow_mut().push(server);
        let (life, open) = (Life::default(), Rc::clone(open));
        Self { server, life, open }
    }
}

impl Drop for At {
    fn drop(&mut self) {
        self.open.borrow_mut().retain(|one| *one != self.server);
    }
}

impl Work for At {
    fn server(&self) -> &str {
        self.server
    }

    fn life(&self) -> &Life {
        &self.life
    }

    fn server_stays(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Request {
    /// The servers that take it, the next one last.
    servers: Vec<&'static str>,
    is_over: bool,
    open: Open,
    /// Where it moved to.
    moved: Vec<&'static str>,
}

impl Mover for Request {
    type Error = &'static str;
    type Work = At;

    fn send(&mut self, _: &mut At, _: Option<RetryReason>) -> Result<At, NotDispatched> {
        let server = self.servers.pop().ok_or(NotDispatched::NoWorker)?;
        Ok(At::new(server, &self.open))
    }

    fn has_moved(&mut self, now: &mut At) {
        self.moved.push(now.server);
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn generated_tokens(&self) -> usize {
        3
    }
}

struct Fixture {
    holding: Holding<Request>,
    metrics: Resumes,
    open: Open,
}

impl Fixture {
    /// At `a`; the others take it, the next one last.
    fn new(others: &[&'static str]) -> Self {
        let open = Open::default();
        let metrics = Resumes::default();
        let request = Movable {
            way: Way::Resume,
            prompt_tokens: 7,
        };
        let limits = ResumeLimits {
            most: 16,
            wait: Duration::from_secs(30),
            tokens: usize::MAX,
        };
        let survival = Survival::new(request, limits, metrics.clone());
        let request = Request {
            servers: others.to_vec(),
            is_over: false,
            open: Rc::clone(&open),
            moved: Vec::new(),
        };
        let work = At::new("a", &open);
        Self {
            holding: Holding::new(&"id".into(), work, Some((request, survival))),
            metrics,
            open,
        }
    }

    fn ending_with_its_server() -> Self {
        let mut fixture = Self::new(&[]);
        fixture.holding.settle();
        fixture
    }

    fn poll(&mut self) -> Step<(), &'static str> {
        self.holding.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// The server that has it, and the work that is not stopped.
    fn state(&self) -> (&str, Vec<&'static str>) {
        (self.holding.work().server, self.open.borrow().clone())
    }

    fn lose(&mut self) -> Step<(), &'static str> {
        self.holding.fail("lost", Some(RetryReason::Unavailable))
    }

    fn moved(&self) -> &[&'static str] {
        &self.holding.request().unwrap().moved
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_move_ends_with_its_server() {
    let mut fixture = Fixture::ending_with_its_server();
    assert!(fixture.holding.request().is_none() && fixture.holding.request_mut().is_none());
    assert!(fixture.holding.survival().is_none());
    fixture.holding.notice(Notice::Leaving);
    fixture.holding.heard(true, Instant::now());
    assert!(matches!(fixture.poll(), Step::Stays));
    assert_eq!(fixture.holding.hand_over("late"), Err("late"));
    assert_eq!(fixture.holding.outlive("gone", 1), Err("gone"));
    assert!(matches!(fixture.lose(), Step::Failed("lost")));
    assert_eq!(fixture.state(), ("a", vec!["a"]));
}

#[tokio::test(start_paused = true)]
async fn a_lost_server_s_work_is_stopped_once_another_has_it() {
    let mut fixture = Fixture::new(&["b"]);
    assert!(matches!(fixture.poll(), Step::Stays), "nothing is due");
    assert!(matches!(fixture.lose(), Step::Waits));
    let step = fixture.poll();
    assert!(matches!(
        step,
        Step::Moved((), Some(RetryReason::Unavailable))
    ));
    assert_eq!(fixture.state(), ("b", vec!["b"]));
    assert_eq!(fixture.moved(), ["b"]);
    // The next one is lost as well, and nobody takes it.
    assert!(matches!(fixture.lose(), Step::Waits));
    assert!(matches!(fixture.poll(), Step::Waits));
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert!(matches!(fixture.poll(), Step::Failed("lost")));
}

#[tokio::test(start_paused = true)]
async fn what_no_other_server_may_do_better_fails() {
    let mut fixture = Fixture::new(&["b"]);
    let step = fixture.holding.fail("wrong", None);
    assert!(matches!(step, Step::Failed("wrong")));
    fixture.holding.request_mut().unwrap().is_over = true;
    assert!(matches!(fixture.lose(), Step::Failed("lost")), "it is over");
    assert_eq!(fixture.holding.outlive("gone", 1), Err("gone"));
}

/// One that leaves keeps the request while another one has it on trial.
fn on_trial(others: &[&'static str]) -> Fixture {
    let mut fixture = Fixture::new(others);
    fixture.holding.notice(Notice::Leaving);
    let step = fixture.poll();
    assert!(matches!(step, Step::Moved((), Some(RetryReason::Leaving))));
    assert_eq!(fixture.state(), ("b", vec!["a", "b"]));
    fixture
}

#[tokio::test(start_paused = true)]
async fn a_trial_ends_with_new_output() {
    let mut fixture = on_trial(&["b"]);
    fixture.holding.heard(false, Instant::now());
    assert_eq!(fixture.state(), ("b", vec!["a", "b"]), "it repeats");
    fixture.holding.heard(true, Instant::now());
    assert_eq!(fixture.state(), ("b", vec!["b"]));
    let report = fixture.holding.survival().unwrap().report().unwrap();
    assert_eq!((report.times, report.tokens), (1, 10));
}

#[tokio::test(start_paused = true)]
async fn a_trial_ends_with_its_time() {
    let mut fixture = on_trial(&["b"]);
    assert!(matches!(fixture.poll(), Step::Stays));
    assert_eq!(fixture.state(), ("b", vec!["a", "b"]));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(fixture.poll(), Step::Stays));
    assert_eq!(fixture.state(), ("b", vec!["b"]));
}

#[tokio::test(start_paused = true)]
async fn the_first_server_has_it_again_when_the_one_on_trial_fails() {
    for (reason, then) in [
        (None, RetryReason::Unavailable),
        (Some(RetryReason::Full), RetryReason::Full),
        (Some(RetryReason::Unavailable), RetryReason::Unavailable),
    ] {
        let mut fixture = on_trial(&["c", "b"]);
        let step = fixture.holding.fail("lost", reason);
        assert!(
            matches!(step, Step::Moved((), Some(found)) if found == then),
            "{step:?}"
        );
        assert_eq!(fixture.state(), ("a", vec!["a"]));
        assert_eq!(fixture.moved(), ["b", "a"]);
        // It is still to leave, unless no other may do better.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let moves = matches!(fixture.poll(), Step::Moved(..));
        assert_eq!(moves, reason.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_beginning_and_the_end_stop_both() {
    let mut fixture = on_trial(&["b"]);
    let work = At::new("c", &fixture.open);
    fixture.holding.restart(work);
    assert_eq!(fixture.state(), ("c", vec!["c"]));
    assert!(!fixture.holding.survival().unwrap().is_on_trial());
    let mut fixture = on_trial(&["b"]);
    fixture.holding.end();
    assert_eq!(fixture.state(), ("b", vec!["b"]));
    assert!(fixture.holding.request().is_none());
}

#[tokio::test(start_paused = true)]
async fn it_is_given_up_when_its_time_is_over() {
    let mut fixture = on_trial(&["b"]);
    let mut context = Context::from_waker(Waker::noop());
    assert!(fixture.holding.poll_expired(&mut context).is_pending());
    let deadline = Some(Instant::now() + Duration::from_secs(5));
    let ending = Ending::default();
    fixture.holding.expires(Expiry::new(&ending, deadline));
    assert!(fixture.holding.poll_expired(&mut context).is_pending());
    tokio::time::sleep(Duration::from_secs(6)).await;
    let why = fixture.holding.poll_expired(&mut context);
    assert_eq!(why, Poll::Ready(GivenUp::TimedOut));
    assert_eq!(
        fixture.state(),
        ("b", vec!["b"]),
        "nobody waits for the first one"
    );
    // One that waits for a server counts as not continued.
    let mut fixture = Fixture::new(&[]);
    assert!(matches!(fixture.lose(), Step::Waits));
    assert_eq!(fixture.metrics.failed.get(), 0);
    fixture.holding.given_up();
    assert_eq!(fixture.metrics.failed.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_text_counts_as_not_continued() {
    let fixture = Fixture::new(&[]);
    fixture.holding.differs();
    assert_eq!(fixture.metrics.failed.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_server_continues_behind_a_context() {
    let mut fixture = Fixture::new(&["b"]);
    assert_eq!(fixture.holding.hand_over("late"), Ok(()));
    assert!(matches!(fixture.poll(), Step::Moved((), None)));
    assert_eq!(fixture.state(), ("b", vec!["b"]));
    let mut fixture = Fixture::new(&[]);
    assert!(!fixture.holding.survival().unwrap().has_outlived());
    assert_eq!(fixture.holding.outlive("gone", 2), Ok(()));
    assert!(fixture.holding.survival().unwrap().has_outlived());
    assert!(matches!(fixture.poll(), Step::Waits));
}
