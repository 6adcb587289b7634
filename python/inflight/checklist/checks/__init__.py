"""The checks, a module for each topic. Each uses one feature once, with what `Subject` gives it."""
