//! Sends the prompts of a request to a worker. Owns the replacement of a worker that is lost meanwhile,
//! and that work nobody waits for is stopped; which worker is picked is the table's to say.

use std::sync::Arc;

use super::connection::{Connection, NotSent};
use super::inbox::Inbox;
use super::prompt_request::PromptRequest;
use super::registry::Handle;
use super::table::ModelEntry;

/// How many workers are tried when one is lost between being picked and being sent to.
const ATTEMPTS: usize = 3;

/// Why a request is with no worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotDispatched {
    /// No worker with these files is ready.
    NoWorker,
    /// The worker takes requests more slowly than they come.
    Full,
}

/// A request that a worker has: where its output arrives, and its handles.
#[derive(Debug)]
pub(crate) struct Dispatched {
    pub inbox: Arc<Inbox>,
    pub handles: OpenHandles,
}

/// Sends all `prompts` to one worker of the model, to generate `n` sequences of each. Prompt i's sequence
/// j is choice `i * n + j`. `content_hash`: the files the prompts were tokenized with.
///
/// # Errors
/// [`NotDispatched`]; whatever was sent is stopped.
pub(crate) fn dispatch(
    entry: &ModelEntry,
    content_hash: &str,
    prompts: &[PromptRequest<'_>],
    n: u32,
) -> Result<Dispatched, NotDispatched> {
    for _ in 0..ATTEMPTS {
        let connection = entry
            .pick(Some(content_hash))
            .ok_or(NotDispatched::NoWorker)?;
        match send_all(connection, prompts, n) {
            Ok(dispatched) => return Ok(dispatched),
            Err(NotSent::Closed) => {}
            Err(NotSent::Full) => return Err(NotDispatched::Full),
        }
    }
    Err(NotDispatched::NoWorker)
}

fn send_all(
    connection: Arc<Connection>,
    prompts: &[PromptRequest<'_>],
    n: u32,
) -> Result<Dispatched, NotSent> {
    let inbox = Arc::new(Inbox::default());
    let sequences = connection.served.sequences_per_request(n).max(1);
    // Dropped on an error, which stops what was sent.
    let mut handles = OpenHandles {
        connection,
        handles: Vec::new(),
        sequences,
    };
    for (prompt, index) in prompts.iter().zip(0u32..) {
        for choice in (0..n).step_by(sequences as usize) {
            let connection = &handles.connection;
            let handle = connection.open(Arc::clone(&inbox), index * n + choice, sequences)?;
            handles.handles.push(handle);
            handles.connection.send(handle, prompt, choice)?;
        }
    }
    Ok(Dispatched { inbox, handles })
}

/// The handles of one request, in the order of its choices. Dropping them stops those still open.
#[derive(Debug)]
pub(crate) struct OpenHandles {
    connection: Arc<Connection>,
    handles: Vec<Handle>,
    sequences: u32,
}

impl OpenHandles {
    /// How many handles there are.
    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }

    /// How many choices each handle has.
    pub(crate) fn sequences(&self) -> usize {
        self.sequences as usize
    }

    /// The worker's `host:port`.
    pub(crate) fn worker(&self) -> &str {
        &self.connection.address
    }

    /// Stops the work of one handle.
    pub(crate) fn cancel(&self, index: usize) {
        if let Some(&handle) = self.handles.get(index) {
            self.connection.cancel(handle);
        }
    }
}

impl Drop for OpenHandles {
    fn drop(&mut self) {
        // The connection has forgotten the handles that ended by themselves, and sends no stop for them.
        for &handle in &self.handles {
            self.connection.cancel(handle);
        }
    }
}
