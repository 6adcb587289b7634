"""The command line: one command a file, nothing heavy at import. `inflight.cli.app` is the group."""
