"""Compiled programs and the devices that run them."""
