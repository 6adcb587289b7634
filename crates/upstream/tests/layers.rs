//! The arrows between the crate's modules. A module may use those listed next to it and no others, and
//! each comes after all that it uses, so that no circle can form. A new arrow is added here first.

use std::path::Path;

use inflight_testkit::layers::{Arrows, check, no_circles};

#[rustfmt::skip]
const CRATE: Arrows = &[
    ("ending", &[]),
    ("expiry", &["ending"]),
    ("inbox", &[]),
    ("pulse", &[]),
    ("process", &[]),
    ("rpc", &[]),
    ("classify", &[]),
    ("metrics", &[]),
    ("chat_templates", &[]),
    ("trace", &["metrics"]),
    ("phases", &[]),
    ("prompt_request", &["phases", "trace"]),
    ("handles", &[]),
    ("request_queue", &["handles"]),
    ("registry", &["handles", "inbox", "rpc"]),
    ("placement", &["metrics", "phases", "prompt_request", "pulse"]),
    ("connection", &["handles", "inbox", "placement", "process", "prompt_request", "pulse", "registry", "request_queue"]),
    ("shared_stream", &["handles", "pulse", "request_queue"]),
    ("pool", &["pulse", "shared_stream"]),
    ("peer", &["pool"]),
    ("slot", &["connection", "inbox", "peer", "process", "pulse"]),
    ("visit", &["placement", "slot"]),
    ("table", &["connection", "metrics", "phases", "placement", "pool", "slot", "visit"]),
    ("adapter_control", &["rpc", "slot", "table"]),
    ("context", &["chat_templates", "metrics", "shared_stream", "table"]),
    ("stops", &["pool", "table"]),
    ("delivery", &["expiry", "metrics", "pulse", "stops", "trace"]),
    ("dispatch", &["connection", "delivery", "handles", "inbox", "phases", "placement", "prompt_request", "registry", "request_queue", "table"]),
    ("transcript", &[]),
    ("survival", &["delivery", "dispatch", "inbox", "metrics", "process"]),
    ("holding", &["expiry", "inbox", "metrics", "survival"]),
    ("forward", &["classify", "connection", "delivery", "dispatch", "ending", "expiry", "holding", "inbox", "metrics", "placement", "pool", "process", "rpc", "shared_stream", "slot", "stops", "survival", "table", "transcript", "visit"]),
    ("inflight", &["chat_templates", "connection", "context", "handles", "metrics", "peer", "phases", "placement", "pool", "prompt_request", "registry", "request_queue", "rpc", "slot"]),
    ("triton", &["chat_templates", "classify", "connection", "context", "handles", "inbox", "metrics", "peer", "pool", "prompt_request", "pulse", "registry", "request_queue", "rpc", "slot", "trace"]),
    ("watched", &["connection", "context", "handles", "placement", "prompt_request", "pulse", "registry", "request_queue", "rpc", "slot", "triton"]),
    ("connect", &["context", "inflight", "rpc", "slot", "triton", "watched"]),
    ("discovery", &["connect", "metrics", "slot", "table"]),
];

#[test]
fn modules_use_only_what_comes_before_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    check(&root, &[("", CRATE)]);
    no_circles(&root);
}
