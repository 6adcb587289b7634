"""The reliability suite: `make soak`. What it promises is in `docs/RELIABILITY.md`."""
