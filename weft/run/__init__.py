"""Run compiled programs on simulators and boards."""
