"""Language models without a file format: data model, tokenizers, float32 reference and device programs."""
