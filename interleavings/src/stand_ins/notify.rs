//! `tokio::sync::Notify`, as far as those need it who notify all that wait: who asks before that is notified, also where it
//! has not been polled yet.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::Mutex;

/// Of `tokio`.
#[derive(Debug, Default)]
pub struct Notify(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    times: u64,
    waiting: Vec<Waker>,
}

impl Notify {
    pub fn notified(&self) -> Notified<'_> {
        Notified(self, self.0.lock().times)
    }

    pub fn notify_waiters(&self) {
        let waiting = {
            let mut state = self.0.lock();
            state.times += 1;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

pub struct Notified<'a>(&'a Notify, u64);

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.0.lock();
        if state.times != self.1 {
            return Poll::Ready(());
        }
        state.waiting.push(context.waker().clone());
        Poll::Pending
    }
}
