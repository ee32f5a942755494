"""ONNX to the graph: rules, folding, what the device takes, what the host evaluates."""
