"""Tests of the fast runner: against the small one, on the CPU and on a GPU where there is one.

The tests of the engine, one folder up, run on it as well: with INFLIGHT_TEST_DEVICE=cpu or cuda.
"""
