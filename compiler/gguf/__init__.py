"""GGUF files: a reader that makes a `weft.compiler.language.model.LanguageModel` of them, and a writer."""
