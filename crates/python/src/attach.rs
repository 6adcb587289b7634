//! Keeps the engine threads known to Python. Owns one fact: whether this thread is.
//!
//! A thread that Python did not start gets a thread state when it attaches and loses it when it
//! detaches, and with it the memory of its interpreter stack (a mapping, touched anew each time). The
//! two engine threads attach once per iteration, so they keep theirs.

use std::cell::Cell;

use pyo3::Python;
use pyo3::ffi;

thread_local! {
    static KEPT: Cell<bool> = const { Cell::new(false) };
}

/// Lets the calling thread keep its thread state when it detaches, until the process ends.
///
/// For long-lived threads only: the state of one that ends is not given back.
pub(crate) fn keep_thread_state(_attached: Python<'_>) {
    if KEPT.replace(true) {
        return;
    }
    // SAFETY: the thread is attached, as the token shows. The call only counts: that its release is
    // left out is what keeps the state alive, and the count of the attach around it stays balanced.
    let _ = unsafe { ffi::PyGILState_Ensure() };
}
