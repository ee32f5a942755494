"""Reader and writer of GGUF files; models are `weft.extras.language.compiler.model.LanguageModel`."""
