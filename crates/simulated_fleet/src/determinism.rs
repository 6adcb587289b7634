//! The clock and the randomness of a simulation's thread, in place of the system's. Code of the product and of its
//! libraries asks libc for both; in a binary that links this crate, libc's functions are these here. Threads that
//! simulate nothing get what the system has.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// What the simulated calendar shows at the start: 2026-01-01, 00:00 UTC.
pub(crate) const EPOCH: Duration = Duration::from_secs(1_767_225_600);

/// Seconds that simulations of this process have taken: clocks never go back, as some statics rely on.
static PAST_SECONDS: AtomicU64 = AtomicU64::new(1_000);

#[derive(Clone, Copy)]
struct Clock {
    /// What the monotonic clock showed at the start.
    base: Duration,
    /// The same as an instant; `None` while it is being read.
    origin: Option<Instant>,
    /// The time since the start where no host runs.
    between: Duration,
}

/// What has been drawn, by the length of a draw: a library's key that is drawn once in a process must not shift what
/// others get.
#[derive(Clone, Copy)]
struct Draws {
    seed: u64,
    of_length: [u64; 64],
}

thread_local! {
    static CLOCK: Cell<Option<Clock>> = const { Cell::new(None) };
    static RANDOM: Cell<Option<Draws>> = const { Cell::new(None) };
}

/// Simulated clocks and randomness for this thread until it is dropped. A thread serves for one simulation: libraries
/// keep keys and generators in it.
pub(crate) struct Determinism(());

impl Determinism {
    pub(crate) fn enter(seed: u64) -> Self {
        let base = Duration::from_secs(PAST_SECONDS.load(Ordering::SeqCst));
        let clock = Clock {
            base,
            origin: None,
            between: Duration::ZERO,
        };
        CLOCK.set(Some(clock));
        RANDOM.set(Some(Draws {
            seed,
            of_length: [0; 64],
        }));
        let origin = Some(Instant::now());
        CLOCK.set(Some(Clock { origin, ..clock }));
        Self(())
    }

    /// Sets what the clock shows between the hosts' turns.
    pub(crate) fn set_between(&self, elapsed: Duration) {
        CLOCK.set(CLOCK.get().map(|clock| Clock {
            between: elapsed,
            ..clock
        }));
    }
}

impl Drop for Determinism {
    fn drop(&mut self) {
        let past = elapsed().as_secs() + 1_000;
        PAST_SECONDS.fetch_add(past, Ordering::SeqCst);
        CLOCK.set(None);
        RANDOM.set(None);
    }
}

/// Virtual time since the simulation's start; zero outside one.
pub(crate) fn elapsed() -> Duration {
    CLOCK.get().map_or(Duration::ZERO, elapsed_of)
}

fn elapsed_of(clock: Clock) -> Duration {
    match clock.origin {
        // A host's own clock, which its timers follow, is paused and asks for no other.
        Some(origin) if Handle::try_current().is_ok() => {
            let now = tokio::time::Instant::now().into_std();
            now.saturating_duration_since(origin)
        }
        _ => clock.between,
    }
}

/// SplitMix64.
pub(crate) fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// libc's `clock_gettime`.
///
/// # Safety
/// As libc's: `time` points to a writable `timespec`.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(id: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    let Some(clock) = CLOCK.get() else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, id, time) } as libc::c_int;
    };
    let elapsed = elapsed_of(clock);
    let shown = match id {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => EPOCH + elapsed,
        _ => clock.base + elapsed,
    };
    // SAFETY: the caller's pointer is writable.
    unsafe {
        time.write(libc::timespec {
            tv_sec: shown.as_secs() as libc::time_t,
            tv_nsec: shown.subsec_nanos().into(),
        });
    }
    0
}

/// libc's `getrandom`.
///
/// # Safety
/// As libc's: `bytes` points to `length` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(
    bytes: *mut libc::c_void,
    length: libc::size_t,
    flags: libc::c_uint,
) -> libc::ssize_t {
    let Some(mut draws) = RANDOM.get() else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { libc::syscall(libc::SYS_getrandom, bytes, length, flags) }
            as libc::ssize_t;
    };
    // SAFETY: the caller's buffer has this many writable bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(bytes.cast::<u8>(), length) };
    let drawn = &mut draws.of_length[length % 64];
    *drawn += 1;
    let mut state = draws.seed ^ ((length as u64) << 48) ^ (*drawn << 24);
    for chunk in bytes.chunks_mut(8) {
        let random = mix(&mut state).to_le_bytes();
        chunk.copy_from_slice(&random[..chunk.len()]);
    }
    RANDOM.set(Some(draws));
    length as libc::ssize_t
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::RandomState;
    use std::hash::BuildHasher;
    use std::time::SystemTime;

    use super::*;

    fn drawn(seed: u64) -> (u64, u64) {
        let draw = move || {
            let _determinism = Determinism::enter(seed);
            let key = RandomState::new().hash_one(1);
            (key, u64::from_le_bytes(uuid_bytes()))
        };
        std::thread::spawn(draw).join().unwrap()
    }

    /// As libraries draw.
    fn uuid_bytes() -> [u8; 8] {
        let mut bytes = [0; 8];
        // SAFETY: the buffer is eight bytes.
        unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 8, 0) };
        bytes
    }

    #[test]
    fn the_seed_decides_what_is_drawn() {
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn clocks_stand_still_between_hosts_and_go_on_outside() {
        let simulated = std::thread::spawn(|| {
            let determinism = Determinism::enter(1);
            let (began, date) = (Instant::now(), SystemTime::now());
            assert_eq!(date.duration_since(SystemTime::UNIX_EPOCH).unwrap(), EPOCH);
            assert_eq!(began.elapsed(), Duration::ZERO);
            determinism.set_between(Duration::from_secs(3));
            assert_eq!(began.elapsed(), Duration::from_secs(3));
        });
        simulated.join().unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        assert!(now.unwrap() != EPOCH);
    }
}
