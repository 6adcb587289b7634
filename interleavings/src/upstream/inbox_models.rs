//! What [`Inbox`] promises.

use std::time::Instant;

use loom::thread;

use super::inbox::{ChoiceOutputs, Inbox, Notice};
use crate::step::FinishReason;

type Arc<T> = std::sync::Arc<T>;

/// As the registry does: the consumer is woken once all is handed out.
fn append(inbox: &Inbox, token: i32, is_last: bool) {
    let finish = match is_last {
        true => FinishReason::Length,
        false => FinishReason::NotFinished,
    };
    let waker = inbox.append(0, &[token], finish, is_last, None, Instant::now());
    waker.into_iter().for_each(std::task::Waker::wake);
}

fn notify(inbox: &Inbox, notice: Notice) {
    inbox
        .notify(notice)
        .into_iter()
        .for_each(std::task::Waker::wake);
}

/// Takes until the last delta. Returns the tokens, and the notices on the way.
fn read(inbox: &Inbox) -> (Vec<i32>, Vec<Notice>) {
    let (mut tokens, mut notices) = (Vec::new(), Vec::new());
    loop {
        let mut outputs = ChoiceOutputs::default();
        let arrived = crate::wait(|context| inbox.poll_take(context, &mut outputs));
        notices.extend(arrived.notice);
        assert_eq!(arrived.at.is_none(), outputs.list.is_empty());
        tokens.extend(&outputs.tokens);
        if outputs.list.iter().any(|delta| delta.last_of_handle) {
            return (tokens, notices);
        }
    }
}

/// Every token comes once and in order, and nobody waits for what is there.
pub fn every_token_comes_once() {
    let inbox = Arc::new(Inbox::default());
    let other = Arc::clone(&inbox);
    let appends = thread::spawn(move || {
        for token in 1..=3 {
            append(&other, token, token == 3);
        }
    });
    assert_eq!(read(&inbox).0, [1, 2, 3]);
    appends.join().unwrap();
    assert_eq!(inbox.unread_since(), None);
}

/// A notice comes once, and tokens that were there before it are not behind it.
pub fn a_notice_comes_once() {
    let inbox = Arc::new(Inbox::default());
    let other = Arc::clone(&inbox);
    let notifies = thread::spawn(move || notify(&other, Notice::Leaving));
    let other = Arc::clone(&inbox);
    let appends = thread::spawn(move || append(&other, 1, true));
    let (tokens, mut notices) = read(&inbox);
    notifies.join().unwrap();
    appends.join().unwrap();
    assert_eq!(tokens, [1]);
    if notices.is_empty() {
        // It came behind the last token, and waits.
        let mut outputs = ChoiceOutputs::default();
        let arrived = crate::wait(|context| inbox.poll_take(context, &mut outputs));
        notices.extend(arrived.notice);
    }
    assert_eq!(notices, [Notice::Leaving]);
    let (_, waker) = crate::counting();
    let mut context = std::task::Context::from_waker(&waker);
    assert!(
        inbox
            .poll_take(&mut context, &mut ChoiceOutputs::default())
            .is_pending()
    );
}

/// A notice alone wakes.
pub fn a_notice_wakes() {
    let inbox = Arc::new(Inbox::default());
    let other = Arc::clone(&inbox);
    let notifies = thread::spawn(move || notify(&other, Notice::Silent));
    let mut outputs = ChoiceOutputs::default();
    let arrived = crate::wait(|context| inbox.poll_take(context, &mut outputs));
    assert_eq!((arrived.at, arrived.notice), (None, Some(Notice::Silent)));
    notifies.join().unwrap();
}

/// A consumer of the whole is woken at the end, also if it begins to gather while tokens come.
pub fn who_gathers_is_woken_at_the_end() {
    let inbox = Arc::new(Inbox::default());
    let other = Arc::clone(&inbox);
    let appends = thread::spawn(move || {
        append(&other, 1, false);
        append(&other, 2, true);
    });
    inbox.gather();
    assert_eq!(read(&inbox).0, [1, 2]);
    appends.join().unwrap();
}
