"""Front end for ONNX models: rules, folding, matching of device operators, partition between host and device."""
