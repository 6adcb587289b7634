"""What runs inside Triton's Python backend. Owns the translation between Triton's tensors and Inflight's
executors and text; knows neither gRPC nor HTTP, which Triton does.
"""
