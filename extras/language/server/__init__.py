"""An HTTP server of language models."""
