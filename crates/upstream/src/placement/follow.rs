//! A worker's stream of what its cache holds, followed for as long as it is connected. Owns when a stream is asked for
//! again; what its messages mean is the [`Seat`]'s.

use std::convert::Infallible;
use std::time::Duration;

use inflight_kserve::cache_state::cache_state_client::CacheStateClient;
use inflight_kserve::cache_state::{CacheUpdate, WatchCacheRequest};
use tokio::time::{sleep, timeout};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::seat::{Next, Seat};
use super::trust::{Fault, WITHHELD};
use crate::pulse::Pulse;

/// A worker says something twice a second.
const LATE: Duration = Duration::from_millis(1500);
/// How long to wait before a stream is asked for again.
const AGAIN: Duration = Duration::from_millis(500);

/// Follows the stream of a model, of which `seat` is the worker's place. Each message is a sign of life.
pub async fn follow(
    mut client: CacheStateClient<Channel>,
    model: &str,
    address: &str,
    seat: &Seat,
    pulse: &Pulse,
) -> Infallible {
    loop {
        let request = WatchCacheRequest {
            model: model.to_owned(),
        };
        let fault = match timeout(LATE, client.watch(request)).await {
            Ok(Ok(stream)) => match read(stream.into_inner(), address, seat, pulse).await {
                Some(fault) => fault,
                None => continue,
            },
            // A worker of an earlier release.
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                return std::future::pending().await;
            }
            Ok(Err(_)) => Fault::Lost,
            Err(_) => Fault::Late,
        };
        if seat.cache_reports().reason() != Some(fault.text()) {
            tracing::warn!(worker = %address, model, "worker's cache unknown: {}", fault.text());
        }
        seat.doubt(fault);
        sleep(match fault {
            Fault::Lies => WITHHELD,
            _ => AGAIN,
        })
        .await;
    }
}

/// Reads until there is a fault; `None`: until another snapshot is wanted.
async fn read(
    mut stream: impl Stream<Item = Result<CacheUpdate, Status>> + Unpin,
    address: &str,
    seat: &Seat,
    pulse: &Pulse,
) -> Option<Fault> {
    seat.begin();
    loop {
        let update = match timeout(LATE, stream.next()).await {
            Ok(Some(Ok(update))) => update,
            Ok(Some(Err(_)) | None) => return Some(Fault::Lost),
            Err(_) => return Some(Fault::Late),
        };
        pulse.hear();
        let was = seat.cache_reports();
        match seat.take(&update) {
            Ok(Next::Message) => {}
            Ok(Next::Snapshot) => return None,
            Err(fault) => return Some(fault),
        }
        if was.reason().is_some() {
            tracing::info!(worker = %address, "worker's cache known again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use inflight_kserve::cache_state::{CacheShape, WorkerLoad};
    use tokio::sync::mpsc;
    use tokio::time::{Instant, advance};
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;
    use crate::metrics::Placements;
    use crate::placement::{CacheReports, Placement};

    fn message(sequence: u64) -> Result<CacheUpdate, Status> {
        Ok(CacheUpdate {
            sequence,
            snapshot_begin: sequence == 1,
            snapshot_end: sequence == 1,
            shape: (sequence == 1).then(|| CacheShape {
                tokens_per_block: 16,
                reports_blocks: true,
                ..CacheShape::default()
            }),
            load: Some(WorkerLoad::default()),
            ..CacheUpdate::default()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_read_until_it_is_late_lost_or_wrong() {
        let failed = || Err(Status::unavailable("gone"));
        for (messages, stays_open, expected) in [
            (vec![message(1), message(2)], true, Fault::Late),
            (vec![message(1), message(2)], false, Fault::Lost),
            (vec![message(1), failed()], true, Fault::Lost),
            (vec![message(1), message(3)], true, Fault::Gap),
            (vec![message(1), message(2), message(2)], true, Fault::Gap),
        ] {
            let seat = Arc::new(Placement::new(Placements::default()))
                .join()
                .unwrap();
            let pulse = Pulse::default();
            let (sender, receiver) = mpsc::channel(8);
            let began = Instant::now();
            for one in messages {
                sender.send(one).await.unwrap();
            }
            let _open = stays_open.then_some(sender);
            assert_eq!(
                read(ReceiverStream::new(receiver), "w:1", &seat, &pulse).await,
                Some(expected)
            );
            assert_eq!(
                seat.cache_reports(),
                CacheReports::Reporting,
                "{expected:?}"
            );
            assert!(began.elapsed() <= Duration::from_secs(2), "{expected:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeats_keep_it() {
        let seat = Arc::new(Placement::new(Placements::default()))
            .join()
            .unwrap();
        let (sender, receiver) = mpsc::channel(1);
        let task = tokio::spawn({
            let seat = Arc::clone(&seat);
            async move {
                read(
                    ReceiverStream::new(receiver),
                    "w:1",
                    &seat,
                    &Pulse::default(),
                )
                .await
            }
        });
        for sequence in 1..=20 {
            sender.send(message(sequence)).await.unwrap();
            advance(Duration::from_millis(500)).await;
            assert!(!task.is_finished());
        }
        drop(sender);
        assert_eq!(task.await.unwrap(), Some(Fault::Lost));
    }
}
