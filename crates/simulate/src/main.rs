//! `inflight-simulate` on its own, without the Python package around it.

fn main() {
    std::process::exit(inflight_simulate::simulate_main(std::env::args()));
}
