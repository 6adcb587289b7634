//! Runs work on a template's syntax tree on a thread with a stack that is large enough. Owns the longest source that
//! is analyzed and the stack that it needs; knows nothing of the work.

/// Bytes of a template that is looked at. The longest known one has two thirds.
pub(super) const MAX_SOURCE: usize = 32 * 1024;
/// A stack on which no syntax tree of a source of [`MAX_SOURCE`] overflows; only what is used takes memory.
pub(super) const STACK_BYTES: usize = 64 << 20;

/// What `work` returns; `None`: it panicked, or its thread cannot be started.
#[allow(
    clippy::disallowed_methods,
    reason = "its caller waits for it: nothing else runs meanwhile"
)]
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, work).ok()?.join().ok()
    })
}
