"""Tests of the small runner: against transformers, in every layout of a batch."""
