//! The way to the collector: a separate thread takes what has gathered and sends it. Owns when a batch is sent, and
//! what becomes of spans that nobody takes; the protocol is opentelemetry-otlp's.
//!
//! OpenTelemetry's own batch processor does not report how many spans it dropped, and sends from a runtime that it
//! shares; here, that would be the one that serves requests.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_otlp::SpanExporter as OtlpExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::sync::{mpsc, oneshot};

/// Requests whose spans may wait. With 8 spans each, what OpenTelemetry's own processor holds, eight times.
pub(crate) const WAITING: usize = 2048;
/// Spans in one message: OpenTelemetry's own default.
const BATCH: usize = 512;
/// How long a batch gathers: long enough for few messages, short enough to look at a request just made.
const GATHERING: Duration = Duration::from_secs(1);
/// How long a collector may take for a batch.
pub(crate) const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages to the thread.
pub(crate) enum Message {
    Spans(Vec<SpanData>),
    /// Sends what there is, and answers when it is gone.
    Flush(oneshot::Sender<()>),
}

/// Called with how many spans were dropped.
pub(crate) type OnDropped = Arc<dyn Fn(u64) + Send + Sync>;

/// Sends until every sender is gone.
pub(crate) async fn run(
    exporter: OtlpExporter,
    mut messages: mpsc::Receiver<Message>,
    endpoint: String,
    on_dropped: OnDropped,
) {
    let mut sender = Sender {
        exporter,
        endpoint,
        on_dropped,
        batch: Vec::new(),
        is_lost: false,
    };
    let mut due = None;
    loop {
        let gathered = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = messages.recv() => match message {
                Some(Message::Spans(spans)) => {
                    sender.batch.extend(spans);
                    if sender.batch.len() >= BATCH {
                        sender.send().await;
                        due = None;
                    } else {
                        due.get_or_insert_with(|| tokio::time::Instant::now() + GATHERING);
                    }
                }
                Some(Message::Flush(done)) => {
                    sender.send().await;
                    due = None;
                    // The caller may have given up.
                    let _ = done.send(());
                }
                None => return sender.send().await,
            },
            () = gathered => {
                sender.send().await;
                due = None;
            }
        }
    }
}

struct Sender {
    exporter: OtlpExporter,
    endpoint: String,
    on_dropped: OnDropped,
    batch: Vec<SpanData>,
    /// Whether the log has said that the collector accepts nothing.
    is_lost: bool,
}

impl Sender {
    async fn send(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        let count = batch.len() as u64;
        let sent = tokio::time::timeout(EXPORT_TIMEOUT, self.exporter.export(batch)).await;
        let failure = match sent {
            Ok(Ok(())) => {
                if std::mem::take(&mut self.is_lost) {
                    tracing::info!(endpoint = self.endpoint, "traces are exported again");
                }
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", EXPORT_TIMEOUT.as_secs()),
        };
        (self.on_dropped)(count);
        if !std::mem::replace(&mut self.is_lost, true) {
            tracing::warn!(
                endpoint = self.endpoint,
                error = failure,
                "traces cannot be exported, and are dropped until they can; requests are not affected"
            );
        }
    }
}
