//! The messages in `generated/` are those of `proto/`. `UPDATE_SNAPSHOTS=1` writes them again.

use std::fs;
use std::path::Path;

use inflight_testkit::page;
use prost::Message as _;

const FILE: &str = "envoy/service/ext_proc/v3/external_processor.proto";

#[test]
fn the_messages_are_those_of_the_protocol_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ext_proc");
    fs::create_dir_all(&made).unwrap();
    // In Rust, so that no protoc is needed.
    let set = protox::compile([FILE], [folder]).unwrap();
    let descriptors = set.encode_to_vec();
    tonic_prost_build::configure()
        // Bodies stay slices of the received messages.
        .bytes(".")
        .out_dir(&made)
        .emit_rerun_if_changed(false)
        .compile_fds(set)
        .unwrap();
    let code = fs::read(made.join("envoy.service.ext_proc.v3.rs")).unwrap();
    page::check("crates/ext_proc/generated/ext_proc.rs", &code);
    page::check("crates/ext_proc/generated/ext_proc.bin", &descriptors);
}
