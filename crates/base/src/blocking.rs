//! Work that may block, which therefore runs on other threads than the runtime's own. A thread that must do everything
//! by itself, as a simulation's, does it at once.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinError, JoinHandle, spawn_blocking};

thread_local! {
    static IS_INLINE: Cell<bool> = const { Cell::new(false) };
}

/// From now on, what this thread wants done elsewhere is done here and at once.
pub fn run_inline() {
    IS_INLINE.set(true);
}

/// Does `work` on a thread that may block. It is done though nobody awaits it.
#[allow(clippy::disallowed_methods, reason = "the one place that does")]
pub fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Blocking<T> {
    if IS_INLINE.get() {
        return Blocking(State::Done(Some(work())));
    }
    Blocking(State::Elsewhere(spawn_blocking(work)))
}

/// Resolves to what the work returned.
#[derive(Debug)]
pub struct Blocking<T>(State<T>);

#[derive(Debug)]
enum State<T> {
    Done(Option<T>),
    Elsewhere(JoinHandle<T>),
}

// Nothing in it is pinned.
impl<T> Unpin for Blocking<T> {}

impl<T> Future for Blocking<T> {
    /// An error: the work panicked, or the runtime has ended.
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Done(done) => done
                .take()
                .map_or(Poll::Pending, |done| Poll::Ready(Ok(done))),
            State::Elsewhere(handle) => Pin::new(handle).poll(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_elsewhere_unless_the_thread_does_everything_itself() {
        let here = std::thread::current().id();
        let place = || std::thread::current().id();
        assert_ne!(run(place).await.unwrap(), here);
        run_inline();
        assert_eq!(run(place).await.unwrap(), here);
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error() {
        assert!(run(|| panic!("wanted")).await.unwrap_err().is_panic());
    }
}
