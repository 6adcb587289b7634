"""Inflight inside Triton: model repositories (`repository`), and the Python models that they name (`models`).

Only `models` runs inside Triton.
"""
