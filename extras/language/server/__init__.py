"""HTTP server for language models with an OpenAI-compatible API."""
