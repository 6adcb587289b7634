//! inflight-testkit
