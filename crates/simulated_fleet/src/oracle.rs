//! The invariants: what must be true of every answer and of the fleet at the end, each with a name. Pure; what was
//! read and what is open is handed in.

use std::fmt;
use std::time::Duration;

use crate::question::{Question, Surface};

/// A request must have ended so long after it was sent, whatever happens: the gateway waits 30 s for a worker, and
/// each fault lasts some seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);

/// Messages take their time, and an executor ends a request with an iteration.
pub(crate) const STOPPED: Duration = Duration::from_secs(1);

/// A silent worker is given up for new answers after 1.5 s; messages, queues and the prompt take the rest, twice.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// A request that cannot leave a silent worker leaves it after 9 s, when the connection is given up.
const GIVEN_UP: Duration = Duration::from_secs(9);

/// HTTP/2's own probes give a connection up so late: they come every 10 s, and have 10 s.
const PROBED: Duration = Duration::from_secs(20);

/// A deadline is kept within this: the gateway waits 250 ms for its worker to say so, and messages take their time.
const GRACE: Duration = Duration::from_millis(1_500);

/// What is promised, in the order of `docs/RELIABILITY.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    /// An answer that looks whole is the whole answer, to the letter.
    WholeIsWhole,
    /// What was read of an answer that failed is its beginning: nothing is missing, twice or invented.
    PartIsBeginning,
    /// An answer that is not whole ends with an error, or its connection is cut; never cleanly.
    EndIsShown,
    /// Usage is that of the prompt and of the tokens sent, and of what a worker found in its cache when it began.
    UsageIsTrue,
    /// A failure is one that the client may retry: 429 or 5xx with a reason, never a blame of a valid request, and
    /// never an internal error. What is late had a deadline.
    ErrorIsFit,
    /// Every request ends in bounded time.
    AnsweredInTime,
    /// Where nothing goes wrong, every answer is whole.
    CalmIsWhole,
    /// Whatever happens to up to two other workers, an answer is whole if one worker was well all the time.
    LossesAreSurvived,
    /// If one worker was well all the time, a stream pauses for [`LONGEST_PAUSE`] at most.
    PausesAreShort,
    /// If one worker was well all the time and nobody has to wait for a turn, a stream begins within [`LONGEST_PAUSE`].
    BeginsInTime,
    /// A request asks each worker that gets it for the same.
    AsksTheSame,
    /// A worker is not asked to continue a choice that has ended.
    EndedStaysEnded,
    /// A request that is over, because its client has left or has its answer, is stopped at its worker within
    /// [`STOPPED`].
    OverIsStopped,
    /// A worker that is well is not asked to stop what it has just been given, unless its client wants that.
    WorkIsKept,
    /// A request that has a deadline ends by then.
    DeadlinesAreKept,
    /// A stream that continued at another worker says so in its trailers.
    ResumedIsSaid,
    /// A worker that is well for some time is ready again.
    WorkersReturn,
    /// A worker that is away for some time is not ready.
    LostIsNotReady,
    /// Nothing cuts the connection of a client while its gateway runs.
    NoCutByGateway,
    /// At the end no executor holds a request, and one small request is answered.
    WorkersAreFree,
    /// What a worker had for connections that were reset is stopped within [`STOPPED`].
    LostIsStopped,
    /// At the end the gateway holds no handle at a worker and answers no request.
    HandlesAreClosed,
    /// At the end a worker has places for more connections.
    ConnectionsAreFree,
    /// At the end all places for requests are free.
    PlacesAreFree,
    /// Of workers that differ in nothing else, the one that has the fewest requests gets the next one.
    LeastBusyIsChosen,
    /// A worker that comes is known, however many have come and gone.
    WorkersHaveSeats,
    /// Nothing panics.
    NoPanic,
}

impl Invariant {
    /// As the documentation calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WholeIsWhole => "whole-is-whole",
            Self::PartIsBeginning => "part-is-beginning",
            Self::EndIsShown => "end-is-shown",
            Self::UsageIsTrue => "usage-is-true",
            Self::ErrorIsFit => "error-is-fit",
            Self::AnsweredInTime => "answered-in-time",
            Self::CalmIsWhole => "calm-is-whole",
            Self::LossesAreSurvived => "losses-are-survived",
            Self::PausesAreShort => "pauses-are-short",
            Self::BeginsInTime => "begins-in-time",
            Self::AsksTheSame => "asks-the-same",
            Self::EndedStaysEnded => "ended-stays-ended",
            Self::OverIsStopped => "over-is-stopped",
            Self::WorkIsKept => "work-is-kept",
            Self::DeadlinesAreKept => "deadlines-are-kept",
            Self::ResumedIsSaid => "resumed-is-said",
            Self::WorkersReturn => "workers-return",
            Self::LostIsNotReady => "lost-is-not-ready",
            Self::NoCutByGateway => "no-cut-by-gateway",
            Self::WorkersAreFree => "workers-are-free",
            Self::LostIsStopped => "lost-is-stopped",
            Self::HandlesAreClosed => "handles-are-closed",
            Self::ConnectionsAreFree => "connections-are-free",
            Self::PlacesAreFree => "places-are-free",
            Self::LeastBusyIsChosen => "least-busy-is-chosen",
            Self::WorkersHaveSeats => "workers-have-seats",
            Self::NoPanic => "no-panic",
        }
    }
}

/// An invariant that did not hold.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) invariant: Invariant,
    pub(crate) how: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant.name(), self.how)
    }
}

/// How an answer ended, as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Cleanly, with all that shows a whole answer.
    Whole,
    /// With an error, before or after its beginning; an HTTP status where it came before.
    Error { status: Option<u16>, text: String },
    /// The connection ended in the middle.
    Cut(String),
    /// Cleanly, and it is not whole.
    Unfinished(String),
    /// The client left.
    Left,
    /// The client gave up.
    TooLate,
}

/// What a client read.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The text of each choice.
    pub(crate) texts: Vec<String>,
    pub(crate) end: End,
    pub(crate) usage: Option<Usage>,
    /// Whether its trailers say that it continued at another worker.
    pub(crate) was_resumed: bool,
    /// When it was asked for, when something was read, and when it ended.
    pub(crate) times: Vec<Duration>,
}

impl Answer {
    fn took(&self) -> Duration {
        match (self.times.first(), self.times.last()) {
            (Some(first), Some(last)) => *last - *first,
            _ => Duration::ZERO,
        }
    }

    /// The longest time without a byte; of a stream, after its first: before that, it may wait for its turn. When workers
    /// had no room for it does not count: then something else than a loss keeps it waiting.
    fn pause(&self, waited: &[(Duration, Duration)]) -> Duration {
        let is_begun = self.times.len() > 2;
        let pauses = self.times.windows(2).map(|pair| match *pair {
            [from, until] => (until - from).saturating_sub(overlap(waited, from, until)),
            _ => Duration::ZERO,
        });
        let pauses = pauses.skip(usize::from(is_begun));
        pauses.max().unwrap_or_default()
    }

    /// Whether its server says that there was no time left.
    fn is_late(&self) -> bool {
        match &self.end {
            End::Error { status, text } => {
                *status == Some(504)
                    || text.contains("time has run out")
                    || text.contains("timed out")
            }
            _ => false,
        }
    }
}

/// How much of the time between two moments is in any of these spans.
fn overlap(spans: &[(Duration, Duration)], from: Duration, until: Duration) -> Duration {
    let mut spans = spans.to_vec();
    spans.sort_unstable();
    let (mut sum, mut reached) = (Duration::ZERO, from);
    for (begins, ends) in spans {
        let (begins, ends) = (begins.max(reached), ends.min(until));
        sum += ends.saturating_sub(begins);
        reached = reached.max(ends);
    }
    sum
}

/// Tokens, as an answer counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: u64,
    pub(crate) completion: u64,
    /// Of the prompt, found in a cache.
    pub(crate) cached: u64,
}

/// What was the matter while a request was open.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Circumstances {
    /// Nothing goes wrong in this run.
    pub(crate) is_calm: bool,
    /// A worker was well all the time, and for some time before, and few others were not.
    pub(crate) had_worker: bool,
    /// Workers only leave in this run, and none does near it.
    pub(crate) is_served: bool,
    /// A silent worker's connections are given up in this run, and what was generated there is soon generated again.
    pub(crate) gives_up: bool,
    /// How long a worker may refuse a part of it.
    pub(crate) refused: Duration,
    /// A worker's connections lost messages, and it did not seem silent.
    pub(crate) loses_unnoticed: bool,
    /// No request of this run has to wait for its turn.
    pub(crate) is_roomy: bool,
    /// Nothing held the client's own connection.
    pub(crate) was_reached: bool,
    /// Its workers only ended and started again, and it had time to continue in between.
    pub(crate) survives_restarts: bool,
    /// How long it may take.
    pub(crate) deadline: Option<Duration>,
    /// The client pauses between its reads.
    pub(crate) reads_slowly: bool,
}

/// What workers' executors had to do with a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct AtWorkers {
    /// For each prompt, how much of it was found in a cache, each time a worker began with it.
    pub(crate) found: Vec<Vec<u32>>,
    /// From when until when one had no room for it.
    pub(crate) waited: Vec<(Duration, Duration)>,
}

/// What is wrong with an answer.
pub(crate) fn judge(
    question: &Question,
    answer: &Answer,
    circumstances: Circumstances,
    at_workers: &AtWorkers,
) -> Vec<Broken> {
    let AtWorkers { found, waited } = at_workers;
    let mut broken = Vec::new();
    let mut breaks = |invariant, how: String| broken.push(Broken { invariant, how });
    let is_whole = answer.end == End::Whole;
    for (choice, text) in (0..).zip(&answer.texts) {
        let expected = question.answer(choice);
        if is_whole && *text != expected {
            let how = format!("choice {choice} is {text:?}, and it should be {expected:?}");
            breaks(Invariant::WholeIsWhole, how);
        } else if !expected.starts_with(text.as_str()) {
            let how = format!("choice {choice} is {text:?}, which does not begin {expected:?}");
            breaks(Invariant::PartIsBeginning, how);
        }
    }
    let choices = question.all_choices();
    if is_whole && answer.texts.len() != choices as usize {
        let how = format!("{} of {choices} choices", answer.texts.len());
        breaks(Invariant::WholeIsWhole, how);
    }
    let tokens = (question.prompt_tokens(), question.completion_tokens());
    let counts = !matches!(question.surface, Surface::Generate | Surface::Grpc);
    let is_true =
        |usage: Usage| (usage.prompt, usage.completion) == tokens && is_found(usage.cached, found);
    if is_whole && counts && !answer.usage.is_some_and(is_true) {
        let how = format!(
            "{:?}, and it should be {tokens:?} with what was found of {found:?}",
            answer.usage
        );
        breaks(Invariant::UsageIsTrue, how);
    }
    match &answer.end {
        End::Whole | End::Left => {}
        End::Error { status, text } => {
            let fits = status.is_none_or(|status| matches!(status, 429 | 502 | 503 | 504 | 529));
            let is_early = answer.is_late() && circumstances.deadline.is_none();
            if !fits || text.is_empty() || is_early {
                breaks(Invariant::ErrorIsFit, format!("{status:?} {text:?}"));
            }
        }
        End::Cut(how) => breaks(Invariant::NoCutByGateway, how.clone()),
        End::Unfinished(how) => breaks(Invariant::EndIsShown, how.clone()),
        End::TooLate => breaks(
            Invariant::AnsweredInTime,
            format!("not within {PATIENCE:?}"),
        ),
    }
    let limit = circumstances.deadline.filter(|_| {
        circumstances.was_reached && !circumstances.reads_slowly && answer.end != End::Left
    });
    if let Some(limit) = limit.filter(|limit| answer.took() > *limit + GRACE) {
        let how = format!("{:?} after {:?} of {limit:?}", answer.end, answer.took());
        breaks(Invariant::DeadlinesAreKept, how);
    }
    // It is generated again from the beginning, which is worse than to wait for a silent server.
    let is_kserve = matches!(question.surface, Surface::Generate | Surface::Grpc);
    let is_repeated = is_kserve && question.choices > 1;
    let may_pause =
        !question.is_streamed || !circumstances.had_worker || !circumstances.was_reached;
    let longest = match is_repeated {
        false => Some(LONGEST_PAUSE),
        true if circumstances.gives_up && !circumstances.reads_slowly => {
            Some(GIVEN_UP + LONGEST_PAUSE)
        }
        true => None,
    };
    let probed = match is_kserve && circumstances.loses_unnoticed {
        true => PROBED,
        false => Duration::ZERO,
    };
    let longest = longest.map(|longest| longest + probed + circumstances.refused);
    let pause = answer.pause(waited);
    if is_whole && !may_pause && longest.is_some_and(|longest| pause > longest) {
        breaks(
            Invariant::PausesAreShort,
            format!("nothing came for {pause:?}, apart from waits for its turn"),
        );
    }
    let begun = match answer.times.as_slice() {
        [asked, first, _, ..] => Some(*first - *asked),
        _ => None,
    };
    if let Some(begun) = begun.filter(|begun| {
        circumstances.is_roomy
            && !may_pause
            && !is_repeated
            && *begun > LONGEST_PAUSE + probed
            && answer.end != End::Left
    }) {
        breaks(Invariant::BeginsInTime, format!("after {begun:?}"));
    }
    let has_failed = match &answer.end {
        End::Whole | End::Left => false,
        // A worker may have too much to do, however well it is.
        End::Error { text, .. } => !text.contains("full") && !answer.is_late(),
        _ => true,
    };
    let has_begun = answer.texts.iter().any(|text| !text.is_empty());
    // Repeated from the beginning each time, it may come no further than before until the next loss.
    let is_overtaken = is_repeated && circumstances.reads_slowly;
    if has_failed && circumstances.is_calm {
        breaks(Invariant::CalmIsWhole, format!("{:?}", answer.end));
    } else if has_failed
        && (circumstances.had_worker
            || circumstances.is_served
            || circumstances.survives_restarts && has_begun && !is_overtaken)
    {
        breaks(Invariant::LossesAreSurvived, format!("{:?}", answer.end));
    }
    broken
}

/// Whether so many cached tokens are those of each prompt once, as a worker found them that began with it.
fn is_found(cached: u64, found: &[Vec<u32>]) -> bool {
    let Some((own, rest)) = found.split_first() else {
        return cached == 0;
    };
    // None that began with it may say.
    let own = own.iter().copied().chain(own.is_empty().then_some(0));
    own.into_iter()
        .filter_map(|tokens| cached.checked_sub(tokens.into()))
        .any(|left| is_found(left, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question {
            is_streamed: true,
            max_tokens: 4,
            ..Question::small()
        }
    }

    fn names(text: &str, end: End, usage: (u64, u64)) -> Vec<&'static str> {
        let answer = Answer {
            texts: vec![text.to_owned()],
            end,
            usage: Some(Usage {
                prompt: usage.0,
                completion: usage.1,
                cached: 0,
            }),
            was_resumed: false,
            times: Vec::new(),
        };
        judged(&answer, Circumstances::default(), Vec::new())
    }

    fn judged(
        answer: &Answer,
        circumstances: Circumstances,
        waited: Vec<(Duration, Duration)>,
    ) -> Vec<&'static str> {
        let found = vec![Vec::new()];
        let at_workers = AtWorkers { found, waited };
        let broken = judge(&question(), answer, circumstances, &at_workers);
        broken.iter().map(|one| one.invariant.name()).collect()
    }

    #[test]
    fn each_lie_has_its_name() {
        let whole = question().answer(0);
        let error = |status| End::Error {
            status,
            text: "why".to_owned(),
        };
        assert!(names(&whole, End::Whole, (1, 4)).is_empty());
        assert!(names(&whole[..2], error(None), (1, 4)).is_empty());
        assert_eq!(names(&whole[..3], End::Whole, (1, 4)), ["whole-is-whole"]);
        assert_eq!(names(&whole, End::Whole, (1, 3)), ["usage-is-true"]);
        assert_eq!(
            names(&whole[1..], error(None), (1, 4)),
            ["part-is-beginning"]
        );
        assert_eq!(names("", error(Some(400)), (1, 4)), ["error-is-fit"]);
        // Nobody has set a deadline.
        assert_eq!(names("", error(Some(504)), (1, 4)), ["error-is-fit"]);
        let unfinished = End::Unfinished("no end".to_owned());
        assert_eq!(names(&whole, unfinished, (1, 4)), ["end-is-shown"]);
    }

    #[test]
    fn a_pause_counts_apart_from_waits_for_a_turn() {
        let at = Duration::from_secs;
        let answer = Answer {
            texts: vec![question().answer(0)],
            end: End::Whole,
            usage: Some(Usage {
                prompt: 1,
                completion: 4,
                cached: 0,
            }),
            was_resumed: false,
            // The first output may come late.
            times: vec![at(0), at(20), at(21), at(31), at(32)],
        };
        let circumstances = Circumstances {
            had_worker: true,
            was_reached: true,
            ..Circumstances::default()
        };
        for (waited, is_short) in [
            (vec![], false),
            (vec![(at(0), at(21))], false),
            (vec![(at(22), at(23)), (at(22), at(23))], false),
            (vec![(at(28), at(40)), (at(27), at(29))], true),
        ] {
            let broken = judged(&answer, circumstances, waited.clone());
            let expected = [Invariant::PausesAreShort.name()];
            assert_eq!(broken, expected[usize::from(is_short)..], "{waited:?}");
        }
    }
}
