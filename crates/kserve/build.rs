//! Compiles the .proto files with protox (no system protoc).

use std::env;
use std::path::Path;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Read at run time, because one build directory may serve several clones.
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed=../../proto");

    let kserve = protox::compile(
        ["grpc_service.proto", "model_config.proto"],
        [root.join("kserve")],
    )?;
    // For reflection, and for whoever writes the messages in another form.
    write_descriptors("kserve.bin", &kserve)?;
    tonic_prost_build::configure()
        // Tensor data stays a slice of the received message.
        .bytes(".")
        .compile_fds(kserve)?;

    let assets = protox::compile(["inflight/v1/model_assets.proto"], [&root])?;
    write_descriptors("assets.bin", &assets)?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(assets)?;

    let cache_state = protox::compile(["inflight/v1/cache_state.proto"], [&root])?;
    write_descriptors("cache_state.bin", &cache_state)?;
    // The same package as the assets', so the same name of its file.
    let folder = Path::new(&env::var("OUT_DIR")?).join("cache_state");
    std::fs::create_dir_all(&folder)?;
    tonic_prost_build::configure()
        .out_dir(folder)
        .compile_fds(cache_state)?;
    Ok(())
}

/// What the reflection service answers with.
fn write_descriptors(name: &str, files: &impl Message) -> Result<(), Box<dyn std::error::Error>> {
    let path = Path::new(&env::var("OUT_DIR")?).join(name);
    std::fs::write(path, files.encode_to_vec())?;
    Ok(())
}
