//! `/openapi.json` and `/docs`: the gateway's HTTP API for programs and for people. Owns how they are put together:
//! bodies are the tables' and types' of inflight-openai and inflight-anthropic, and paths `routes`'.

pub(crate) mod operations;
mod page;

use std::sync::LazyLock;

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

use self::operations::Place;
pub(crate) use self::operations::{Access, Area, Body, Error, Operation, ResponseBody, Type};
pub(crate) use self::page::html;

/// Nothing on the page runs, and nothing is fetched for it; it has this one style.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = BASE64_STANDARD.encode(Sha256::digest(page::STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; frame-ancestors 'none'"
    )
});

/// Answers with the document.
pub(crate) fn json(document: Bytes) -> Response {
    answer(document, "application/json")
}

/// Answers with the page.
pub(crate) fn page(page: Bytes) -> Response {
    let mut response = answer(page, "text/html; charset=utf-8");
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

/// The document of these operations, those of one path together.
pub(crate) fn document(operations: impl Iterator<Item = &'static Operation>) -> Value {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    // `true` and `{}` mean the same, and generators of clients know only the latter.
    let mut objects = ReplaceBoolSchemas::default();
    objects.skip_additional_properties = true;
    let mut generator = settings.with_transform(objects).into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations {
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
    if let Some(error) = operation.area.error.reference() {
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
        "tags": [operation.area.tag],
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
            "content": {operation.body.media_type(): {"schema": schema}},
        });
    }
    if operation.area.error != Error::None {
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
