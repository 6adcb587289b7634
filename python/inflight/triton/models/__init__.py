"""What runs inside Triton's Python backend. Owns the translation between Triton's tensors and Inflight's
executors and text; gRPC and HTTP are Triton's.
"""
