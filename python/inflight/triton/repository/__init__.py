"""Triton model repositories: written, checked and filled.

Owns the five models of TensorRT-LLM's Triton backend as data (`tables`), and its llmapi model (`llmapi_*`).
Runs no model and opens no socket.
"""
