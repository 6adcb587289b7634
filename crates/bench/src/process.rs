//! What Linux says of a process: CPU time, memory, where it may run. Owns every system call that is
//! not a socket.

use std::fs;
use std::io;
use std::time::Duration;

/// The resolution of `/proc/PID/stat`, twice: each of two readings is off by up to one tick.
const TICKS_ERROR: Duration = Duration::from_millis(20);

/// CPU time and memory of a process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// User and system time of all threads, also of those that ended, in ticks of 10 ms.
    pub(crate) ticks: Duration,
    /// The same in nanoseconds, of the threads that are alive; zero where the kernel does not say.
    pub(crate) scheduled: Duration,
    pub(crate) rss_bytes: u64,
    pub(crate) peak_rss_bytes: u64,
}

impl Usage {
    /// CPU time between an earlier reading and this one.
    ///
    /// `utime + stime` of `/proc/PID/stat` is the measure; a short or paced run would be a handful of
    /// its ticks, so the scheduler's finer figure is taken where the two agree. They do not where
    /// threads ended in between, whose time is lost to the finer one.
    pub(crate) fn cpu_since(&self, before: &Self) -> Duration {
        let ticks = self.ticks.saturating_sub(before.ticks);
        let scheduled = self.scheduled.saturating_sub(before.scheduled);
        if scheduled + TICKS_ERROR > ticks && !scheduled.is_zero() {
            scheduled
        } else {
            ticks
        }
    }
}

/// Reads a process's usage.
///
/// # Errors
/// When there is no such process, or `/proc` is not Linux's.
pub(crate) fn usage(pid: u32) -> io::Result<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = parse_stat(&stat).ok_or_else(|| malformed("stat"))?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let (rss_bytes, peak_rss_bytes) = parse_status(&status).ok_or_else(|| malformed("status"))?;
    Ok(Usage {
        ticks: Duration::from_micros(ticks.saturating_mul(1_000_000 / ticks_per_second())),
        scheduled: scheduled(pid).unwrap_or_default(),
        rss_bytes,
        peak_rss_bytes,
    })
}

/// The usage of this process. Reading it cannot fail on Linux; elsewhere it is zero.
pub(crate) fn own_usage() -> Usage {
    usage(std::process::id()).unwrap_or_default()
}

fn malformed(file: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("/proc/PID/{file} is not as Linux writes it"),
    )
}

/// Nanoseconds on a CPU, summed over the threads alive.
fn scheduled(pid: u32) -> io::Result<Duration> {
    let mut total = 0_u64;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        total += parse_schedstat(&text).ok_or_else(|| malformed("schedstat"))?;
    }
    Ok(Duration::from_nanos(total))
}

/// `utime + stime` in ticks. The command in parentheses may itself hold spaces and parentheses.
fn parse_stat(text: &str) -> Option<u64> {
    let (_, after_command) = text.rsplit_once(')')?;
    let mut fields = after_command.split_ascii_whitespace();
    // After the command: state is field 3, utime 14, stime 15.
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

fn parse_schedstat(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Resident and peak resident bytes.
fn parse_status(text: &str) -> Option<(u64, u64)> {
    let kilobytes = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    // A zombie or a kernel thread has no memory and no such lines.
    let rss = kilobytes("VmRSS:").unwrap_or(0);
    let peak = kilobytes("VmHWM:").unwrap_or(rss);
    text.contains("Pid:").then_some((rss * 1024, peak * 1024))
}

fn ticks_per_second() -> u64 {
    // SAFETY: sysconf reads a constant of the system and touches no memory of ours.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).unwrap_or(100).clamp(1, 1_000_000)
}

/// Lets the calling thread, and the processes and threads it starts from now on, run on one core only.
///
/// # Errors
/// When the core does not exist or is not ours to use.
pub(crate) fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("no core {core}"),
        ));
    }
    // SAFETY: a cpu_set_t is plain bits, for which all zeros is a value; the core was checked to be
    // within it, and the kernel only reads the set during the call.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Raises the limit of open files to what the system allows and returns it.
pub(crate) fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls get a pointer to a whole rlimit of ours, which outlives them.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0
            && limit.rlim_cur < limit.rlim_max
        {
            let wanted = libc::rlimit {
                rlim_cur: limit.rlim_max,
                ..limit
            };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) == 0 {
                limit = wanted;
            }
        }
    }
    limit.rlim_cur
}

/// Asks a process to end. One that is gone already is not an error.
pub(crate) fn terminate(pid: u32) {
    let Ok(pid) = libc::pid_t::try_from(pid) else {
        return;
    };
    // SAFETY: kill touches no memory; the pid is a child of ours that was not waited for yet, so it
    // cannot have become another process.
    unsafe {
        libc::kill(pid, libc::SIGTERM);
    }
}

/// Lets Ctrl-C end this process again. Under Python it would only set a flag that native code never
/// looks at.
pub(crate) fn end_on_interrupt() {
    // SAFETY: the default action needs no handler of ours.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_DFL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_whatever_the_command_is_called() {
        let tail = " S 1 2 3 4 -1 4194304 95 0 0 0 70 5 9 9 20 0 1 0 234952 3133440 359";
        for command in ["(cat)", "(a b)", "(tok) 1 2 (io)", "(())"] {
            assert_eq!(
                parse_stat(&format!("42 {command}{tail}")),
                Some(75),
                "{command}"
            );
        }
        for text in [
            "",
            "42 (cat",
            "42 (cat) S 1 2",
            "42 (cat) S 1 2 3 4 5 6 7 8 9 0 x y",
        ] {
            assert_eq!(parse_stat(text), None, "{text}");
        }
    }

    #[test]
    fn status_gives_memory_in_bytes() {
        let text = "Name:\tworker\nPid:\t42\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(parse_status(text), Some((1 << 20, 2 << 20)));
        assert_eq!(parse_status("Name:\tzombie\nPid:\t42\n"), Some((0, 0)));
        assert_eq!(parse_status("nothing of the kind"), None);
    }

    #[test]
    fn schedstat_starts_with_time_on_cpu() {
        assert_eq!(parse_schedstat("175117 3779382 2\n"), Some(175_117));
        assert_eq!(parse_schedstat("\n"), None);
    }

    #[test]
    fn own_time_grows_with_work() {
        let before = own_usage();
        let mut sum = 0_u64;
        while own_usage().cpu_since(&before) < Duration::from_millis(30) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0 && before.rss_bytes > 1 << 20);
    }

    #[test]
    fn the_finer_figure_counts_unless_threads_ended() {
        let reading = |ticks, scheduled| Usage {
            ticks: Duration::from_millis(ticks),
            scheduled: Duration::from_millis(scheduled),
            ..Default::default()
        };
        for (before, after, expected) in [
            (reading(100, 101), reading(110, 116), 15),
            (reading(100, 101), reading(200, 103), 100),
            (reading(100, 101), reading(110, 40), 10),
            (reading(100, 0), reading(150, 0), 50),
        ] {
            assert_eq!(after.cpu_since(&before), Duration::from_millis(expected));
        }
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(usage(u32::MAX).is_err());
    }
}
