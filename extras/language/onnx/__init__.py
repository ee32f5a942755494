"""Reader of language models in ONNX files."""
