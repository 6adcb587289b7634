//! The list is what is served: every call of KServe's is in it, and nothing else. The page of the API shows it.

use std::collections::BTreeSet;

use inflight_rest::{MemoryCall, MemoryKind, MemoryRoute, Method as KserveMethod, NoRoute, Route};
use serde_json::Value;

use super::*;
use crate::openapi::operations::Method;

/// A path as a client writes it.
fn concrete(path: &str) -> String {
    let path = path.replace("{version}", "1");
    path.replace("{name}", "m")
        .replace("{model}", "m")
        .replace("{id}", "resp_1")
}

/// Which row of the document a call of KServe's is; a new call needs one.
fn documented_as(route: &Route, is_post: bool) -> &'static str {
    let model =
        |name: &inflight_rest::ModelRef, any: &'static str, version: &'static str| match name
            .version
            .is_empty()
        {
            true => any,
            false => version,
        };
    match route {
        Route::Live => "server_live",
        Route::Ready => "server_ready",
        Route::ServerMetadata => "server_metadata",
        Route::ModelReady(name) => model(name, "model_ready", "version_ready"),
        Route::ModelMetadata(name) => model(name, "model_metadata", "version_metadata"),
        Route::ModelConfig(name) => model(name, "model_config", "version_config"),
        Route::Statistics(name) if name.name.is_empty() => "statistics",
        Route::Statistics(name) => model(name, "model_statistics", "version_statistics"),
        Route::Infer(name) => model(name, "infer", "version_infer"),
        Route::Generate(name) => model(name, "generate", "version_generate"),
        Route::GenerateStream(name) => model(name, "generate_stream", "version_generate_stream"),
        Route::TraceSettings(name) => match (name.is_empty(), is_post) {
            (true, false) => "trace_settings",
            (true, true) => "change_trace_settings",
            (false, false) => "model_trace_settings",
            (false, true) => "change_model_trace_settings",
        },
        Route::LogSettings if is_post => "change_log_settings",
        Route::LogSettings => "log_settings",
        Route::RepositoryIndex => "repository_index",
        Route::Load(_) => "load_model",
        Route::Unload(_) => "unload_model",
        Route::SharedMemory(MemoryRoute { kind, call, region }) => {
            let is_system = *kind == MemoryKind::System;
            let of = |system, cuda| if is_system { system } else { cuda };
            match (call, region.is_empty()) {
                (MemoryCall::Status, true) => of("system_memory_regions", "cuda_memory_regions"),
                (MemoryCall::Status, false) => of("system_memory_region", "cuda_memory_region"),
                (MemoryCall::Register, _) => of("register_system_memory", "register_cuda_memory"),
                (MemoryCall::Unregister, true) => {
                    of("unregister_all_system_memory", "unregister_all_cuda_memory")
                }
                (MemoryCall::Unregister, false) => {
                    of("unregister_system_memory", "unregister_cuda_memory")
                }
            }
        }
    }
}

#[test]
fn every_call_of_kserves_is_in_the_document_and_nothing_else() {
    let mut found = 0;
    for operation in kserve::CALLS {
        let path = concrete(operation.path);
        let (method, other) = match operation.method {
            Method::Get => (KserveMethod::Get, KserveMethod::Post),
            _ => (KserveMethod::Post, KserveMethod::Get),
        };
        let route = Route::parse(method, &path).unwrap_or_else(|_| panic!("{path}"));
        let is_post = method == KserveMethod::Post;
        assert_eq!(documented_as(&route, is_post), operation.id);
        let both = kserve::CALLS
            .iter()
            .filter(|one| one.path == operation.path);
        match (both.count(), Route::parse(other, &path)) {
            (1, parsed) => assert_eq!(parsed, Err(NoRoute::WrongMethod(method)), "{path}"),
            (_, parsed) => assert_eq!(parsed, Ok(route), "{path}"),
        }
        found += 1;
    }
    // As many as `documented_as` names.
    assert_eq!(found, 37);
}

#[test]
fn references_lead_somewhere_and_ids_are_distinct() {
    fn references(value: &Value, all: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    match value.as_str() {
                        Some(target) if name == "$ref" => all.push(target.to_owned()),
                        _ => references(value, all),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, all)),
            _ => {}
        }
    }
    let document = openapi::document(operations());
    let mut all = Vec::new();
    references(&document, &mut all);
    assert!(all.len() > 40);
    for target in all {
        let pointer = target.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{target}");
    }
    let ids: BTreeSet<&str> = operations().map(|operation| operation.id).collect();
    assert_eq!(ids.len(), operations().count());
}

#[test]
fn the_page_has_every_operation_and_runs_nothing() {
    let page = openapi::html(&openapi::document(operations()), true);
    for operation in operations() {
        assert!(page.contains(operation.path), "{}", operation.path);
    }
    assert!(page.contains("<code>temperature</code>") && page.contains("0.0 to 2.0"));
    for foreign in ["<script", "http://", "https://", "src="] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

#[test]
fn the_page_of_the_api_lists_every_path() {
    let mut rows = String::from("| call | key needed | what it does |\n|---|---|---|\n");
    for operation in ROUTES {
        let method = operation.method.as_str().to_uppercase();
        let key = match operation.area.access {
            Access::Everybody => "no",
            Access::Api | Access::Key => "yes",
        };
        let (path, summary) = (operation.path, operation.summary);
        rows.push_str(&format!("| `{method} {path}` | {key} | {summary} |\n"));
    }
    let page = "docs/reference/api.md";
    inflight_testkit::page::check_part(
        page,
        "\n## Paths\n\n",
        "\n\n`/v1/messages`",
        rows.trim_end(),
    );
}
