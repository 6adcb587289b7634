"""What the end-to-end tests share: processes, raw HTTP, metrics."""
