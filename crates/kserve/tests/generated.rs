//! The messages in `generated/` are those of `proto/`. `UPDATE_SNAPSHOTS=1` writes them again.

use std::fs;
use std::path::{Path, PathBuf};

use inflight_testkit::page;
use prost::Message as _;

/// What is made, of which files below which folder, and the package that they are in.
const SETS: [(&str, &str, &[&str], &str); 3] = [
    (
        "inference",
        "proto/kserve",
        &["grpc_service.proto", "model_config.proto"],
        "inference",
    ),
    (
        "assets",
        "proto",
        &["inflight/v1/model_assets.proto"],
        "inflight.v1",
    ),
    (
        "cache_state",
        "proto",
        &["inflight/v1/cache_state.proto"],
        "inflight.v1",
    ),
];

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn the_messages_are_those_of_the_protocol_files() {
    for (name, folder, files, package) in SETS {
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&made).unwrap();
        // In Rust, so that no protoc is needed.
        let set = protox::compile(files, [own("../..").join(folder)]).unwrap();
        let descriptors = set.encode_to_vec();
        tonic_prost_build::configure()
            // Tensor data stays a slice of the received message.
            .bytes(".")
            .out_dir(&made)
            .emit_rerun_if_changed(false)
            .compile_fds(set)
            .unwrap();
        let code = fs::read(made.join(format!("{package}.rs"))).unwrap();
        page::check(&format!("crates/kserve/generated/{name}.rs"), &code);
        page::check(&format!("crates/kserve/generated/{name}.bin"), &descriptors);
    }
}
