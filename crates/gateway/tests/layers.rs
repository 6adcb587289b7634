//! The arrows between the gateway's modules. A module may use those listed next to it and no others, and
//! each comes after all that it uses, so that no circle can form. A new arrow is added here first.
//!
//! Reads the sources: `crate::…` and `super::…` outside comments and unit tests.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Arrows = &'static [(&'static str, &'static [&'static str])];

#[rustfmt::skip]
const CRATE: Arrows = &[
    ("text_file", &[]),
    ("quota", &[]),
    ("client", &["quota"]),
    ("admission", &["client", "quota"]),
    ("api_key", &["client", "quota", "text_file"]),
    ("error", &[]),
    ("trace", &[]),
    ("query", &[]),
    ("response_store", &["client"]),
    ("log", &[]),
    ("metrics", &[]),
    ("model", &[]),
    ("guide", &[]),
    ("images", &["admission", "client"]),
    ("server", &["client"]),
    ("request_body", &["admission", "client"]),
    ("address_file", &["text_file"]),
    ("template_option", &["text_file"]),
    ("options", &["address_file", "api_key", "images", "log", "model", "quota", "template_option"]),
    ("tls_options", &["options"]),
    ("option_file", &["text_file"]),
    ("option_layers", &["option_file"]),
    ("option_list", &["log", "options"]),
    ("access", &["api_key", "client", "error", "options"]),
    ("translate", &["error", "model"]),
    ("upstream", &["address_file", "admission", "metrics", "model", "options", "trace"]),
    ("stream", &["admission", "error", "guide", "log", "metrics", "response_store", "trace", "upstream"]),
    ("state", &["access", "admission", "guide", "images", "metrics", "model", "options", "response_store", "upstream"]),
    ("middleware", &["client", "error", "log", "metrics", "quota", "request_body", "state", "trace"]),
    ("handlers", &["access", "admission", "client", "error", "images", "metrics", "middleware", "model", "query",
                   "request_body", "response_store", "state", "stream", "trace", "translate", "upstream"]),
    ("openapi", &["handlers"]),
    ("router", &["handlers", "middleware", "openapi", "state"]),
    ("grpc", &["client", "middleware", "quota", "server", "state", "trace", "upstream"]),
    ("run", &["grpc", "metrics", "options", "router", "server", "state", "tls_options", "upstream"]),
    ("cli", &["log", "option_layers", "options", "run", "server"]),
];

#[rustfmt::skip]
const MODEL: Arrows = &[
    ("for_model", &[]),
    ("sampling_params", &[]),
    ("dialect", &[]),
    ("served", &["dialect"]),
    ("capability", &["dialect", "served"]),
    ("adapter", &["capability", "served"]),
    ("formats", &["for_model"]),
];

#[rustfmt::skip]
const UPSTREAM: Arrows = &[
    ("chat_templates", &[]),
    ("inbox", &[]),
    ("prompt_request", &[]),
    ("pulse", &[]),
    ("rpc", &[]),
    ("classify", &[]),
    ("turn", &[]),
    ("handles", &[]),
    ("request_queue", &["handles"]),
    ("registry", &["handles", "inbox", "rpc"]),
    ("connection", &["handles", "inbox", "prompt_request", "pulse", "registry", "request_queue", "turn"]),
    ("shared_stream", &["handles", "request_queue"]),
    ("pool", &["shared_stream"]),
    ("peer", &["pool", "turn"]),
    ("slot", &["connection", "peer", "pulse"]),
    ("table", &["connection", "pool", "slot", "turn"]),
    ("adapter_control", &["rpc", "slot", "table"]),
    ("context", &["chat_templates", "shared_stream", "table"]),
    ("delivery", &["pulse"]),
    ("dispatch", &["connection", "delivery", "handles", "inbox", "prompt_request", "request_queue", "table"]),
    ("forward", &["classify", "delivery", "pool", "rpc", "shared_stream", "slot", "table"]),
    ("inflight", &["chat_templates", "connection", "context", "handles", "peer", "pool", "prompt_request", "registry", "request_queue", "rpc", "slot"]),
    ("triton", &["chat_templates", "classify", "connection", "context", "handles", "inbox", "peer", "pool", "prompt_request", "pulse", "registry", "request_queue", "rpc", "slot"]),
    ("connect", &["context", "inflight", "rpc", "slot", "triton"]),
    ("discovery", &["connect", "slot", "table"]),
];

#[test]
fn modules_use_only_what_comes_before_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut uses = Vec::new();
    read_uses(&root, &mut Vec::new(), &mut uses);
    for (scope, arrows) in [("", CRATE), ("model::", MODEL), ("upstream::", UPSTREAM)] {
        let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (from, to) in &uses {
            let names = from.strip_prefix(scope).zip(to.strip_prefix(scope));
            let names = names.map(|(from, to)| (first_part(from), first_part(to)));
            if let Some((from, to)) = names.filter(|(from, to)| from != to) {
                found.entry(from).or_default().insert(to);
            }
        }
        let mut before = BTreeSet::new();
        for (module, listed) in arrows {
            let listed: BTreeSet<&str> = listed.iter().copied().collect();
            assert!(before.is_superset(&listed), "`{module}` comes too early");
            before.insert(*module);
            let used = found.remove(module).unwrap_or_default();
            assert_eq!(used, listed, "what `{module}` uses and what is listed");
        }
        assert!(found.is_empty(), "modules that are not listed: {found:?}");
    }
}

fn first_part(path: &str) -> &str {
    path.split("::").next().unwrap()
}

/// Adds each use in the sources below `directory`: the module that uses, and the path that it uses.
fn read_uses(directory: &Path, module: &mut Vec<String>, uses: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if ["lib", "main", "tests"].contains(&name.as_str()) {
            continue;
        }
        module.push(name);
        if path.is_dir() {
            read_uses(&path, module, uses);
        } else {
            let source = std::fs::read_to_string(&path).unwrap();
            let code = source.split("#[cfg(test)]\nmod tests").next().unwrap();
            let code = code
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            let used = code.flat_map(|line| paths_in(line, module));
            uses.extend(used.map(|path| (module.join("::"), path)));
        }
        module.pop();
    }
}

/// The crate's own paths in a line of `module`, from the crate's root.
fn paths_in(line: &str, module: &[String]) -> Vec<String> {
    assert!(
        !line.contains("crate::{"),
        "one `use` for each module: {line}"
    );
    let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    let paths = words.filter_map(|word| {
        let mut parts = word.split("::").filter(|part| !part.is_empty()).peekable();
        let mut path = match parts.next()? {
            "crate" => Vec::new(),
            "super" => module[..module.len() - 1].to_vec(),
            _ => return None,
        };
        while parts.next_if_eq(&"super").is_some() {
            path.pop();
        }
        path.extend(parts.map(str::to_owned));
        Some(path.join("::")).filter(|path| !path.is_empty())
    });
    paths.collect()
}
