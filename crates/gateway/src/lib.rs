//! inflight-gateway
