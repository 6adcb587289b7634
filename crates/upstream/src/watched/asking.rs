//! Asks a server for its models and its load, once a second. Owns where metrics are, and what a missing answer means;
//! what becomes of an answer is `server`'s.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::{MissedTickBehavior, interval};

use super::figures::Figures;
use super::getter::{GetError, Getter};
use super::models::{self, Found};
use crate::placement::Fault;
use crate::rpc;

/// Making metrics costs these servers some milliseconds.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// For one answer, so that a server that hangs shows within 2 s.
const ANSWER: Duration = Duration::from_millis(900);
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

/// Asks until nobody is there any more; returns why.
pub(super) async fn ask(getter: &Getter, seen: Sender<Seen>) -> String {
    let mut ticks = interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut metrics = None;
    loop {
        ticks.tick().await;
        let load = load(getter, &mut metrics).await;
        let models = getter.get(MODELS, ANSWER).await;
        for answer in [load, models.map(|answer| listed(&answer))] {
            let said = match answer {
                Ok(Ok(said)) => said,
                Ok(Err(reason)) => return reason,
                Err(error) if error.is_gone() => return rpc::describe(&error),
                // The pulse finds out whether it still answers.
                Err(_) => continue,
            };
            if seen.send(said).await.is_err() {
                return "nobody watches it any more".to_owned();
            }
        }
    }
}

/// What an answer says, or why it cannot be used.
type Answer = Result<Seen, String>;

fn listed(answer: &[u8]) -> Answer {
    models::read(answer).map(Seen::Models)
}

/// The load, from where metrics were found.
async fn load(getter: &Getter, metrics: &mut Option<&'static str>) -> Result<Answer, GetError> {
    let Some(path) = *metrics else {
        let found = find_metrics(getter).await?;
        let (path, figures) = found.unzip();
        *metrics = path;
        return Ok(Ok(Seen::Load(figures)));
    };
    let fault = match getter.get(path, ANSWER).await {
        Ok(answer) => match read(&answer) {
            Some(figures) => return Ok(Ok(Seen::Load(Some(figures)))),
            None => Fault::Lost,
        },
        Err(error) if error.is_gone() => return Err(error),
        Err(GetError::Late { .. }) => Fault::Late,
        Err(_) => Fault::Lost,
    };
    Ok(Ok(Seen::NoLoad(fault)))
}

/// Where a known engine's metrics are, and what they say; `None`: nowhere, so far. An engine may add them with its first
/// requests.
async fn find_metrics(getter: &Getter) -> Result<Option<(&'static str, Figures)>, GetError> {
    for path in METRICS {
        match getter.get(path, ANSWER).await {
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

fn read(answer: &[u8]) -> Option<Figures> {
    Figures::read(&String::from_utf8_lossy(answer))
}
