//! The standalone binary: the library's command, with the allocator that suits many small buffers. Called
//! with one word it is the helper process that renders a model's chat templates.

use inflight_text::{HelperCommand, run_template_helper, use_template_helper};

/// What the gateway passes to this binary to get a template helper.
const TEMPLATE_HELPER: &str = "template-helper";

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == TEMPLATE_HELPER)
    {
        return run_template_helper();
    }
    // The file may be replaced while this process runs; this path stays that of the running one.
    use_template_helper(HelperCommand {
        program: "/proc/self/exe".to_owned(),
        arguments: vec![TEMPLATE_HELPER.to_owned()],
    });
    inflight_gateway::main()
}
