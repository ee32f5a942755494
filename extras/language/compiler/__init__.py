"""Language models: what one consists of, tokenizers, and their meaning in float32. Nothing here knows a file format."""
