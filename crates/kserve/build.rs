//! Compiles the .proto files with protox (no system protoc).

use std::env;
use std::path::Path;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Both as cargo tells them at run time: one build directory may serve several clones.
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let out = env::var("OUT_DIR")?;
    println!("cargo:rerun-if-changed=../../proto");

    let kserve = protox::compile(
        ["grpc_service.proto", "model_config.proto"],
        [root.join("kserve")],
    )?;
    std::fs::write(
        Path::new(&out).join("kserve_descriptor.bin"),
        kserve.encode_to_vec(),
    )?;
    tonic_prost_build::configure()
        // Tensor data stays the slice of the received message that it is.
        .bytes(".")
        .compile_fds(kserve)?;

    let assets = protox::compile(["inflight/v1/model_assets.proto"], [&root])?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(assets)?;
    Ok(())
}
