"""The steps of a build, a module for each runtime."""
