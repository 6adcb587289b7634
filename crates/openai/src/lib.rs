//! inflight-openai
