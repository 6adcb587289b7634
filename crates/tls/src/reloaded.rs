//! Something made of files, made again when they change. Owns when the files are looked at: when they are needed, at
//! most once a second, so that no extra task has to run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::TlsError;
use crate::files::{Stamp, stamp};

/// How often the files are looked at, at most. A look is a `stat` of each.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The newest that could be made.
pub(crate) struct Reloaded<T> {
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, TlsError> + Send + Sync>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    seen: Vec<Stamp>,
    looked: Instant,
    /// Somebody looks; a file system that hangs then holds up one and not all.
    is_looking: bool,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Makes it for the first time.
    ///
    /// # Errors
    /// As `make` has it.
    pub(crate) fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, TlsError> {
        // Before the files are read: a change meanwhile is then noticed.
        let seen = files.iter().map(|path| stamp(path)).collect();
        let state = State {
            value: Arc::new(make()?),
            seen,
            looked: Instant::now(),
            is_looking: false,
        };
        Ok(Arc::new(Self {
            files,
            make: Box::new(make),
            state: Mutex::new(state),
        }))
    }

    /// The newest. Looks at the files if that is due, outside the runtime's own threads.
    #[allow(
        clippy::disallowed_methods,
        reason = "`inflight_base`, which has the place for it, uses this crate"
    )]
    pub(crate) async fn newest(self: &Arc<Self>) -> Arc<T> {
        {
            let mut state = self.state.lock();
            if state.is_looking || state.looked.elapsed() < LOOK_EVERY {
                return Arc::clone(&state.value);
            }
            state.is_looking = true;
        }
        let this = Arc::clone(self);
        // It fails only while the runtime ends.
        let _ = tokio::task::spawn_blocking(move || this.look()).await;
        Arc::clone(&self.state.lock().value)
    }

    /// Makes it again if a file has changed. What cannot be made leaves the one before.
    pub(crate) fn look(&self) {
        let seen: Vec<Stamp> = self.files.iter().map(|path| stamp(path)).collect();
        let has_changed = self.state.lock().seen != seen;
        let made = has_changed.then(&self.make);
        let mut state = self.state.lock();
        (state.seen, state.looked, state.is_looking) = (seen, Instant::now(), false);
        match made {
            None => {}
            Some(Ok(value)) => {
                state.value = Arc::new(value);
                tracing::info!(files = ?self.files, "certificates reloaded");
            }
            Some(Err(error)) => {
                let reason = describe(&error);
                tracing::error!(%reason, "cannot load the new certificates; the current ones stay in use");
            }
        }
    }
}

impl<T> std::fmt::Debug for Reloaded<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never a key.
        let mut shown = formatter.debug_struct("Reloaded");
        shown.field("files", &self.files).finish_non_exhaustive()
    }
}

/// An error with its causes.
fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
