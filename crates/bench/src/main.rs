//! `inflight-bench` on its own, for profiling without the Python package around it.

fn main() {
    std::process::exit(inflight_bench::bench_main(std::env::args()));
}
