//! A template helper: parses one model's templates and renders what it is sent, under the operating
//! system's limits on its memory and CPU time. Owns those limits; when one is exceeded, or the stack
//! overflows, this process ends and its server continues. Knows nothing of how the server keeps helpers.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::engine::Engine;
use super::large_stack::STACK_BYTES;
use super::{Sources, wire};

/// Input that adds a second of CPU time.
const BYTES_PER_SECOND: u64 = 1 << 20;

/// The CPU time of rendering `input_bytes`.
pub(super) fn cpu_time(base: Duration, input_bytes: usize) -> Duration {
    base.saturating_add(Duration::from_secs(input_bytes as u64 / BYTES_PER_SECOND))
}

/// Runs a template helper, which talks to its server over its standard input, a socket; returns when the
/// server closes it. [`use_template_helper`](super::use_template_helper) names the command that calls this.
pub fn run_template_helper() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "its caller waits for it: nothing else runs meanwhile"
)]
fn serve() -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    prepare_process()?;
    let sources = wire::value(&wire::receive(&mut &socket)?)?;
    let sources: Sources = serde_json::from_value(sources)?;
    let thread = thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || {
            limit_memory(sources.limits.memory_bytes)?;
            match render_all(&socket, sources) {
                // The server has no more use for this process.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
                result => result,
            }
        })?;
    thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the rendering thread panicked")))
}

/// Says that the templates are parsed, then answers frame by frame until the socket ends.
fn render_all(mut socket: &UnixStream, sources: Sources) -> io::Result<()> {
    let limits = sources.limits;
    let engine = Engine::new(sources);
    limit_cpu(cpu_time(limits.cpu_time, 0))?;
    engine.compile();
    limit_cpu(Duration::ZERO)?;
    send(socket, &Value::Null)?;
    loop {
        let bytes = wire::receive(&mut socket)?;
        limit_cpu(cpu_time(limits.cpu_time, bytes.len()))?;
        let input = wire::input(wire::value(&bytes)?).ok_or(io::ErrorKind::InvalidData)?;
        drop(bytes);
        let reply = match engine.render(&input) {
            Ok(text) => Value::String(text),
            Err(error) => json!({ "error": error }),
        };
        drop(input);
        limit_cpu(Duration::ZERO)?;
        send(socket, &reply)?;
    }
}

fn send(mut socket: &UnixStream, reply: &Value) -> io::Result<()> {
    let frame = wire::frame(reply).map_err(io::Error::other)?;
    wire::send(&mut socket, &frame)
}

/// No core dumps of prompts, and the first to go where the machine runs out of memory.
fn prepare_process() -> io::Result<()> {
    set_limit(libc::RLIMIT_CORE, 0)?;
    // Not everywhere; the limit on memory does not depend on it.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    Ok(())
}

/// Lets this process have `bytes` of address space more than it has now.
fn limit_memory(bytes: u64) -> io::Result<()> {
    // SAFETY: no arguments in memory.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|sizes| sizes.split(' ').next()?.parse::<u64>().ok());
    // Without /proc what the process has already is counted too.
    let used = pages.unwrap_or(0).saturating_mul(page);
    set_limit(libc::RLIMIT_AS, used.saturating_add(bytes))
}

/// What libc calls one of the limits.
#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

#[allow(clippy::useless_conversion, reason = "the types differ by platform")]
fn set_limit(resource: Resource, value: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: value as libc::rlim_t,
        rlim_max: value as libc::rlim_t,
    };
    // SAFETY: the limit outlives the call.
    check(unsafe { libc::setrlimit(resource, &raw const limit) })
}

/// Ends this process by SIGPROF once it has used so much CPU time from now; zero lifts the limit.
fn limit_cpu(time: Duration) -> io::Result<()> {
    let nothing = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let timer = libc::itimerval {
        it_interval: nothing,
        it_value: libc::timeval {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_usec: time.subsec_micros().into(),
        },
    };
    // SAFETY: the timer outlives the call, and no old value is asked for.
    check(unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
