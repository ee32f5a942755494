"""The compiler: a quantised graph in, an instruction stream with its constants out."""
