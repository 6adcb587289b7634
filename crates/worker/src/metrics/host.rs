//! The machine's processors and memory, in Triton's families. Owns how long ago the last look was: the share of
//! time that processors work is that since then.

use procfs::{Current, CurrentSI, KernelStats, Meminfo, ProcError};

use super::page::Page;

/// Ticks of all processors since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    fn read() -> Result<Self, ProcError> {
        let time = KernelStats::current()?.total;
        let idle = time.idle + time.iowait.unwrap_or(0);
        let busy = time.user + time.nice + time.system;
        let interrupts = time.irq.unwrap_or(0) + time.softirq.unwrap_or(0);
        // The time of guests is in `user` and `nice` already.
        let all = idle + busy + interrupts + time.steal.unwrap_or(0);
        Ok(Self { idle, all })
    }

    /// The share of time, 0 to 1, that processors worked since `before`.
    fn utilization_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        if all == 0 {
            return 0.0;
        }
        let idle = self.idle.saturating_sub(before.idle).min(all);
        1.0 - idle as f64 / all as f64
    }
}

/// The machine, since the last look.
#[derive(Debug, Default)]
pub(super) struct Host {
    last: Ticks,
}

impl Host {
    /// Adds `nv_cpu_*`; adds nothing where `/proc` cannot be read.
    pub(super) fn write(&mut self, page: &mut Page) {
        if let Err(error) = self.try_write(page) {
            tracing::debug!(%error, "CPU and memory metrics are not available");
        }
    }

    fn try_write(&mut self, page: &mut Page) -> Result<(), ProcError> {
        let ticks = Ticks::read()?;
        let memory = Meminfo::current()?;
        let available = memory.mem_available.unwrap_or(memory.mem_free);
        let utilization = ticks.utilization_since(self.last);
        self.last = ticks;
        for (name, help, value) in [
            (
                "nv_cpu_utilization",
                "Share of time that the machine's processors work, since the last scrape",
                utilization,
            ),
            (
                "nv_cpu_memory_total_bytes",
                "The machine's memory",
                memory.mem_total as f64,
            ),
            (
                "nv_cpu_memory_used_bytes",
                "The machine's memory that is in use",
                memory.mem_total.saturating_sub(available) as f64,
            ),
        ] {
            page.single((name, "gauge", help), &[], value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_of_the_time_since_the_last_look() {
        let ticks = |idle, all| Ticks { idle, all };
        for (before, now, expected) in [
            (ticks(0, 0), ticks(75, 100), 0.25),
            (ticks(75, 100), ticks(80, 200), 0.95),
            (ticks(75, 100), ticks(75, 100), 0.0),
            // The kernel's idle time may run backwards by a tick.
            (ticks(75, 100), ticks(74, 110), 1.0),
        ] {
            let share = now.utilization_since(before);
            assert!(
                (share - expected).abs() < 1e-9,
                "{before:?} {now:?} {share}"
            );
        }
    }

    #[test]
    fn this_machine_has_memory() {
        let mut page = Page::default();
        Host::default().write(&mut page);
        let text = page.into_text();
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        assert!(value("nv_cpu_memory_used_bytes ") > 0.0);
        assert!(value("nv_cpu_memory_total_bytes ") > value("nv_cpu_memory_used_bytes "));
        assert!((0.0..=1.0).contains(&value("nv_cpu_utilization ")));
    }
}
