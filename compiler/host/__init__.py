"""Evaluating operators on the host: with ONNX Runtime where it is installed, else with the onnx package."""
