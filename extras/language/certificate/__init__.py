"""Certificates of language models' programs."""
