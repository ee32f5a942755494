"""Execution of language models: batching, sampling, page management and devices."""
