//! Compiles the .proto files with protox (no system protoc).

use std::path::Path;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let out = std::env::var("OUT_DIR")?;

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
