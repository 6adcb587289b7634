//! Asks a server for its models and its load, time and again. Owns where metrics are, what a missing answer means, and
//! that an answer is a sign of life; what becomes of an answer is `server`'s.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::Sender;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::figures::Figures;
use super::getter::{GetError, Getter};
use super::models::{self, Found};
use crate::placement::Fault;
use crate::pulse::Pulse;
use crate::rpc;

/// Making metrics costs these servers some milliseconds.
const LOAD_EVERY: Duration = Duration::from_secs(1);
/// Listing models costs them little, and shows that they live.
const MODELS_EVERY: Duration = Duration::from_millis(500);
/// For one answer, so that a server that hangs shows within 2 s.
const ANSWER: Duration = Duration::from_millis(900);
/// How long a server may be silent before it counts as not ready. Two answers may be late.
pub(super) const LEAST_SILENCE: Duration = Duration::from_millis(1500);
pub(super) const MODELS: &str = "/v1/models";
/// Where metrics are; trtllm-serve has something else at the first.
const METRICS: [&str; 2] = ["/metrics", "/prometheus/metrics"];

/// What a server answered.
#[derive(Debug)]
pub(super) enum Seen {
    /// A second passed, with this load where the server says it.
    Load(Option<Figures>),
    /// It says its load no longer, or not in time.
    NoLoad(Fault),
    Models(BTreeMap<String, Found>),
}

/// One connection to a server.
#[derive(Debug)]
pub(super) struct Asker<'a> {
    pub(super) getter: Getter,
    pub(super) pulse: &'a Pulse,
    pub(super) seen: Sender<Seen>,
}

impl Asker<'_> {
    /// Asks for the models until nobody is there any more; returns why.
    pub(super) async fn ask_models(&self) -> String {
        let mut ticks = ticks(MODELS_EVERY);
        loop {
            ticks.tick().await;
            let found = match self.get(MODELS).await {
                Ok(answer) => models::read(&answer),
                Err(error) if error.is_gone() => return rpc::describe(&error),
                // The pulse finds out whether it still answers.
                Err(_) => continue,
            };
            match found {
                Ok(found) => self.say(Seen::Models(found)).await,
                Err(reason) => return reason,
            }
        }
    }

    /// Asks for the load until nobody is there any more; returns why.
    pub(super) async fn ask_load(&self) -> String {
        let mut ticks = ticks(LOAD_EVERY);
        let mut metrics = None;
        loop {
            ticks.tick().await;
            match self.load(&mut metrics).await {
                Ok(said) => self.say(said).await,
                Err(error) if error.is_gone() => return rpc::describe(&error),
                Err(_) => {}
            }
        }
    }

    /// The load, from where metrics were found.
    async fn load(&self, metrics: &mut Option<&'static str>) -> Result<Seen, GetError> {
        let Some(path) = *metrics else {
            let (path, figures) = self.find_metrics().await?.unzip();
            *metrics = path;
            return Ok(Seen::Load(figures));
        };
        Ok(Seen::NoLoad(match self.get(path).await {
            Ok(answer) => match read(&answer) {
                Some(figures) => return Ok(Seen::Load(Some(figures))),
                None => Fault::Lost,
            },
            Err(error) if error.is_gone() => return Err(error),
            Err(GetError::Late { .. }) => Fault::Late,
            Err(_) => Fault::Lost,
        }))
    }

    /// Where a known engine's metrics are, and what they say; `None`: nowhere, so far. An engine may add them with its first
    /// requests.
    async fn find_metrics(&self) -> Result<Option<(&'static str, Figures)>, GetError> {
        for path in METRICS {
            match self.get(path).await {
                Ok(answer) => {
                    if let Some(figures) = read(&answer) {
                        return Ok(Some((path, figures)));
                    }
                }
                // It may be elsewhere, but not sooner.
                Err(error) if error.is_gone() || matches!(error, GetError::Late { .. }) => {
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        Ok(None)
    }

    async fn get(&self, path: &'static str) -> Result<Bytes, GetError> {
        let answer = self.getter.get(path, ANSWER).await;
        // An error is one, too, unless it is about the way to the server.
        if !matches!(
            answer,
            Err(GetError::Connect { .. } | GetError::Lost { .. } | GetError::Late { .. })
        ) {
            self.pulse.hear();
        }
        answer
    }

    async fn say(&self, said: Seen) {
        // Its reader lives as long as this is polled.
        let _ = self.seen.send(said).await;
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn read(answer: &[u8]) -> Option<Figures> {
    Figures::read(&String::from_utf8_lossy(answer))
}
