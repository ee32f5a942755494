"""ONNX files as language models."""
