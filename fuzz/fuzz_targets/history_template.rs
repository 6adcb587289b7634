#![no_main]

// The template engine panics on odd formats, and what renders catches that. libFuzzer's own hook would end the
// process at each panic; without it, one that nobody catches still does.
libfuzzer_sys::fuzz_target!(
    init: std::panic::set_hook(Box::new(|_| {})),
    |data: &[u8]| inflight_fuzz::history_template(data)
);
