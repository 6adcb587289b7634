//! Completions: prompts are texts or token ids, one or many, taken as they are.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use inflight_openai::ApiError;
use inflight_openai::completions::{self, Prompt};

use super::generate::{self, Prepared};
use super::prompt::{self, SpecialTokens};
use crate::app::App;
use crate::stream::body::Shape;
use crate::translate::ask::Ask;

/// `POST /v1/completions`.
pub async fn create_completion(State(app): State<Arc<App>>, request: Request) -> Response {
    generate::respond(app, request, Shape::Completion, prepare).await
}

fn prepare(app: &App, body: &[u8]) -> Result<Prepared, ApiError> {
    let parsed = completions::parse(body)?;
    let mut request = parsed.request;
    let (entry, served) = generate::locate(app, &request.generation.model)?;
    let ask = Ask::completion(&request);
    let started = Instant::now();
    let mut prompts = Vec::with_capacity(request.prompts.len());
    for prompt in std::mem::take(&mut request.prompts) {
        prompts.push(match prompt {
            Prompt::Text(text) => {
                prompt::text(&ask, &served, text, SpecialTokens::Added, request.echo)?
            }
            Prompt::Tokens(tokens) => prompt::tokens(&ask, &served, &tokens, request.echo)?,
        });
    }
    app.metrics
        .tokenize_time
        .observe(started.elapsed().as_secs_f64());
    Ok(Prepared {
        entry,
        served,
        log_probs: request.logprobs,
        generation: request.generation,
        prompts,
        ignored: parsed.ignored,
    })
}
