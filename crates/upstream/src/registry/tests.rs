use std::task::{Context, Poll, Waker};
use std::time::Duration;

use inflight_kserve::step::{self, PromptLogProbs};
use tonic::Code;

use super::*;
use crate::inbox::ChoiceOutputs;

fn read(inbox: &Inbox) -> ChoiceOutputs {
    let mut outputs = ChoiceOutputs::default();
    let _ = inbox.poll_take(&mut Context::from_waker(Waker::noop()), &mut outputs);
    outputs
}

fn batch(rows: &[(Handle, i32, &[i32], u8, u8)]) -> StepBatch {
    let mut batch = StepBatch {
        token_offsets: vec![0],
        ..StepBatch::default()
    };
    for (handle, sequence, tokens, finish, is_final) in rows {
        batch.ids.push(step::Handle(handle.number()));
        batch.sequence_index.push(*sequence);
        batch.token_ids.extend_from_slice(tokens);
        batch.token_offsets.push(batch.token_ids.len() as u32);
        batch.finish_reasons.push(*finish);
        batch.finals.push(*is_final);
    }
    batch
}

fn sequences(first_choice: u32, count: u32, spare: u32, max_tokens: u32) -> Sequences {
    Sequences {
        first_choice,
        count,
        spare,
        max_tokens,
        before: Vec::new(),
    }
}

#[test]
fn rows_reach_their_choice_and_a_final_row_ends_the_handle() {
    let registry = Registry::default();
    let (first, second) = (Arc::new(Inbox::default()), Arc::new(Inbox::default()));
    let a = registry
        .open(Arc::clone(&first), sequences(0, 1, 0, 8))
        .unwrap();
    let b = registry
        .open(Arc::clone(&second), sequences(4, 2, 0, 8))
        .unwrap();
    assert_eq!(registry.handles.active(), 2);
    let now = Instant::now();
    let distributed = registry.distribute(
        &batch(&[
            (a, 0, &[1, 2], 3, 1),
            (b, 1, &[7], 0, 0),
            (b, 0, &[8], 0, 0),
            (Handle::new(99), 0, &[5], 0, 0),
        ]),
        now,
    );
    assert_eq!((distributed.tokens, distributed.overrun), (4, Vec::new()));
    assert_eq!(registry.handles.active(), 1);
    let outputs = read(&first);
    assert_eq!(outputs.tokens, [1, 2]);
    assert_eq!(outputs.list[0].finish, FinishReason::Length);
    assert!(outputs.list[0].last_of_handle);
    let choices: Vec<u32> = read(&second).list.iter().map(|row| row.choice).collect();
    assert_eq!(choices, [5, 4]);
    assert!(
        registry.handles.remove(a).is_none(),
        "the final row closed it"
    );
    assert!(registry.handles.remove(b).is_some());
}

#[test]
fn a_late_row_of_a_closed_handle_reaches_nobody() {
    let registry = Registry::default();
    let old = registry
        .open(Arc::default(), sequences(0, 1, 0, 8))
        .unwrap();
    assert!(registry.handles.remove(old).is_some());
    let inbox = Arc::new(Inbox::default());
    let new = registry
        .open(Arc::clone(&inbox), sequences(0, 1, 0, 8))
        .unwrap();
    assert_eq!(
        old.number() & 0xffff_ffff,
        new.number() & 0xffff_ffff,
        "the slot is used again"
    );
    assert_eq!(
        registry.distribute(&batch(&[(old, 0, &[1], 0, 0)]), Instant::now()),
        Distributed::default()
    );
    assert!(read(&inbox).list.is_empty());
}

#[test]
fn rows_that_a_request_cannot_have_end_it_and_no_other() {
    let too_many: &[i32] = &[1; 9];
    // Sequence, tokens and whether the row is final; then tokens that came before.
    for (sequence, row, is_final, before) in [
        (1, &[1][..], 0, 0),
        (-1, &[1], 0, 0),
        (0, too_many, 0, 0),
        (0, too_many, 1, 0),
        (0, &[1, 2], 0, 7),
    ] {
        let registry = Registry::default();
        let inbox = Arc::new(Inbox::default());
        let handle = registry
            .open(Arc::clone(&inbox), sequences(0, 1, 0, 8))
            .unwrap();
        let other = registry
            .open(Arc::default(), sequences(0, 1, 0, 8))
            .unwrap();
        let now = Instant::now();
        let distribute = |row| registry.distribute(&batch(&[row]), now);
        let fitting = distribute((handle, 0, &too_many[..before], 0, 0));
        assert_eq!((fitting.tokens, fitting.overrun.len()), (before as u64, 0));
        let distributed = distribute((handle, sequence, row, 0, is_final));
        // Work that the worker has ended itself needs no stop.
        let stopped = [handle].into_iter().filter(|_| is_final == 0);
        assert!(distributed.overrun.into_iter().eq(stopped));
        assert_eq!((distributed.tokens, registry.handles.active()), (0, 1));
        let last = read(&inbox).list.pop().unwrap();
        assert!(last.last_of_handle);
        assert_eq!(last.details.unwrap().error.unwrap().0, Code::Internal);
        assert_eq!(distribute((handle, 0, &[1], 0, 0)).tokens, 0);
        assert_eq!(distribute((other, 0, &[1], 0, 0)).tokens, 1);
    }
}

#[test]
fn of_an_endless_error_text_the_beginning_goes_on() {
    let registry = Registry::default();
    let inbox = Arc::new(Inbox::default());
    let handle = registry
        .open(Arc::clone(&inbox), sequences(0, 1, 0, 8))
        .unwrap();
    let mut message = batch(&[(handle, 0, &[], 0, 1)]);
    message.errors = vec![RowError {
        row: 0,
        code: Code::InvalidArgument,
        text: "x".repeat(30 << 20),
        retry_after_ms: 0,
    }];
    registry.distribute(&message, Instant::now());
    let details = read(&inbox).list.remove(0).details.unwrap();
    assert!(details.error.unwrap().1.len() < 10_000);
}

#[test]
fn sparse_columns_find_their_rows_also_behind_rows_of_nobody() {
    let registry = Registry::default();
    let inbox = Arc::new(Inbox::default());
    let handle = registry
        .open(Arc::clone(&inbox), sequences(0, 1, 0, 8))
        .unwrap();
    let mut message = batch(&[
        (Handle::new(77), 0, &[1, 2], 0, 0),
        (handle, 0, &[3], 0, 0),
        (handle, 0, &[], 0, 1),
    ]);
    message.log_prob_rows = vec![0, 1];
    message.log_probs = vec![-1.0, -2.0, -3.0];
    message.top_log_prob_rows = vec![0, 1];
    message.top_log_prob_widths = vec![1, 2];
    message.top_log_prob_ids = vec![1, 2, 3, 4];
    message.top_log_probs = vec![-1.0, -2.0, -3.0, -4.0];
    message.cached_tokens = vec![(1, 16)];
    message.errors = vec![RowError {
        row: 2,
        code: Code::InvalidArgument,
        text: "no".to_owned(),
        retry_after_ms: 0,
    }];
    registry.distribute(&message, Instant::now());
    let outputs = read(&inbox);
    let details = outputs.list[0].details.as_ref().unwrap();
    assert_eq!(details.log_probs, [-3.0]);
    assert_eq!((details.top_width, &details.top_ids[..]), (2, &[3, 4][..]));
    assert_eq!(details.cached_tokens, Some(16));
    assert_eq!(
        outputs.list[1].details.as_ref().unwrap().error,
        Some((Code::InvalidArgument, "no".to_owned()))
    );
}

#[test]
fn a_lost_connection_ends_every_handle_and_takes_no_more() {
    let registry = Registry::default();
    let inbox = Arc::new(Inbox::default());
    registry
        .open(Arc::clone(&inbox), sequences(2, 1, 0, 8))
        .unwrap();
    let why = Status::unavailable("lost");
    registry.handles.end(&why, Instant::now());
    let outputs = read(&inbox);
    assert_eq!(outputs.list.len(), 1);
    assert!(outputs.list[0].last_of_handle);
    let refused = registry.open(inbox, sequences(0, 1, 0, 8)).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(registry.handles.active(), 0);
}

#[test]
fn only_a_client_that_reads_nothing_for_long_is_stalled() {
    let registry = Registry::default();
    let (slow, quick) = (Arc::new(Inbox::default()), Arc::new(Inbox::default()));
    let slow_handle = registry
        .open(Arc::clone(&slow), sequences(0, 1, 0, 8))
        .unwrap();
    let quick_handle = registry
        .open(Arc::clone(&quick), sequences(0, 1, 0, 8))
        .unwrap();
    let start = Instant::now();
    registry.distribute(
        &batch(&[(slow_handle, 0, &[1], 0, 0), (quick_handle, 0, &[1], 0, 0)]),
        start,
    );
    read(&quick);
    let patience = Duration::from_secs(60);
    let sweep = |seconds| {
        let now = start + Duration::from_secs(seconds);
        let stalled = registry.handles.sweep_stalled(now, patience).into_iter();
        stalled.map(|(handle, _)| handle).collect::<Vec<_>>()
    };
    assert_eq!(sweep(59), []);
    assert_eq!(sweep(60), [slow_handle]);
    assert_eq!(registry.handles.active(), 1);
    let last = read(&slow).list.pop().unwrap();
    assert_eq!(
        last.details.unwrap().error.unwrap().0,
        Code::DeadlineExceeded
    );
}

#[test]
fn sequences_that_nobody_wants_are_dropped_but_for_their_end() {
    let registry = Registry::default();
    let inbox = Arc::new(Inbox::default());
    let handle = registry
        .open(Arc::clone(&inbox), sequences(3, 1, 1, 8))
        .unwrap();
    let rows = [(handle, 0, &[5, 6][..], 3, 0), (handle, 1, &[7, 8], 3, 1)];
    registry.distribute(&batch(&rows), Instant::now());
    let outputs = read(&inbox);
    let told = outputs.list.iter();
    let told: Vec<_> = told
        .map(|delta| (delta.choice, delta.finish, delta.last_of_handle))
        .collect();
    assert_eq!(
        told,
        [
            (3, FinishReason::Length, false),
            (3, FinishReason::NotFinished, true)
        ]
    );
    assert_eq!(outputs.tokens, [5, 6]);
    assert_eq!(registry.handles.active(), 0);
}

/// `make sanitize` looks here for races.
#[test]
fn rows_reach_readers_on_other_threads_once_and_in_order() {
    const TOKENS: i32 = 30;
    let registry = Arc::new(Registry::default());
    let (sender, read) = std::sync::mpsc::channel();
    let mut handles = Vec::new();
    for _ in 0..2 {
        let inbox = Arc::new(Inbox::default());
        let most = sequences(0, 1, 0, TOKENS as u32);
        handles.push(registry.open(Arc::clone(&inbox), most).unwrap());
        let sender = sender.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let reading = async {
                let (mut tokens, mut outputs) = (Vec::new(), ChoiceOutputs::default());
                while !outputs.list.iter().any(|row| row.last_of_handle) {
                    outputs.clear();
                    std::future::poll_fn(|context| inbox.poll_take(context, &mut outputs)).await;
                    tokens.extend_from_slice(&outputs.tokens);
                }
                tokens
            };
            let _ = sender.send(runtime.unwrap().block_on(reading));
        });
    }
    // Requests that come, get a notice and leave at the same time.
    let others = Arc::clone(&registry);
    let disturbing = std::thread::spawn(move || {
        for _ in 0..TOKENS {
            let other = others.open(Arc::default(), sequences(0, 1, 0, 8)).unwrap();
            others.notify(Notice::Silent);
            assert!(others.handles.remove(other).is_some());
        }
    });
    for token in 1..=TOKENS {
        let is_last = u8::from(token == TOKENS);
        let tokens = [token];
        let rows = handles
            .iter()
            .map(|handle| (*handle, 0, &tokens[..], is_last, is_last));
        let _ = registry.distribute(&batch(&rows.collect::<Vec<_>>()), Instant::now());
    }
    for _ in &handles {
        let tokens = read.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(tokens, (1..=TOKENS).collect::<Vec<_>>());
    }
    disturbing.join().unwrap();
    assert_eq!(registry.handles.active(), 0);
}

#[test]
fn a_notice_is_for_every_open_request() {
    let registry = Registry::default();
    let inboxes: [Arc<Inbox>; 2] = Default::default();
    for inbox in &inboxes {
        let opened = registry.open(Arc::clone(inbox), sequences(0, 1, 0, 8));
        opened.unwrap();
    }
    registry.notify(Notice::Leaving);
    for inbox in &inboxes {
        let mut context = Context::from_waker(Waker::noop());
        let taken = inbox.poll_take(&mut context, &mut ChoiceOutputs::default());
        assert!(matches!(taken, Poll::Ready(arrived) if arrived.notice == Some(Notice::Leaving)));
    }
}

#[test]
fn one_request_fails_and_no_other() {
    let registry = Registry::default();
    let inboxes: [Arc<Inbox>; 2] = Default::default();
    let handles = inboxes.each_ref().map(|inbox| {
        let opened = registry.open(Arc::clone(inbox), sequences(0, 1, 0, 8));
        opened.unwrap()
    });
    let why = Status::deadline_exceeded("late");
    let now = Instant::now();
    assert!(registry.handles.fail(handles[0], &why, now).is_some());
    assert!(
        registry.handles.fail(handles[0], &why, now).is_none(),
        "it is closed"
    );
    let outputs = read(&inboxes[0]);
    let error = outputs.list[0].details.as_ref().unwrap().error.clone();
    assert_eq!(error, Some((Code::DeadlineExceeded, "late".to_owned())));
    assert_eq!(registry.handles.active(), 1);
}

#[test]
fn what_an_answer_brings_is_counted() {
    let registry = Registry::default();
    let inbox = Arc::new(Inbox::default());
    let handle = registry.open(Arc::clone(&inbox), sequences(2, 1, 0, 8));
    let handle = handle.unwrap();
    let deliver = |tokens: &[i32], generated, last| {
        let details = OutputDetails {
            generated,
            ..OutputDetails::default()
        };
        let output = SequenceOutput {
            tokens: tokens.to_vec(),
            finish: FinishReason::NotFinished,
            last,
            details: (generated > 0).then(|| Box::new(details)),
        };
        registry.deliver(handle, output, Instant::now())
    };
    assert_eq!(deliver(&[1, 2, 3], 0, false), 3);
    // A text of so many tokens, which are not named.
    assert_eq!(deliver(&[], 5, false), 5);
    assert_eq!(deliver(&[4, 5], 5, true), 7);
    assert_eq!(deliver(&[6], 0, false), 0, "its last one has come");
    let outputs = read(&inbox);
    assert!(outputs.list.iter().all(|one| one.choice == 2));
    assert_eq!(outputs.tokens, [1, 2, 3, 4, 5]);
}

#[test]
fn all_that_a_row_says_reaches_its_reader() {
    let registry = Registry::default();
    let inbox = Arc::new(Inbox::default());
    let handle = registry.open(Arc::clone(&inbox), sequences(0, 1, 0, 8));
    let mut all = batch(&[(handle.unwrap(), 0, &[1], 0, 1)]);
    all.errors = vec![step::RowError {
        row: 0,
        code: Code::ResourceExhausted,
        text: "full".to_owned(),
        retry_after_ms: 250,
    }];
    (all.log_prob_rows, all.log_probs) = (vec![0], vec![-0.5]);
    (all.top_log_prob_rows, all.top_log_prob_widths) = (vec![0], vec![2]);
    (all.top_log_prob_ids, all.top_log_probs) = (vec![8, 9], vec![-0.25, -2.0]);
    all.cached_tokens = vec![(0, 3)];
    let params = bytes::Bytes::from_static(b"state");
    all.context_phases = vec![step::ContextPhase {
        row: 0,
        params: params.clone(),
    }];
    let prompt = PromptLogProbs {
        row: 0,
        values: vec![-1.0],
        width: 0,
        top_ids: vec![],
        top_values: vec![],
    };
    all.prompt_log_probs = vec![prompt.clone()];
    registry.distribute(&all, Instant::now());
    let details = read(&inbox).list[0].details.take().unwrap();
    let expected = OutputDetails {
        error: Some((Code::ResourceExhausted, "full".to_owned())),
        retry_after_ms: 250,
        log_probs: vec![-0.5],
        top_width: 2,
        top_ids: vec![8, 9],
        top_values: vec![-0.25, -2.0],
        cached_tokens: Some(3),
        context_phase: Some(params),
        prompt_log_probs: Some(prompt),
        ..OutputDetails::default()
    };
    assert_eq!(*details, expected);
}

/// How often a task was woken.
#[derive(Default)]
struct Woken(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_message_wakes_each_reader_once() {
    let registry = Registry::default();
    let woken: [Arc<Woken>; 3] = Default::default();
    let inboxes: [Arc<Inbox>; 3] = Default::default();
    let handles = inboxes.each_ref().map(|inbox| {
        let opened = registry.open(Arc::clone(inbox), sequences(0, 1, 0, 8));
        opened.unwrap()
    });
    for (inbox, woken) in inboxes.iter().zip(&woken) {
        let waker = Waker::from(Arc::clone(woken));
        let mut context = Context::from_waker(&waker);
        let taken = inbox.poll_take(&mut context, &mut ChoiceOutputs::default());
        assert!(taken.is_pending());
    }
    let [first, second, _] = handles;
    let rows = batch(&[
        (first, 0, &[1], 0, 0),
        (second, 0, &[1], 0, 0),
        (first, 0, &[2], 0, 0),
    ]);
    registry.distribute(&rows, Instant::now());
    let counts = woken.map(|woken| woken.0.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(counts, [1, 1, 0]);
}
