"""Front end for TFLite files: a reader that returns a `weft.compiler.ir.network.Network` of ONNX's operators."""
