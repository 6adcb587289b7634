//! Liveness and readiness over HTTP, on the metrics port. Owns their form; who knows the state passes it in.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::engine::Health;

#[derive(Serialize)]
struct Body<'a> {
    status: &'a str,
    /// What it does meanwhile, or why it does not take requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<&'a str>,
    /// For how long it has not been ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<u64>,
}

/// The process answers.
pub(crate) fn live() -> Response {
    respond(StatusCode::OK, "live", None, None)
}

/// It does not take requests: a word, what it does, and for how long.
pub(crate) fn not_ready(status: &str, stage: &str, since: Duration) -> Response {
    let code = StatusCode::SERVICE_UNAVAILABLE;
    respond(code, status, Some(stage), Some(since.as_secs()))
}

/// Whether a worker that has loaded its models takes requests for all of them; each by its name.
pub(crate) fn ready(models: &[(&str, Health)], since: Duration) -> Response {
    let waiting = models
        .iter()
        .find_map(|(name, health)| Some((name, health.stage()?)));
    match waiting {
        None => respond(StatusCode::OK, "ready", None, None),
        Some((name, (status, stage))) if models.len() > 1 => {
            not_ready(status, &format!("`{name}`: {stage}"), since)
        }
        Some((_, (status, stage))) => not_ready(status, stage, since),
    }
}

fn respond(code: StatusCode, status: &str, stage: Option<&str>, seconds: Option<u64>) -> Response {
    let body = Body {
        status,
        stage,
        seconds,
    };
    (code, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn the_first_model_that_is_not_ready_is_named_among_several() {
        let up = || Health {
            proven: true,
            ..Health::default()
        };
        let failed = || Health {
            failed: Some("out of memory".to_owned()),
            ..up()
        };
        let table: [(&[(&str, Health)], &str); 4] = [
            (&[("a", up()), ("b", up())], r#"{"status":"ready"}"#),
            (
                &[("a", failed())],
                r#"{"status":"failed","stage":"out of memory","seconds":3}"#,
            ),
            (
                &[("a", up()), ("b", failed())],
                r#"{"status":"failed","stage":"`b`: out of memory","seconds":3}"#,
            ),
            (
                &[("a", Health::default()), ("b", failed())],
                r#"{"status":"starting","stage":"`a`: waiting for the executor's first token","seconds":3}"#,
            ),
        ];
        for (models, body) in table {
            let response = ready(models, Duration::from_secs(3));
            assert_eq!(response.status().is_success(), body.contains("ready"));
            let sent = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(sent, body);
        }
    }
}
