"""Gradients of networks, derived from the micro-operations of their operators, and training steps made of them."""
