"""The compiler: a quantised ONNX graph in, an instruction stream with its constants out."""
