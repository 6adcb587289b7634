//! The arrows between the gateway's modules. A module may use those listed next to it and no others, and
//! each comes after all that it uses, so that no circle can form. A new arrow is added here first.

use std::path::Path;

use inflight_testkit::layers::{Arrows, check, no_circles};

#[rustfmt::skip]
const CRATE: Arrows = &[
    ("caller", &[]),
    ("error", &[]),
    ("batches", &[]),
    ("query", &[]),
    ("log", &[]),
    ("metrics", &[]),
    ("request_body", &[]),
    ("template_option", &[]),
    ("options", &["log", "template_option"]),
    ("tls_options", &["options"]),
    ("option_file", &[]),
    ("option_layers", &["option_file"]),
    ("option_list", &["log", "options"]),
    ("access", &["error", "options"]),
    ("state", &["access", "batches", "metrics", "options"]),
    ("middleware", &["error", "metrics", "request_body", "state"]),
    ("handlers", &["access", "batches", "caller", "error", "metrics", "middleware", "query", "request_body", "state"]),
    ("handled", &["state"]),
    ("openapi", &["handled", "handlers"]),
    ("console", &["handlers"]),
    ("routes", &["console", "handled", "handlers", "openapi", "state"]),
    ("router", &["console", "handlers", "middleware", "openapi", "routes", "state"]),
    ("batch_runner", &["batches", "error", "handlers", "metrics", "middleware", "state"]),
    ("grpc", &["caller", "error", "middleware", "state"]),
    ("picker", &["error", "handlers", "state"]),
    ("run", &["batch_runner", "batches", "grpc", "metrics", "options", "picker", "router", "state", "tls_options"]),
    ("cli", &["log", "option_layers", "options", "run"]),
];

#[test]
fn modules_use_only_what_comes_before_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    check(&root, &[("", CRATE)]);
    no_circles(&root);
}
