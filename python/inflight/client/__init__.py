"""A small client of the gateway, on the standard library alone."""
