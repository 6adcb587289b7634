"""The checks, a module for each topic; importing a module registers its checks."""
