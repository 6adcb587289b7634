"""Tests of the reference executor; a package, so that its modules' names are its own."""
