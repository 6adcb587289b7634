//! Sends the prompts of a request to a worker. Owns that work nobody waits for is stopped; the table
//! picks the worker, and `delivery` decides when a request goes to another one and when it is given up.

use std::sync::Arc;

use super::connection::Connection;
use super::delivery::Tried;
use super::handles::Handle;
use super::inbox::Inbox;
use super::phases::{Disaggregate, Phases};
use super::placement::{Placed, Prompts};
use super::prompt_request::PromptRequest;
use super::registry::Sequences;
use super::request_queue::NotSent;
use super::table::{ModelEntry, Suits};

/// Why a request is with no worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDispatched {
    /// No worker with these files is ready.
    NoWorker,
    /// The worker takes requests more slowly than they come.
    Full,
}

/// A request that a worker has: where its output arrives, and its handles.
#[derive(Debug)]
pub struct Dispatched {
    pub inbox: Arc<Inbox>,
    pub handles: OpenHandles,
    /// Handles whose prompt an earlier worker has counted; empty: none.
    pub counted: Vec<bool>,
}

/// Sends all prompts to one worker of the model that suits and has not been `tried`, to generate `n` sequences of
/// each. Sequence j of prompt i is choice `i * n + j`.
///
/// # Errors
/// [`NotDispatched`]; whatever was sent is stopped.
pub fn dispatch(
    entry: &ModelEntry,
    suits: Suits<'_>,
    tried: &mut Tried,
    asked: &Prompts<'_>,
    n: u32,
) -> Result<Dispatched, NotDispatched> {
    let mut failure = NotDispatched::NoWorker;
    while tried.has_room() {
        let Some((connection, placed)) = entry.pick(suits, tried.addresses(), asked) else {
            break;
        };
        tried.add(&connection.address);
        match send_all(connection, placed, asked.prompts, n, suits.resumes) {
            Ok(dispatched) => return Ok(dispatched),
            Err(NotSent::Closed) => {}
            Err(NotSent::Full) => failure = NotDispatched::Full,
        }
    }
    Err(failure)
}

/// As [`dispatch`], or to a worker for contexts alone, where [`ModelEntry::should_split`] says so and one takes it: what that one
/// leaves is continued elsewhere.
///
/// # Errors
/// See [`dispatch`].
pub fn dispatch_phases(
    entry: &ModelEntry,
    which: Disaggregate,
    suits: Suits<'_>,
    tried: &mut Tried,
    asked: &Prompts<'_>,
    n: u32,
) -> Result<Dispatched, NotDispatched> {
    if entry.should_split(which, suits, tried.addresses(), asked) {
        let phases = Phases::Context;
        let prompts = asked.prompts.iter();
        let prompts = prompts.map(|prompt| PromptRequest { phases, ..*prompt });
        let prompts: Vec<PromptRequest<'_>> = prompts.collect();
        let suits = Suits { phases, ..suits };
        // Where none takes it, it has reached none of them.
        let mut reached = tried.clone();
        if let Ok(dispatched) = dispatch(entry, suits, &mut reached, &asked.of(&prompts), n) {
            *tried = reached;
            return Ok(dispatched);
        }
    }
    dispatch(entry, suits, tried, asked, n)
}

fn send_all(
    connection: Arc<Connection>,
    placed: Option<Placed>,
    prompts: &[PromptRequest<'_>],
    n: u32,
    resumes: bool,
) -> Result<Dispatched, NotSent> {
    let inbox = Arc::new(Inbox::default());
    let sequences = connection.served.sequences_per_request(n).max(1);
    // Dropped on an error, which stops what was sent.
    let mut handles = OpenHandles {
        connection,
        handles: Vec::new(),
        sequences,
        is_context: prompts
            .iter()
            .any(|prompt| matches!(prompt.phases, Phases::Context)),
        placed,
    };
    for (prompt, index) in prompts.iter().zip(0u32..) {
        for choice in (0..n).step_by(sequences as usize) {
            let place = choice as usize..(choice + sequences) as usize;
            let generated = prompt.generated.get(place).unwrap_or_default();
            if !generated.is_empty() && generated.iter().all(Option::is_none) {
                // It has ended, and keeps its place among the others.
                handles.handles.push(Handle::default());
                continue;
            }
            // Otherwise the server generates all of it again.
            let generated = if resumes { generated } else { &[] };
            let before = generated.iter();
            let before = before.map(|tokens| tokens.map_or(0, |tokens| tokens.len() as u32));
            let wanted = Sequences {
                first_choice: index * n + choice,
                count: sequences,
                spare: prompt.params.spare_sequences(),
                max_tokens: prompt.params.max_tokens,
                before: before.collect(),
            };
            let handle = handles.connection.open(Arc::clone(&inbox), wanted)?;
            let prompt = PromptRequest {
                generated,
                ..*prompt
            };
            handles.connection.send(handle, &prompt, choice)?;
            handles.handles.push(handle);
        }
    }
    Ok(Dispatched {
        inbox,
        handles,
        counted: Vec::new(),
    })
}

/// The handles of one request, in the order of its choices. Dropping them stops those still open.
#[derive(Debug)]
pub struct OpenHandles {
    connection: Arc<Connection>,
    handles: Vec<Handle>,
    sequences: u32,
    /// Whether they are for the context phase alone.
    is_context: bool,
    /// Why the worker was picked, where its reports are heard.
    placed: Option<Placed>,
}

impl OpenHandles {
    /// How many handles there are.
    pub fn count(&self) -> usize {
        self.handles.len()
    }

    /// How many choices each handle has.
    pub fn sequences(&self) -> usize {
        self.sequences as usize
    }

    /// Whether they are for the context phase alone: what they leave is continued elsewhere.
    pub fn is_context(&self) -> bool {
        self.is_context
    }

    /// The worker's `host:port`.
    pub fn worker(&self) -> &str {
        &self.connection.address
    }

    /// The worker's connection.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// The first output came.
    pub fn started(&mut self) {
        if let Some(placed) = &mut self.placed {
            placed.started();
        }
    }

    /// The worker says how many of the prompt's tokens were cached.
    pub fn found_cached(&mut self, tokens: u32) {
        if let Some(placed) = &mut self.placed {
            placed.found_cached(tokens, &self.connection.address);
        }
    }

    /// Stops all of its work.
    pub fn stop(&self) {
        // The connection has forgotten the handles that ended by themselves, and sends no stop for them.
        for &handle in &self.handles {
            self.connection.cancel(handle);
        }
    }

    /// Stops the work of one handle.
    pub fn cancel(&self, index: usize) {
        if let Some(&handle) = self.handles.get(index) {
            self.connection.cancel(handle);
        }
    }
}

impl Drop for OpenHandles {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
