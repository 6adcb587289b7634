//! inflight-text
