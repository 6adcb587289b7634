//! What becomes of a request, in virtual time: no sockets, and no words of any API.

use std::collections::VecDeque;

use super::*;
use crate::ending::Ending;

/// What a server does with a request.
#[derive(Clone, Copy, Debug)]
enum Server {
    /// Begins after so many milliseconds, and completes after as many more.
    Answers(u64, u64),
    /// Fails after so many milliseconds.
    Fails(u64, Code),
    /// Begins, and fails so much later.
    Breaks(u64, u64),
    Hangs,
}

/// A request to one server after another.
#[derive(Debug)]
struct Scripted {
    servers: VecDeque<(Server, Arc<Pulse>)>,
    current: Option<(Server, tokio::time::Instant)>,
    sent: usize,
    /// What the server does that comes once all are lost; `None`: the request does not wait for one.
    later: Option<Server>,
    survives: bool,
    /// How many servers were lost before it waited.
    outlived: Option<usize>,
}

impl Scripted {
    fn new(servers: &[Server]) -> Self {
        let servers = servers.iter().map(|server| (*server, Arc::default()));
        Self {
            servers: servers.collect(),
            current: None,
            sent: 0,
            later: None,
            survives: false,
            outlived: None,
        }
    }

    async fn until(&self, milliseconds: u64) {
        if let Some((_, since)) = self.current {
            tokio::time::sleep_until(since + Duration::from_millis(milliseconds)).await;
        }
    }
}

impl Deliverable for Scripted {
    type Error = Code;

    fn send(&mut self, tried: &mut Tried, _: Option<RetryReason>) -> Result<Sent, Code> {
        let (server, pulse) = self.servers.pop_front().ok_or(Code::NotFound)?;
        self.sent += 1;
        self.current = Some((server, tokio::time::Instant::now()));
        let address: Arc<str> = format!("server-{}:1", self.sent).into();
        tried.add(&address);
        Ok(Sent { address, pulse })
    }

    async fn begin(&mut self) -> Result<(), Code> {
        match self.current.map(|(server, _)| server) {
            Some(Server::Answers(after, _) | Server::Breaks(after, _)) => {
                self.until(after).await;
                Ok(())
            }
            Some(Server::Fails(after, code)) => {
                self.until(after).await;
                Err(code)
            }
            _ => std::future::pending().await,
        }
    }

    async fn complete(&mut self) -> Result<(), Code> {
        match self.current.map(|(server, _)| server) {
            Some(Server::Answers(first, more)) => {
                self.until(first + more).await;
                Ok(())
            }
            Some(Server::Breaks(first, more)) => {
                self.until(first + more).await;
                Err(Code::Unavailable)
            }
            _ => Ok(()),
        }
    }

    fn survives(&self) -> bool {
        self.survives
    }

    fn outlive(&mut self, error: Code, sent: usize) -> Result<(), Code> {
        let later = self.later.take().ok_or(error)?;
        self.current = Some((later, tokio::time::Instant::now()));
        self.survives = true;
        self.outlived = Some(sent);
        Ok(())
    }

    fn retry_reason(&self, error: &Code) -> Option<RetryReason> {
        reason_of_code(*error).filter(|_| !self.survives)
    }

    fn give_up(&mut self, why: GivenUp) -> Code {
        match why {
            GivenUp::NoOutput(_) => Code::DeadlineExceeded,
            GivenUp::TimedOut => Code::OutOfRange,
            GivenUp::ShuttingDown => Code::Aborted,
        }
    }
}

async fn run(
    request: &mut Scripted,
    first_ms: Option<u64>,
    ends_ms: Option<u64>,
) -> Result<(), Code> {
    let now = Instant::now();
    let limit = first_ms.map(Duration::from_millis);
    let first = limit.map(|limit| (now + limit, limit));
    let deadline = ends_ms.map(|ends| now + Duration::from_millis(ends));
    let mut expiry = Expiry::new(&Ending::default(), deadline);
    let retries = Family::default();
    let context = CallContext {
        first_output: first,
        ..CallContext::default()
    };
    let done = deliver(request, &context, &mut expiry, &retries).await;
    let counted = |reason| retries.get_or_create(&RetryLabels::from(reason)).get();
    let reasons = [
        RetryReason::Unavailable,
        RetryReason::Full,
        RetryReason::Silent,
    ];
    let counted: u64 = reasons.map(counted).iter().sum();
    assert_eq!(counted, request.sent.saturating_sub(1) as u64);
    done
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_goes_on_until_a_server_answers_or_three_have_failed() {
    use Server::{Answers, Breaks, Fails};
    let lost = Fails(5, Code::Unavailable);
    let full = Fails(5, Code::ResourceExhausted);
    let wrong = Fails(5, Code::InvalidArgument);
    let answers = Answers(1, 1);
    let table: &[(&[Server], Result<(), Code>, usize)] = &[
        (&[answers], Ok(()), 1),
        (&[lost, answers], Ok(()), 2),
        (&[full, lost, answers], Ok(()), 3),
        (
            &[lost, lost, full, answers],
            Err(Code::ResourceExhausted),
            3,
        ),
        // What would fail again is not sent again.
        (&[wrong, answers], Err(Code::InvalidArgument), 1),
        // Without another server, the failure is the first one's.
        (&[lost], Err(Code::Unavailable), 1),
        // An answer in one piece begins anew until it is complete.
        (&[Breaks(1, 5), answers], Ok(()), 2),
        (&[], Err(Code::NotFound), 0),
    ];
    for (servers, expected, sent) in table {
        let mut request = Scripted::new(servers);
        let done = run(&mut request, None, None).await;
        assert_eq!((done, request.sent), (*expected, *sent), "{servers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_a_server_where_all_are_lost_and_only_once() {
    use Server::{Answers, Breaks, Fails, Hangs};
    let lost = Fails(5, Code::Unavailable);
    let full = Fails(5, Code::ResourceExhausted);
    let answers = Answers(1, 1);
    type Row<'a> = (&'a [Server], Server, Result<(), Code>, Option<usize>);
    let table: &[Row<'_>] = &[
        (&[lost], answers, Ok(()), Some(1)),
        (&[lost, lost], answers, Ok(()), Some(2)),
        (&[lost], lost, Err(Code::Unavailable), Some(1)),
        (&[lost], Breaks(1, 5), Err(Code::Unavailable), Some(1)),
        // The time for a first output is still counted.
        (&[lost], Hangs, Err(Code::DeadlineExceeded), Some(1)),
        // One that is full is not lost.
        (&[full], answers, Err(Code::ResourceExhausted), None),
    ];
    for (servers, later, expected, outlived) in table {
        let mut request = Scripted::new(servers);
        request.later = Some(*later);
        let done = run(&mut request, Some(1000), None).await;
        let found = (done, request.outlived);
        assert_eq!(found, (*expected, *outlived), "{servers:?} {later:?}");
    }
    // What survives has moved by itself, and was given up.
    let mut request = Scripted::new(&[Breaks(1, 5), answers]);
    request.survives = true;
    request.later = Some(answers);
    let done = run(&mut request, None, None).await;
    assert_eq!((done, request.outlived), (Err(Code::Unavailable), None));
}

#[tokio::test(start_paused = true)]
async fn a_request_is_given_up_when_its_time_has_come() {
    use Server::{Answers, Breaks, Fails, Hangs};
    let table = [
        (Hangs, Some(20), None, Err(Code::DeadlineExceeded)),
        (Hangs, None, Some(20), Err(Code::OutOfRange)),
        (Hangs, Some(30), Some(20), Err(Code::OutOfRange)),
        (Answers(10, 0), Some(20), Some(20), Ok(())),
        // The limit is on the first output alone, the deadline on all that is waited for.
        (Answers(10, 50), Some(20), None, Ok(())),
        (Answers(10, 50), Some(20), Some(30), Err(Code::OutOfRange)),
    ];
    for (server, first, ends, expected) in table {
        let mut request = Scripted::new(&[server]);
        let done = run(&mut request, first, ends).await;
        assert_eq!(done, expected, "{server:?} {first:?} {ends:?}");
    }
    // An answer that begins anew has had its first output.
    for (first, expected) in [
        (Breaks(10, 50), Ok(())),
        (Fails(10, Code::Unavailable), Err(Code::DeadlineExceeded)),
    ] {
        let mut request = Scripted::new(&[first, Answers(15, 10)]);
        let done = run(&mut request, Some(20), None).await;
        assert_eq!((done, request.sent), (expected, 2), "{first:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_left_if_another_takes_the_request_and_waited_for_otherwise() {
    for (servers, sent) in [
        (&[Server::Hangs, Server::Answers(1, 1)][..], 2),
        (&[Server::Answers(500, 1)][..], 1),
    ] {
        let mut request = Scripted::new(servers);
        let pulse = Arc::clone(&request.servers[0].1);
        let silent = async {
            // Silent from its first missed check on, and lost much later than the test ends.
            let limit = Duration::from_millis(60);
            pulse.watch(limit, async || false, |_| ()).await;
            std::future::pending::<()>().await;
        };
        let done = tokio::select! {
            done = run(&mut request, None, None) => done,
            () = silent => unreachable!("it waits for ever"),
        };
        assert_eq!((done, request.sent), (Ok(()), sent));
    }
}

/// Keeps what it hears.
#[derive(Debug, Default)]
struct Heard(parking_lot::Mutex<Vec<String>>);

impl Heard {
    fn note(&self, line: String) {
        self.0.lock().push(line);
    }
}

impl Witness for Heard {
    fn sent(&self, server: &Arc<str>, because: Option<&'static str>) {
        self.note(format!("sent to {server}, {because:?}"));
    }

    fn first_output(&self) {
        self.note("first output".to_owned());
    }

    fn generated(&self, tokens: usize) {
        self.note(format!("{tokens} tokens"));
    }

    fn ended(&self, code: Code) {
        self.note(format!("ended {code:?}"));
    }
}

#[test]
fn a_witness_hears_how_a_request_goes() {
    let heard = Arc::new(Heard::default());
    let witness: Arc<dyn Witness> = Arc::clone(&heard) as _;
    let context = CallContext {
        witness: Some(witness),
        ..CallContext::default()
    };
    let server: Arc<str> = "a:1".into();
    context.sent(&server, None);
    context.sent(&server, Some(RetryReason::Unavailable));
    context.first_output_came();
    // How many is not known yet.
    context.generated(|| 0);
    context.generated(|| 7);
    context.ended(Code::Ok);
    let lost = RetryReason::Unavailable.label();
    assert_eq!(
        *heard.0.lock(),
        [
            "sent to a:1, None".to_owned(),
            format!("sent to a:1, Some({lost:?})"),
            "first output".to_owned(),
            "7 tokens".to_owned(),
            "ended Ok".to_owned(),
        ]
    );
    // Nobody is asked for a number that nobody hears.
    CallContext::default().generated(|| unreachable!());
}

#[test]
fn a_request_is_tried_at_a_few_servers() {
    let mut tried = Tried::default();
    assert!(tried.is_empty() && tried.has_room());
    for number in 1..=MOST_SERVERS {
        tried.add(&format!("a:{number}").into());
        assert!(!tried.is_empty());
        assert_eq!(tried.has_room(), number < MOST_SERVERS);
    }
}

/// One that says nothing but what it must.
struct Plain;

impl Deliverable for Plain {
    type Error = Code;

    fn send(&mut self, _: &mut Tried, _: Option<RetryReason>) -> Result<Sent, Code> {
        Err(Code::NotFound)
    }

    async fn begin(&mut self) -> Result<(), Code> {
        Ok(())
    }

    fn retry_reason(&self, _: &Code) -> Option<RetryReason> {
        None
    }

    fn give_up(&mut self, _: GivenUp) -> Code {
        Code::Aborted
    }
}

#[tokio::test]
async fn a_request_waits_for_no_other_server_unless_it_says_so() {
    let mut plain = Plain;
    assert!(!plain.survives());
    assert_eq!(plain.outlive(Code::Unavailable, 1), Err(Code::Unavailable));
    assert_eq!(plain.complete().await, Ok(()));
}
