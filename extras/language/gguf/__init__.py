"""GGUF files: a reader that makes a `weft.extras.language.compiler.model.LanguageModel` of them, and a writer."""
