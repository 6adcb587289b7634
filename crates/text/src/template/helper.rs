//! One helper process from the server's side: starting it, one rendering at a time, and what its end means.
//! Knows nothing of how many there are.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;

use super::confine::cpu_time;
use super::{TemplateError, TemplateLimits, wire};

/// How to start a process that calls [`run_template_helper`](super::run_template_helper).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperCommand {
    pub program: String,
    pub arguments: Vec<String>,
}

static CONFIGURED: OnceLock<Arc<HelperCommand>> = OnceLock::new();

/// Has this process render every chat template that it loads from now on in helper processes, started by
/// `command`. A server calls it once, before it loads a model; a second call changes nothing.
pub fn use_template_helper(command: HelperCommand) {
    let _ = CONFIGURED.set(Arc::new(command));
}

pub(super) fn configured() -> Option<Arc<HelperCommand>> {
    CONFIGURED.get().cloned()
}

/// A running helper. Dropping it ends the process.
pub(super) struct Helper {
    process: Child,
    socket: UnixStream,
    is_ready: bool,
}

/// Why a helper is of no more use.
pub(super) enum Lost {
    /// The rendering exceeded a limit.
    Limit(TemplateError),
    /// Something else ended it, perhaps before this rendering.
    Gone(TemplateError),
}

impl Helper {
    /// Starts a process and sends it its templates; does not wait for it to parse them.
    ///
    /// # Errors
    /// [`TemplateError::Helper`].
    pub(super) fn start(
        command: &HelperCommand,
        sources: &[u8],
        limits: TemplateLimits,
    ) -> Result<Self, TemplateError> {
        Self::spawn(command, sources, limits).map_err(|error| TemplateError::Helper {
            reason: format!("`{}`: {error}", command.program),
        })
    }

    fn spawn(command: &HelperCommand, sources: &[u8], limits: TemplateLimits) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let process = Command::new(&command.program)
            .args(&command.arguments)
            // mimalloc would reserve a gibibyte before the limit on memory is set.
            .env("MIMALLOC_ARENA_RESERVE", "16384")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in a terminal is the server's: it finishes open requests first.
            .process_group(0)
            .spawn()?;
        let mut helper = Self {
            process,
            socket,
            is_ready: false,
        };
        // The helper limits its CPU time itself. This is for one that is stopped or starved.
        let patience = limits.cpu_time.saturating_mul(3) + Duration::from_secs(5);
        helper.socket.set_read_timeout(Some(patience))?;
        helper.socket.set_write_timeout(Some(patience))?;
        wire::send(&mut helper.socket, sources)?;
        Ok(helper)
    }

    /// Renders one input.
    ///
    /// # Errors
    /// The template's own errors are in the inner result; [`Lost`] ends this helper's use.
    pub(super) fn render(
        &mut self,
        input: &[u8],
        limits: TemplateLimits,
    ) -> Result<Result<String, TemplateError>, Lost> {
        if !self.is_ready {
            if wire::receive(&mut self.socket).is_err() {
                return Err(match self.end(limits, 0) {
                    Lost::Limit(_) => Lost::Limit(TemplateError::Syntax {
                        message: "it takes too much memory, stack or time".to_owned(),
                    }),
                    gone @ Lost::Gone(_) => gone,
                });
            }
            self.is_ready = true;
        }
        let time = cpu_time(limits.cpu_time, input.len());
        if time > limits.cpu_time {
            let patience = time.saturating_mul(3) + Duration::from_secs(5);
            let _ = self.socket.set_read_timeout(Some(patience));
        }
        let answer = wire::send(&mut self.socket, input)
            .and_then(|()| wire::receive(&mut self.socket))
            .and_then(|bytes| wire::value(&bytes));
        match answer {
            Ok(Value::String(text)) => Ok(Ok(text)),
            Ok(Value::Object(mut answer)) => {
                let error = answer.remove("error").unwrap_or_default();
                let error =
                    serde_json::from_value(error).map_err(|_| self.end(limits, input.len()))?;
                Ok(Err(error))
            }
            _ => Err(self.end(limits, input.len())),
        }
    }

    /// Ends the process, or learns how it ended.
    fn end(&mut self, limits: TemplateLimits, input_bytes: usize) -> Lost {
        // A process that crashed has closed its socket before it is gone; killing it then changes nothing.
        let status = match self.process.try_wait() {
            Ok(Some(status)) => Ok(status),
            _ => self.process.kill().and_then(|()| self.process.wait()),
        };
        let limit = |error| Lost::Limit(error);
        match status.as_ref().ok().and_then(ExitStatus::signal) {
            Some(libc::SIGPROF) => limit(TemplateError::TooSlow {
                seconds: cpu_time(limits.cpu_time, input_bytes).as_secs_f64(),
            }),
            // A failed allocation aborts; a stack that overflows does one or the other.
            Some(libc::SIGABRT | libc::SIGSEGV | libc::SIGBUS) => {
                limit(TemplateError::OutOfMemory {
                    limit: limits.memory_bytes,
                })
            }
            _ => Lost::Gone(TemplateError::Helper {
                reason: match status {
                    Ok(status) => format!("it ended with {status}"),
                    Err(error) => error.to_string(),
                },
            }),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
