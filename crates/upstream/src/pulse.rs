//! Whether a server still answers. Owns when a silent one counts as not ready and when as lost; knows nothing
//! of what is asked of it.
//!
//! A process that is stopped, or a machine that is gone, closes no connection, so that only silence shows
//! it. Two bounds, because being wrong has two prices:
//!
//! - After the first, the server gets no new requests, and those of which their clients have seen nothing
//!   go elsewhere. If it was only slow, it is ready again with its next sign of life, and nothing was lost.
//! - After the second, `LOST_AFTER` times as long, the connection is given up, and with it the answers
//!   that have begun.
//!
//! A busy server must not flap. Whatever arrives from it is a sign of life, but not what a client reads late: that may
//! have waited here since before its server was lost. The probe of a server that sends nothing is a call that reads
//! nothing and waits for no lock, so that only a process without any CPU time misses one. Silence is counted in checks
//! that were made, not in time: a gateway that gets no CPU time itself makes no checks, and when it runs again it reads
//! what has arrived before it counts the next.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// Checks in a row without a sign of life before a server counts as silent. Several, so that no single
/// late answer does it.
const SILENT_CHECKS: u32 = 5;
/// Checks in the time after which a server counts as silent. It is one more than the checks without a sign of life,
/// because the last sign may come right after a check.
const CHECKS: u32 = SILENT_CHECKS + 1;
/// How many times longer a silence is until the server counts as lost.
const LOST_AFTER: u32 = 6;

/// The signs of life of one server.
#[derive(Debug)]
pub struct Pulse {
    heard: AtomicBool,
    silent: watch::Sender<bool>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            heard: AtomicBool::new(true),
            silent: watch::Sender::new(false),
        }
    }
}

impl Pulse {
    /// Notes a sign of life.
    pub fn hear(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// From now on, [`was_heard`](Self::was_heard) says whether there was one. For who is not watching.
    pub fn listen(&self) {
        self.heard.store(false, Ordering::Relaxed);
    }

    /// Whether there was one since then.
    pub fn was_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Whether there has been none for too long.
    pub fn is_silent(&self) -> bool {
        *self.silent.borrow()
    }

    /// Waits until the server is silent.
    pub async fn silence(&self) {
        let mut silent = self.silent.subscribe();
        // The sender lives as long as `self`.
        let _ = silent.wait_for(|silent| *silent).await;
    }

    /// There has been none for too long, as somebody else found.
    pub fn fall_silent(&self) {
        self.silent.send_replace(true);
    }

    /// Begins anew with a server that has just answered.
    pub fn reset(&self) {
        self.hear();
        self.silent.send_replace(false);
    }

    /// Watches until the server counts as lost. It counts as silent after a silence of at most `limit`.
    /// `changed` is called then, and again when it answers. `probe` asks it for a sign of life and resolves to
    /// whether there was one; it is not asked while it says something anyway.
    pub async fn watch<P: Future<Output = bool>>(
        &self,
        limit: Duration,
        probe: impl Fn() -> P,
        changed: impl Fn(bool),
    ) {
        let mut checks = tokio::time::interval(limit / CHECKS);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silence = Silence::default();
        let mut asked = pin!(None);
        loop {
            tokio::select! {
                // What has arrived is read before it is counted.
                biased;
                answered = answer(asked.as_mut()) => {
                    asked.set(None);
                    if answered {
                        self.hear();
                    }
                    continue;
                }
                _ = checks.tick() => {}
            }
            let heard = self.heard.swap(false, Ordering::Relaxed);
            silence.check(heard);
            let silent = silence.is_silent();
            let changes = |was: &mut bool| std::mem::replace(was, silent) != silent;
            if self.silent.send_if_modified(changes) {
                changed(silent);
            }
            if silence.is_lost() {
                return;
            }
            if !heard && asked.is_none() {
                asked.set(Some(probe()));
            }
        }
    }
}

/// The answer to a probe; none comes where there is none.
async fn answer<P: Future<Output = bool>>(probe: Pin<&mut Option<P>>) -> bool {
    match probe.as_pin_mut() {
        Some(probe) => probe.await,
        None => std::future::pending().await,
    }
}

/// How long a server has been silent, in checks.
#[derive(Debug, Default)]
struct Silence(u32);

impl Silence {
    /// A check, and whether there was a sign of life since the one before.
    fn check(&mut self, heard: bool) {
        self.0 = if heard { 0 } else { self.0.saturating_add(1) };
    }

    fn is_silent(&self) -> bool {
        self.0 >= SILENT_CHECKS
    }

    fn is_lost(&self) -> bool {
        // Never sooner than it is said: the last sign may have come right before a check.
        self.0 > CHECKS * LOST_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_checks_in_a_row_make_a_silence_and_one_sign_ends_it() {
        let mut silence = Silence::default();
        for round in 0..3 {
            for _ in 1..SILENT_CHECKS {
                silence.check(false);
                assert!(!silence.is_silent(), "round {round}");
            }
            silence.check(true);
        }
        for check in 1..=CHECKS * LOST_AFTER {
            silence.check(false);
            assert_eq!(silence.is_silent(), check >= SILENT_CHECKS);
            assert!(!silence.is_lost());
        }
        silence.check(false);
        assert!(silence.is_lost());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silence_is_noticed_within_its_limit_also_by_who_waits_for_it() {
        let (pulse, limit) = (Pulse::default(), Duration::from_secs(6));
        let started = tokio::time::Instant::now();
        let watching = pulse.watch(limit, async || false, |_| ());
        let waiting = async {
            // The last sign of life comes right after a check.
            tokio::time::sleep(Duration::from_millis(1)).await;
            pulse.hear();
            pulse.silence().await;
            started.elapsed()
        };
        let ((), noticed) = tokio::join!(watching, waiting);
        assert!(
            limit / 2 < noticed && noticed <= limit + Duration::from_millis(1),
            "{noticed:?}"
        );
    }

    #[tokio::test]
    async fn a_server_is_lost_no_sooner_than_is_said() {
        let started = tokio::time::Instant::now();
        let limit = Duration::from_millis(60);
        Pulse::default().watch(limit, async || false, |_| ()).await;
        let lost_after = started.elapsed();
        assert!(lost_after >= limit * LOST_AFTER, "{lost_after:?}");
    }

    #[tokio::test]
    async fn a_server_that_answers_is_watched_for_good_and_a_mute_one_is_lost() {
        let pulse = Pulse::default();
        let limit = Duration::from_millis(60);
        pulse
            .watch(limit, async || false, |silent| assert!(silent))
            .await;
        assert!(pulse.is_silent());
        pulse.reset();
        assert!(!pulse.is_silent());
        let told = || panic!("it answers every time");
        let watching = pulse.watch(limit, async || true, |_| told());
        assert!(
            tokio::time::timeout(limit * 5, watching).await.is_err(),
            "it is never lost"
        );
    }
}
