"""TFLite files: a reader that makes a `weft.compiler.ir.network.Network` of them, with ONNX's operators."""
