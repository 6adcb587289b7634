"""`inflight bench requests`: whole requests at a rate, from files or of random lengths, and a report of them.

The load generator of `inflight bench load` is Rust's (`crates/bench`): there, a stream starts its next
request as its last one ends. Here, requests come when they are due.
"""
