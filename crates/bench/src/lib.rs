//! inflight-bench
