"""Waveforms with names."""
