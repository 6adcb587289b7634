"""The agent frameworks that people use, each in its own environment, against a real `inflight serve`."""
