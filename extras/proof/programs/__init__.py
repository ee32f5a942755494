"""Proves that a compiled program computes the network that it was compiled from; knows nothing of the compiler."""
