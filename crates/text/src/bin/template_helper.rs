//! The chat templates' helper process, without a server around it.

fn main() -> std::process::ExitCode {
    inflight_text::run_template_helper()
}
