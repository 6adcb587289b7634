"""Triton model repositories: written, checked and filled, and the Python models that they name.

Owns the five models of TensorRT-LLM's Triton backend as data (`tables`). Knows no executor; only
`backend` runs inside Triton.
"""
