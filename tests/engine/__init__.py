"""Tests of `inflight build` and `inflight inspect`."""
