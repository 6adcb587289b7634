//! The arrows between the gateway's modules. A module may use those listed next to it and no others, and
//! each comes after all that it uses, so that no circle can form. A new arrow is added here first.

use std::path::Path;

use inflight_testkit::layers::{Arrows, check, no_circles};

#[rustfmt::skip]
const CRATE: Arrows = &[
    ("quota", &[]),
    ("client", &["quota"]),
    ("admission", &["client", "quota"]),
    ("api_key", &["client", "quota"]),
    ("error", &[]),
    ("batches", &[]),
    ("query", &[]),
    ("response_store", &["client"]),
    ("requests", &["client", "error"]),
    ("log", &[]),
    ("metrics", &[]),
    ("guide", &[]),
    ("images", &["admission", "client"]),
    ("server", &["client"]),
    ("request_body", &["admission", "client"]),
    ("template_option", &[]),
    ("options", &["api_key", "images", "log", "quota", "template_option"]),
    ("tls_options", &["options"]),
    ("option_file", &[]),
    ("option_layers", &["option_file"]),
    ("option_list", &["log", "options"]),
    ("access", &["api_key", "client", "error", "options"]),
    ("translate", &["error"]),
    ("stream", &["admission", "client", "error", "guide", "log", "metrics", "requests", "response_store"]),
    ("state", &["access", "admission", "batches", "guide", "images", "metrics", "options", "requests", "response_store"]),
    ("middleware", &["client", "error", "log", "metrics", "quota", "request_body", "requests", "state"]),
    ("handlers", &["access", "admission", "batches", "client", "error", "images", "log", "metrics", "middleware", "query", "quota", "request_body", "requests", "response_store", "state", "stream", "translate"]),
    ("handled", &["state"]),
    ("openapi", &["handled", "handlers"]),
    ("console", &["handlers"]),
    ("routes", &["console", "handled", "handlers", "openapi", "state"]),
    ("router", &["console", "handlers", "middleware", "openapi", "routes", "state"]),
    ("batch_runner", &["api_key", "batches", "client", "error", "handlers", "metrics", "middleware", "state"]),
    ("grpc", &["client", "error", "middleware", "requests", "server", "state"]),
    ("picker", &["admission", "error", "handlers", "server", "state"]),
    ("run", &["batch_runner", "batches", "grpc", "metrics", "options", "picker", "router", "server", "state", "tls_options"]),
    ("cli", &["log", "option_layers", "options", "run", "server"]),
];

#[test]
fn modules_use_only_what_comes_before_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    check(&root, &[("", CRATE)]);
    no_circles(&root);
}
