//! `/openapi.json` and `/docs`: the gateway's HTTP API for programs and for people. Owns how they are put together:
//! bodies are the tables' and types' of inflight-openai and inflight-anthropic, and paths
//! `served`'s.

mod operations;
mod page;
mod served;

use std::sync::{Arc, LazyLock, OnceLock};

use axum::extract::State;
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http::{HeaderValue, header};
use inflight_openai::error_schema;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use schemars::transform::ReplaceBoolSchemas;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use self::operations::{Body, Error, Operation, Place};
use self::served::OPERATIONS;
use crate::state::AppState;

/// Nothing on the page runs, and nothing is fetched for it; it has this one style.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = BASE64_STANDARD.encode(Sha256::digest(page::STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; frame-ancestors 'none'"
    )
});

/// `GET /openapi.json`. The document is made once.
pub(crate) async fn get_document() -> Response {
    static JSON: OnceLock<Bytes> = OnceLock::new();
    let made = JSON.get_or_init(|| Bytes::from(document().to_string()));
    answer(made.clone(), "application/json")
}

/// `GET /docs`. The page is made once.
pub(crate) async fn get_page(State(state): State<Arc<AppState>>) -> Response {
    static PAGES: [OnceLock<Bytes>; 2] = [OnceLock::new(), OnceLock::new()];
    let has_console = state.requests.is_some();
    let page = &PAGES[usize::from(has_console)];
    let made = page.get_or_init(|| Bytes::from(page::html(&document(), has_console)));
    let mut response = answer(made.clone(), "text/html; charset=utf-8");
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&POLICY) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

fn answer(body: Bytes, media_type: &'static str) -> Response {
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

fn document() -> Value {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    // `true` and `{}` mean the same, and generators of clients know only the latter.
    let mut objects = ReplaceBoolSchemas::default();
    objects.skip_additional_properties = true;
    let mut generator = settings.with_transform(objects).into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for operation in OPERATIONS {
        let item = paths.entry(operation.path).or_insert_with(|| json!({}));
        item[operation.method.as_str()] = described(operation, &mut generator);
    }
    let mut schemas = generator.take_definitions(true);
    schemas.insert("Error".to_owned(), error_schema());
    schemas.insert(
        "AnthropicError".to_owned(),
        inflight_anthropic::error::error_schema(),
    );
    schemas.insert(
        "TritonError".to_owned(),
        json!({"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}),
    );
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Inflight",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Large language models behind the OpenAI API, Anthropic's Messages API and KServe. \
                A key is needed only where the gateway was started with one. Fields of a request that are not \
                listed are ignored and reported in the response header `x-inflight-ignored-fields`; those in \
                `x-inflight-refused-fields` are a 400.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    })
}

fn described(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let mut answers = Map::new();
    let mut content = Map::new();
    if let Some(media_type) = operation.answer.media_type() {
        let schema = operation.answer.schema(generator);
        content.insert(media_type.to_owned(), json!({"schema": schema}));
    }
    if operation.streams {
        let events = json!({"schema": {"type": "string"}});
        content.insert("text/event-stream".to_owned(), events);
    }
    let mut answer = json!({"description": operation.answer_text()});
    if !content.is_empty() {
        answer["content"] = content.into();
    }
    answers.insert("200".to_owned(), answer);
    if let Some(error) = operation.error.reference() {
        answers.insert(
            "default".to_owned(),
            json!({
                "description": "What failed, and what to do.",
                "content": {"application/json": {"schema": {"$ref": error}}},
            }),
        );
    }
    let mut described = json!({
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": answers,
    });
    let parameters: Vec<Value> = operation.parameters().map(parameter).collect();
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(schema) = operation.body.schema() {
        described["requestBody"] = json!({
            "required": operation.body != Body::AnyOrNone,
            "content": {"application/json": {"schema": schema}},
        });
    }
    if operation.error != Error::None {
        // The first: where the gateway was started without a key.
        described["security"] = json!([{}, {"bearer": []}, {"x-api-key": []}]);
    }
    described
}

fn parameter((name, place, schema): (&str, Place, Value)) -> Value {
    json!({
        "name": name,
        "in": place.as_str(),
        "required": place == Place::Path,
        "schema": schema,
    })
}

#[cfg(test)]
mod tests;
