//! The requests that wait for output on one connection, by handle. Owns handles, when a client counts as stalled, and
//! that everything ends with its connection; knows nothing of sockets, nor of where and how output waits.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use slotmap::{Key, KeyData, SlotMap};
use tokio::time::Instant;
use tonic::Status;

slotmap::new_key_type! {
    /// One request at one connection. Not used again, so that late output of a cancelled request finds
    /// nothing.
    pub struct Handle;
}

impl Handle {
    /// The handle with this number.
    pub fn new(number: u64) -> Self {
        Self::from(KeyData::from_ffi(number))
    }

    /// As it travels on the wire.
    pub fn number(self) -> u64 {
        self.data().as_ffi()
    }
}

/// Handles are searched for stalled clients at most this often: the search is over all of them.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Where a request's output waits for its client.
pub trait Waiting {
    /// When the oldest output came that has not been read; `None` when all is.
    fn unread_since(&self) -> Option<Instant>;

    /// Ends the output with an error, behind what waits. Returns the client's waker if the client waits.
    fn fail(&self, why: &Status, now: Instant) -> Option<Waker>;
}

#[derive(Debug)]
struct State<W> {
    open: SlotMap<Handle, W>,
    /// Why no handle can be opened any more.
    ended: Option<Status>,
    last_sweep: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub struct Handles<W> {
    state: Mutex<State<W>>,
    active: AtomicUsize,
}

impl<W> Default for Handles<W> {
    fn default() -> Self {
        let state = State {
            open: SlotMap::default(),
            ended: None,
            last_sweep: None,
        };
        Self {
            state: Mutex::new(state),
            active: AtomicUsize::new(0),
        }
    }
}

impl<W: Waiting> Handles<W> {
    /// Opens a handle for what `waiting` makes of it.
    ///
    /// # Errors
    /// Why the connection has ended.
    pub fn open(&self, waiting: impl FnOnce(Handle) -> W) -> Result<Handle, Status> {
        let mut all = self.lock();
        match &all.state.ended {
            Some(status) => Err(status.clone()),
            None => Ok(all.insert_with_key(waiting)),
        }
    }

    /// Forgets a handle. Returns what waited, if output for it could still have come.
    pub fn remove(&self, handle: Handle) -> Option<W> {
        self.lock().remove(handle)
    }

    /// Handles that still wait for output.
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.state.lock().ended.is_some()
    }

    /// All open handles, to hand output out. Clients are woken once the guard is dropped, each once.
    pub fn lock(&self) -> Locked<'_, W> {
        Locked {
            state: self.state.lock(),
            active: &self.active,
            wakers: Wakers::default(),
        }
    }

    /// Ends one handle with an error. Returns what waited, if output for it could still have come.
    pub fn fail(&self, handle: Handle, why: &Status, now: Instant) -> Option<W> {
        let mut all = self.lock();
        let waiting = all.remove(handle)?;
        all.wake(waiting.fail(why, now));
        Some(waiting)
    }

    /// Ends every handle with an error, and refuses new ones.
    pub fn end(&self, why: &Status, now: Instant) {
        let mut all = self.lock();
        all.state.ended = Some(why.clone());
        for (_, waiting) in std::mem::take(&mut all.state.open) {
            all.wake(waiting.fail(why, now));
        }
    }

    /// Ends the handles whose client has read nothing for `patience`, and returns them so that their work is
    /// stopped. Looks at most once a second.
    pub fn sweep_stalled(&self, now: Instant, patience: Duration) -> Vec<(Handle, W)> {
        let mut all = self.lock();
        let since = |past: Instant| now.saturating_duration_since(past);
        let last = all.state.last_sweep;
        if last.is_some_and(|last| since(last) < SWEEP_EVERY) {
            return Vec::new();
        }
        all.state.last_sweep = Some(now);
        let is_stalled = |waiting: &W| {
            let unread = waiting.unread_since();
            unread.is_some_and(|unread| since(unread) >= patience)
        };
        let open = all.state.open.iter();
        let stalled = open.filter(|(_, waiting)| is_stalled(waiting));
        let stalled: Vec<Handle> = stalled.map(|(handle, _)| handle).collect();
        let why = Status::deadline_exceeded("the client stopped reading");
        let ended = stalled.into_iter().filter_map(|handle| {
            let waiting = all.remove(handle)?;
            all.wake(waiting.fail(&why, now));
            Some((handle, waiting))
        });
        ended.collect()
    }
}

/// The open handles, locked.
pub struct Locked<'a, W> {
    state: MutexGuard<'a, State<W>>,
    active: &'a AtomicUsize,
    /// Dropped last: a client that is woken must not find the lock taken.
    wakers: Wakers,
}

impl<W> Locked<'_, W> {
    /// Wakes a client once all output is handed out.
    pub fn wake(&mut self, waker: Option<Waker>) {
        self.wakers.0.extend(waker);
    }
}

impl<W> Deref for Locked<'_, W> {
    type Target = SlotMap<Handle, W>;

    fn deref(&self) -> &Self::Target {
        &self.state.open
    }
}

impl<W> DerefMut for Locked<'_, W> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.state.open
    }
}

impl<W> Drop for Locked<'_, W> {
    fn drop(&mut self) {
        self.active.store(self.state.open.len(), Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Wakers(Vec<Waker>);

impl Drop for Wakers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}
