"""weft: matrix-multiplication accelerators for open FPGAs, from ONNX to verified Verilog."""

__version__ = "0.1.0"
