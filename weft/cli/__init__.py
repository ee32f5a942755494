"""Command line of weft."""
