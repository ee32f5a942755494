"""The sequential core for small FPGAs, which runs one instruction at a time under a microprogram."""
