//! inflight-python
