//! The standalone binary: the library's command, with the allocator that suits many small buffers.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    inflight_gateway::main()
}
